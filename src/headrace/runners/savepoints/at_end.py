"""A savepoint at the end of a run: the cut comes first, nothing is processed after it, and then the app drains.

A thread of the driver waits until the app is to drain. The coordinator holds the order back until the savepoint is
taken. An app that ends by itself leaves its last state behind, which is copied then.
"""

from __future__ import annotations

import threading
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.core.log import logger
from headrace.metadata.store import MetadataStore
from headrace.runners.coordination.server import Coordinator
from headrace.runners.savepoints.taking import Taking, take
from headrace.savepoints.folder import Shelf

_WAIT_S = 1.0
_log = logger(__name__)


class SavepointAtEnd:
    """Takes the savepoint ``name`` when the run ends. Use it as a context manager around the run."""

    def __init__(self, coordinator: Coordinator, home: Path, app: str, metadata: MetadataStore, name: str) -> None:
        Shelf(home, app).check_free(name)
        self._coordinator = coordinator
        self._home, self._app, self._metadata, self._name = home, app, metadata, name
        self._taken = False
        self._error: HeadraceError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-savepoint", daemon=True)

    def __enter__(self) -> SavepointAtEnd:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        if kind is not None:
            return  # the app has failed: that is what counts
        if not self._taken and self._error is None:
            self._take(running=False)
        if self._error is not None:
            self._error.message = f"the app has ended, but its savepoint wasn't taken: {self._error.message}"
            raise self._error

    def _run(self) -> None:
        while not self._closing.is_set():
            if self._coordinator.wait_for_drain(_WAIT_S):
                try:
                    self._take(running=True)
                finally:
                    self._coordinator.release_drain()
                return

    def _take(self, *, running: bool) -> None:
        links = [self._coordinator] if running else []
        try:
            take(Taking(self._home, self._app, self._metadata, links, last=True), self._name)
            self._taken = True
            _log.info("took a savepoint at the end", app=self._app, savepoint=self._name)
        except HeadraceError as error:
            self._error = error
