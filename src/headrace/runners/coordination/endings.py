"""How the runs of an app have ended: the file ``<home>/apps/<app>/ended.json``, one for each set of stages.

A driver writes its last status there. While it runs, it touches the file with its address every few seconds, so when a
driver has died without a word, that file says when it was last alive. ``headrace status`` shows both.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.core.errors import InfrastructureError, ProtocolError, UnavailableError
from headrace.core.log import logger
from headrace.runners.coordination import messages
from headrace.runners.coordination.address import Address, Publication, is_live, published

TOUCH_S = 2.0
_log = logger(__name__)


class LifeSign:
    """A thread that touches the file of a running deployment, from ``start`` to ``close``."""

    def __init__(self, publication: Publication) -> None:
        self._path = publication.path
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-life-sign", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and wait for it."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(TOUCH_S):
            with suppress(OSError):  # the next run will say if the folder is gone
                os.utime(self._path)


def record(publication: Publication, status: messages.AppStatus) -> None:
    """Keep the last status of a run. Only logs if that fails: how the run ended matters more."""
    path = _ending_of(publication.path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(messages.encode(status) + b"\n")
        draft.replace(path)
    except OSError as error:
        _log.warning("can't record how the app ended", file=str(path), error=str(error))


def forget(publication: Publication, stages: Sequence[str]) -> None:
    """Delete the endings of earlier runs of these stages: they run again."""
    for path in publication.path.parent.glob("ended*.json"):
        status = _read(path)
        if status is None or not set(stages).isdisjoint(stage.name for stage in status.stages):
            path.unlink(missing_ok=True)


def ended(home: Path, app: str | None = None) -> list[messages.AppStatus]:
    """Return the last status of each deployment (of ``app``) that doesn't run any more, by app."""
    folders = [home / "apps" / app] if app else sorted((home / "apps").glob("*"))
    recorded = [_read(path) for folder in folders for path in sorted(folder.glob("ended*.json"))]
    gone = [_gone(path, address) for path, address in published(home, app) if not is_live(address)]
    return sorted([*(one for one in recorded if one is not None), *gone], key=lambda one: (one.app, one.started_at))


def unreachable(home: Path, address: Address, error: UnavailableError) -> messages.AppStatus:
    """The status of a deployment whose driver doesn't answer: it may run on a machine that can't be reached."""
    paths = [path for path, one in published(home, address.app) if one == address]
    return _status(
        address,
        "unreachable",
        _touched(paths),
        f"its driver (pid {address.pid} on {address.host}) doesn't answer: {error.message}",
        "if it was last seen long ago, it is gone: then start the app again, and it resumes from its last checkpoints",
    )


def _gone(path: Path, address: Address) -> messages.AppStatus:
    return _status(
        address,
        "gone",
        _touched([path]),
        f"its driver (pid {address.pid} on {address.host}) is gone, without an error",
        "it was killed, or its machine went down; start the app again, and it resumes from its last checkpoints",
    )


def _status(address: Address, state: messages.AppState, at_ms: int, message: str, hint: str) -> messages.AppStatus:
    error = InfrastructureError(message, hint=hint)
    return messages.AppStatus(
        app=address.app,
        state=state,
        started_at=address.started_at,
        ended_at=at_ms,
        guarantee="",
        stages=[],
        tasks=[],
        containers=[],
        error=messages.ErrorReport.of(error, with_traceback=False),
    )


def _touched(paths: Iterable[Path]) -> int:
    for path in paths:
        with suppress(FileNotFoundError):
            return path.stat().st_mtime_ns // 1_000_000
    return time.time_ns() // 1_000_000


def _ending_of(path: Path) -> Path:
    return path.with_name(path.name.replace("coordinator", "ended", 1))


def _read(path: Path) -> messages.AppStatus | None:
    try:
        return messages.decode(messages.AppStatus, path.read_bytes())
    except (OSError, ProtocolError) as error:
        if not isinstance(error, FileNotFoundError):
            _log.warning("passing over the record of a run: it can't be read", file=str(path), error=str(error))
        return None
