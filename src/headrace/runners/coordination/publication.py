"""Publish that a deployment is running, so that commands find it and no other run of its stages begins.

Two runs of the same stages would keep fencing each other off. While a deployment is running, a thread renews its
address every few seconds. So if a driver dies silently, the book shows when it was last alive.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
from typing_extensions import override

from headrace.core.clock import WallClock
from headrace.core.errors import FencedError, HeadraceError, UnavailableError, UsageError
from headrace.core.log import logger
from headrace.metadata.store import Change, Delete, MetadataStore, Put, Version
from headrace.runners.coordination import messages
from headrace.runners.coordination.address import Address
from headrace.runners.coordination.machine import this_machine
from headrace.runners.coordination.repeated import RepeatedStep
from headrace.runners.coordination.runs import (
    SPACE,
    Running,
    all_ended,
    all_running,
    ended_key,
    running_key,
    turn_key,
)

TOUCH_S = 2.0
LOST_S = 15.0
"""A driver on another machine that doesn't answer and hasn't renewed its address for this long counts as dead.

It may be only frozen or cut off. Its containers are then fenced off, like those of any replaced run.
"""
_LOOK_S = 0.5
_MOST_ATTEMPTS = 100

_log = logger(__name__)


class Publication:
    """The entry of a deployment in this process; it exists from ``publish`` to ``close``."""

    def __init__(self, metadata: MetadataStore, address: Address, version: Version) -> None:
        self.address = address
        self._metadata = metadata
        self._version: Version | None = version
        self._trouble = ""

    def touch(self) -> bool:
        """Note that the driver is alive. Return False if another run took it for dead and replaced it.

        If the store fails, that is logged, and the next renewal may succeed.
        """
        if self._version is None:
            return False
        address = msgspec.structs.replace(self.address, seen_at=WallClock().now_ms())
        key = running_key(address)
        try:
            version = self._metadata.put_if(SPACE, key, msgspec.json.encode(address), self._version)
            if version is None:  # unless an earlier attempt was written although it seemed to fail
                version = self._mine()
        except HeadraceError as error:
            if error.message != self._trouble:
                _log.warning("can't note that the app is alive", app=address.app, error=error.message)
            self._trouble = error.message
            return True
        self._trouble = ""
        self._version = version
        return version is not None

    def close(self, ending: messages.AppStatus | None = None) -> None:
        """Remove the address from the book, and record how the run has ended. Idempotent.

        If that fails, it only logs, because the run's own result matters more.
        """
        if self._version is None:
            return
        try:
            for _ in range(2):  # the second attempt covers a renewal that was written although it seemed to fail
                changes: list[Change] = [Delete(running_key(self.address), self._version)]
                if ending is not None:
                    changes.append(Put(ended_key(self.address), messages.encode(ending), None))
                done = self._metadata.write(SPACE, changes) is not None
                mine = None if done else self._mine()
                if mine is None:
                    break
                self._version = mine
        except HeadraceError as error:
            _log.warning("can't record how the app ended", app=self.address.app, error=error.message)
        self._version = None

    def _mine(self) -> Version | None:
        """Return the version of this run's entry; None if it was removed. No other run has an entry of this name."""
        entry = self._metadata.get(SPACE, running_key(self.address))
        return None if entry is None else entry.version


class LifeSign(RepeatedStep):
    """A thread that renews the address of a running deployment, from ``start`` to ``close``.

    It calls ``end`` if another run has replaced this one, because both would keep fencing each other off.
    """

    def __init__(self, publication: Publication, end: Callable[[FencedError], None]) -> None:
        super().__init__("life-sign", TOUCH_S)
        self._publication = publication
        self._end = end

    @override
    def step(self) -> bool:
        if self._publication.touch():
            return True
        address = self._publication.address
        self._end(
            FencedError(
                f"another run of app {address.app!r} has replaced this one ({address.driver})",
                hint=f"this driver gave no sign of life for {LOST_S:.0f} s; the other one continues",
            )
        )
        return False


def publish(
    metadata: MetadataStore,
    app: str,
    url: str,
    token: str,
    *,
    stages: Sequence[str],
    all_stages: bool,
    started_at: int,
) -> Publication:
    """Publish that this process runs these stages of the app, and remove the records of how they ended before.

    Raises ``UsageError`` if a live run has one of them.
    """
    address = Address(
        run=secrets.token_hex(8),
        app=app,
        stages=list(stages),
        all_stages=all_stages,
        url=url,
        token=token,
        machine=this_machine(),
        pid=os.getpid(),
        started_at=started_at,
        seen_at=WallClock().now_ms(),
    )
    for _ in range(_MOST_ATTEMPTS):
        # Read the turn first, so that this write fails if another run begins after that.
        turn = metadata.get(SPACE, turn_key(app))
        changes: list[Change] = [
            Put(running_key(address), msgspec.json.encode(address), None),
            Put(turn_key(app), b"", turn.version if turn else None),
        ]
        changes += _forgotten(metadata, app, stages)
        if (versions := metadata.write(SPACE, changes)) is not None:
            return Publication(metadata, address, versions[0])
        _log.debug("another run of the app began or ended meanwhile; looking again", app=app)
    raise UnavailableError(
        f"the runs of app {app!r} in the metadata store {metadata.place} changed {_MOST_ATTEMPTS} times meanwhile",
        hint="stop the program that keeps starting this app",
    )


def _forgotten(metadata: MetadataStore, app: str, stages: Sequence[str]) -> list[Change]:
    """Return the entries to remove from the book: runs of these stages that have ended or died."""
    changes: list[Change] = []
    for run in all_running(metadata, app):
        if set(run.address.stages).isdisjoint(stages):
            continue
        if not _is_gone(metadata, run):
            raise UsageError(
                f"app {app!r} is already running {run.address.deployment}: {run.address.driver}, says {metadata.place}",
                hint="stop that run first (deployments of one app need different stages)",
            )
        _log.info("removed the record of a dead run", app=app, driver=run.address.driver)
        changes.append(Delete(run.key, run.version))
    for ended in all_ended(metadata, app):
        if ended.status is None or not set(stages).isdisjoint(stage.name for stage in ended.status.stages):
            changes.append(Delete(ended.key, ended.version))
    return changes


def _is_gone(metadata: MetadataStore, run: Running) -> bool:
    match run.address.look():
        case "alive":
            return False
        case "gone":
            return True
        case "out of reach":
            return _shows_no_life(metadata, run)


def _shows_no_life(metadata: MetadataStore, run: Running) -> bool:
    """Watch the entry of a driver on another machine, using only this machine's clock."""
    _log.warning(
        "a driver on another machine doesn't answer; waiting for a sign of life",
        driver=run.address.driver,
        seconds=LOST_S,
    )
    end, never = time.monotonic() + LOST_S, threading.Event()
    while time.monotonic() < end:
        entry = metadata.get(SPACE, run.key)
        if entry is None or entry.version != run.version:
            return entry is None
        never.wait(_LOOK_S)
    return True
