"""A home with an app of a keyed input, a broadcast one and a side input, which runs in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr
from headrace.coordinator.messages import AppStatus
from headrace.core.clock import WallClock
from running_apps import find_all, wait_until

VIEWS = {"member": pl.String, "n": pl.Int64}
RATES = {"currency": pl.String, "rate": pl.Float64}


class Scene:
    """``views`` has two partitions, ``rates`` one, which both tasks read; ``members`` keeps a table."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.home = home
        for name, partitions, columns in (("views", 2, VIEWS), ("rates", 1, RATES), ("members", 2, VIEWS)):
            hr.streams.create_stream(name, partitions, columns, home=home)
        self.settings = settings
        self.app = self.declare()
        self.errors: list[BaseException] = []

    def declare(self, **settings: Any) -> hr.App:
        app = hr.App("page-views", home=str(self.home), checkpoint_interval="200ms", **(self.settings | settings))
        rates = app.input("rates", RATES, broadcast=True).select("currency")
        members = app.table("known", key="member", side_inputs=app.input("members", VIEWS), kind="global")
        views = app.input("views", VIEWS)
        views.send_to(app.output("seen"))
        views.join(members, how="left", suffix="_known").partition_by("member", id="by-member", partitions=2).send_to(
            app.output("joined")
        )
        rates.merge(views.select(currency="member")).send_to(app.output("both"))
        return app

    @property
    def points(self) -> hr.startpoints.Startpoints:
        """Its startpoints, opened by its name."""
        return hr.startpoints.open_startpoints("page-views", home=self.home)

    def write(self, count: int, first: int = 0, stream: str = "views") -> int:
        """Write messages with the numbers from ``first`` on, one record each; return the time after the last."""
        with hr.streams.StreamWriter(stream, home=self.home) as writer:
            for n in range(first, first + count):
                writer.write(pl.DataFrame({"member": ["m"], "n": [n]}, schema=VIEWS))
        return WallClock().now_ms()

    def rate(self, *currencies: str) -> None:
        with hr.streams.StreamWriter("rates", home=self.home) as writer:
            writer.write(pl.DataFrame({"currency": currencies, "rate": [1.0] * len(currencies)}, schema=RATES))

    def seen(self) -> list[int]:
        """The numbers of the messages that came out, sorted."""
        return sorted(hr.streams.read_stream("seen", home=self.home)["n"].to_list())

    def status(self) -> AppStatus | None:
        for address in find_all(self.home, "page-views"):
            client = address.client()
            try:
                return client.status()
            finally:
                client.close()
        return None

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that happens in another thread."""
        wait_until(condition, self.errors, 3000)

    def caught_up(self) -> bool:
        """The app runs and has committed everything, and no startpoint is left to apply."""
        status = self.status()
        if status is None or status.state != "running" or self.points.list():
            return False
        return all(one.lag == 0 and one.committed is not None for one in self.points.offsets())

    @contextmanager
    def running(self, app: hr.App | None = None) -> Iterator[None]:
        """Run the app until the end of the block, which drains it."""

        def run() -> None:
            try:
                (app or self.app).run(local=True, progress=False)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, name="page-views")
        thread.start()
        try:
            self.until(lambda: (status := self.status()) is not None and status.state == "running")
            yield
        finally:
            for address in find_all(self.home, "page-views"):
                client = address.client()
                client.drain()
                client.close()
            thread.join(60)
        assert self.errors == []
        assert not thread.is_alive()

    def run(self, app: hr.App | None = None) -> None:
        """Run it until it has committed everything."""
        with self.running(app):
            self.until(self.caught_up)
