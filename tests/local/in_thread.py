"""Runs an app in a thread of this process, until it is drained."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr
from headrace.coordinator.client import CoordinatorClient
from headrace.coordinator.messages import AppStatus
from headrace.core.errors import HeadraceError
from running_apps import find_all, wait_until

LOOKS = 3000


class Running:
    """An app that runs in a thread of this process."""

    def __init__(self, app: hr.App, home: Path) -> None:
        self._app = app
        self._home = home
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            self._app.run(local=True, progress=False)
        except BaseException as error:
            self.errors.append(error)

    def until(self, condition: Callable[[], Any]) -> None:
        wait_until(condition, self.errors, LOOKS)

    def until_failed(self) -> None:
        wait_until(lambda: self.errors, [], LOOKS)

    def committed(self, stream: str) -> pl.DataFrame | None:
        """What has been committed to an output; None before there is any such stream."""
        try:
            return hr.streams.read_stream(stream, committed=True, home=self._home)
        except HeadraceError:
            return None

    def numbers(self, stream: str = "copies") -> list[int]:
        """The numbers that came out, sorted."""
        found = self.committed(stream)
        return [] if found is None else sorted(found["n"].to_list())

    @contextmanager
    def client(self) -> Iterator[CoordinatorClient | None]:
        """Its coordinator; None if there is none now."""
        found = find_all(self._home, self._app.name)
        client = found[0].client() if found else None
        try:
            yield client
        finally:
            if client is not None:
                client.close()

    def status(self) -> AppStatus | None:
        with self.client() as client:
            return None if client is None else client.status()

    def drain(self) -> bool:
        with self.client() as client:
            if client is not None:
                client.drain()
            return client is not None


@contextmanager
def running(app: hr.App, home: Path) -> Iterator[Running]:
    """Run the app during the block; then drain it."""
    run = Running(app, home)
    thread = threading.Thread(target=run.run, name=app.name)
    thread.start()
    try:
        yield run
    finally:
        wait_until(lambda: run.errors or not thread.is_alive() or run.drain(), [], LOOKS)
        thread.join(60)
    assert not thread.is_alive()
