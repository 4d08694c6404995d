"""Publish that a deployment is running, the book of an app's runs, and how they ended.

In the metadata store, ``<app>/running/<run>`` is the address of a deployment, ``<app>/ended/<run>`` its last status.
Each new deployment changes ``<app>/turn``, so that of two starting at once, the second one looks again: two runs of the
same stages would keep fencing each other off. An address contains the token, so anyone who may read the store may drain
the app. A thread renews the address, so that the book shows when a driver was last alive.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec
from typing_extensions import override

from headrace.coordinator import messages
from headrace.coordinator.address import FORMAT, Address, this_machine
from headrace.core.clock import WallClock
from headrace.core.deployment import setting
from headrace.core.errors import (
    FencedError,
    HeadraceError,
    InfrastructureError,
    ProtocolError,
    UnavailableError,
    UsageError,
)
from headrace.core.files import UNREADABLE, format_of
from headrace.core.log import logger
from headrace.core.worker import RepeatedStep
from headrace.life.metadata import Change, Delete, Entry, MetadataStore, Put, Version

SPACE = "runs"

_log = logger(__name__)


_DECODER = msgspec.json.Decoder(Address)


class Running(NamedTuple):
    """A deployment in the book. It may have died."""

    key: str
    version: Version
    address: Address


class EndedRun(NamedTuple):
    """A run that has ended, and its last status; None if that can't be read."""

    key: str
    version: Version
    status: messages.AppStatus | None


def running_key(address: Address) -> str:
    return f"{address.app}/running/{address.run}"


def known_apps(metadata: MetadataStore) -> list[str]:
    return sorted({key.partition("/")[0] for key in metadata.scan(SPACE)})


def all_running(metadata: MetadataStore, app: str | None = None) -> list[Running]:
    entries = _entries(metadata, app, "running")
    found = [Running(key, entry.version, _decoded(metadata, key, entry)) for key, entry in entries]
    return sorted(found, key=lambda one: (one.address.app, one.address.stages))


def all_ended(metadata: MetadataStore, app: str | None = None) -> list[EndedRun]:
    return [EndedRun(key, entry.version, _status(key, entry)) for key, entry in _entries(metadata, app, "ended")]


def metrics_token(metadata: MetadataStore, app: str) -> str:
    """Return the token that reads an app's metrics and nothing else; it is the same in all runs.

    It is the deployment's or, without one, made by the first who asks.
    """
    if said := setting("metrics_token", app=app):
        return str(said)
    key = f"{app}/metrics-token"
    metadata.put_if(SPACE, key, secrets.token_urlsafe(32).encode(), None)
    found = metadata.get(SPACE, key)
    return "" if found is None else found.value.decode()


def find(metadata: MetadataStore, app: str, stage: str | None = None) -> Address:
    live = [address for address in find_all(metadata, app) if stage is None or stage in address.stages]
    what = f"app {app!r}" if stage is None else f"stage {stage!r} of app {app!r}"
    if not live:
        others = sorted({f"{a.app} {a.deployment}" for a in find_all(metadata)})
        raise UnavailableError(
            f"{what} isn't running in {metadata.place}; running there: {', '.join(others) or 'nothing'}",
            hint="start it with `headrace run`, or name the home folder, or the metadata store, that it uses",
        )
    if len(live) > 1:
        raise UsageError(
            f"app {app!r} runs as {len(live)} deployments: {'; '.join(a.deployment for a in live)}",
            hint="name a stage of one of them",
        )
    return live[0]


def find_all(metadata: MetadataStore, app: str | None = None) -> list[Address]:
    """Return every deployment (of ``app``) that isn't certainly dead, by app and stages."""
    live = []
    for one in all_running(metadata, app):
        if one.address.look() == "gone":
            _log.debug("passing over a run that is gone", app=one.address.app, pid=one.address.pid)
        else:
            live.append(one.address)
    return live


def _entries(metadata: MetadataStore, app: str | None, kind: str) -> Iterator[tuple[str, Entry]]:
    for key, entry in metadata.scan(SPACE, "" if app is None else f"{app}/{kind}/").items():
        if key.split("/")[1] == kind:
            yield key, entry


def _decoded(metadata: MetadataStore, key: str, entry: Entry) -> Address:
    where = f"the address of a running app in the metadata store {metadata.place} ({SPACE}: {key})"
    try:
        found = format_of(entry.value)
        if found == FORMAT:
            return _DECODER.decode(entry.value)
    except UNREADABLE as error:
        hint = "use the Headrace that runs the app"
        raise InfrastructureError(f"{where} is unreadable: {error}", hint=hint) from error
    what = f"{where} is of format {found}; this version of Headrace reads {FORMAT}"
    raise InfrastructureError(what, hint="use the version of Headrace that runs the app")


def _status(key: str, entry: Entry) -> messages.AppStatus | None:
    try:
        return messages.decode(messages.AppStatus, entry.value)
    except ProtocolError as error:
        _log.warning("ignoring an unreadable record of a run", key=key, error=str(error))
        return None


TOUCH_S = 2.0
LOST_S = 15.0
"""A driver on another machine that neither answers nor renews its address for this long counts as dead."""
_LOOK_S = 0.5
_MOST_ATTEMPTS = 100


class Publication:
    """The entry of a deployment in this process; it exists from ``publish`` to ``close``."""

    def __init__(self, metadata: MetadataStore, address: Address, version: Version) -> None:
        self.address = address
        self._metadata = metadata
        self._version: Version | None = version
        self._trouble = ""

    def touch(self) -> bool:
        """Note that the driver is alive. Return False if another run replaced it. A failing store is only logged."""
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
        """Remove the address from the book, and record how the run has ended. Errors are only logged. Idempotent."""
        if self._version is None:
            return
        try:
            for _ in range(2):  # the second attempt covers a renewal that was written although it seemed to fail
                changes: list[Change] = [Delete(running_key(self.address), self._version)]
                if ending is not None:
                    key = f"{self.address.app}/ended/{self.address.run}"
                    changes.append(Put(key, messages.encode(ending), None))
                done = self._metadata.write(SPACE, changes) is not None
                mine = None if done else self._mine()
                if mine is None:
                    break
                self._version = mine
        except HeadraceError as error:
            _log.warning("can't record how the app ended", app=self.address.app, error=error.message)
        self._version = None

    def _mine(self) -> Version | None:
        entry = self._metadata.get(SPACE, running_key(self.address))
        return None if entry is None else entry.version


class LifeSign(RepeatedStep):
    """Renews the address of a running deployment. Calls ``end`` if another run has replaced this one."""

    def __init__(self, publication: Publication, end: Callable[[FencedError], None]) -> None:
        super().__init__("headrace-life-sign", TOUCH_S)
        self._publication = publication
        self._end = end

    @override
    def step(self) -> bool:
        if self._publication.touch():
            return True
        address = self._publication.address
        what = f"another run of app {address.app!r} has replaced this one ({address.driver})"
        hint = f"this driver gave no sign of life for {LOST_S:.0f} s; the other one continues"
        self._end(FencedError(what, hint=hint))
        return False


def publish(
    metadata: MetadataStore, app: str, url: str, token: str, *, stages: Sequence[str], all_stages: bool, started_at: int
) -> Publication:
    """Publish that this process runs these stages of the app. Raises ``UsageError`` if a live run has one of them."""
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
        turn = metadata.get(SPACE, f"{app}/turn")
        changes: list[Change] = [
            Put(running_key(address), msgspec.json.encode(address), None),
            Put(f"{app}/turn", b"", turn.version if turn else None),
        ]
        changes += _forgotten(metadata, app, stages)
        if (versions := metadata.write(SPACE, changes)) is not None:
            return Publication(metadata, address, versions[0])
        _log.debug("another run of the app began or ended meanwhile; looking again", app=app)
    what = f"the runs of app {app!r} in the metadata store {metadata.place} changed {_MOST_ATTEMPTS} times meanwhile"
    raise UnavailableError(what, hint="stop the program that keeps starting this app")


def _forgotten(metadata: MetadataStore, app: str, stages: Sequence[str]) -> list[Change]:
    changes: list[Change] = []
    for run in all_running(metadata, app):
        if set(run.address.stages).isdisjoint(stages):
            continue
        found = run.address.look()
        if not (found == "gone" or (found == "out of reach" and _shows_no_life(metadata, run))):
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


def _shows_no_life(metadata: MetadataStore, run: Running) -> bool:
    what = "a driver on another machine doesn't answer; waiting for a sign of life"
    _log.warning(what, driver=run.address.driver, seconds=LOST_S)
    end, never = time.monotonic() + LOST_S, threading.Event()
    while time.monotonic() < end:
        entry = metadata.get(SPACE, run.key)
        if entry is None or entry.version != run.version:
            return entry is None
        never.wait(_LOOK_S)
    return True


def ended(metadata: MetadataStore, app: str | None = None) -> list[messages.AppStatus]:
    recorded = [one.status for one in all_ended(metadata, app) if one.status is not None]
    what = "has disappeared without an error"
    hint = "the driver was killed or its machine crashed; start the app again, and it resumes from its last checkpoints"
    dead = [run.address for run in all_running(metadata, app) if run.address.look() == "gone"]
    gone = [_last_status(address, "gone", what, hint) for address in dead]
    return sorted([*recorded, *gone], key=lambda one: (one.app, one.started_at))


def unreachable(address: Address, error: HeadraceError) -> messages.AppStatus:
    return _last_status(address, "unreachable", f"doesn't answer: {error.message}", address.way)


def _last_status(address: Address, state: messages.AppState, what: str, hint: str) -> messages.AppStatus:
    error = InfrastructureError(f"its driver ({address.driver}) {what}", hint=hint)
    return messages.AppStatus(
        app=address.app,
        state=state,
        started_at=address.started_at,
        ended_at=address.seen_at,
        guarantee="",
        stages=[],
        tasks=[],
        containers=[],
        error=messages.ErrorReport.of(error, with_traceback=False),
    )


_SOON_S = 2.0


class DeploymentStatus(NamedTuple):
    """The status of a deployment, and where it is if its driver answers."""

    status: messages.AppStatus
    address: Address | None = None


def deployments(metadata: MetadataStore, app: str | None = None, *, patient: bool = True) -> list[DeploymentStatus]:
    """The status of each running deployment, then of others. If not ``patient``: soon, without an error."""
    found = []
    for address in find_all(metadata, app):
        with closing(address.client() if patient else address.client(timeout_s=_SOON_S, patience_s=0)) as client:
            try:
                found.append(DeploymentStatus(client.status(), address))
            except (UnavailableError, UsageError, ProtocolError) as error:
                # If it isn't unavailable, another program answers at its address, seen from here.
                if patient and address.machine.is_here and not isinstance(error, UnavailableError):
                    raise
                found.append(DeploymentStatus(unreachable(address, error)))
    return found + [DeploymentStatus(status) for status in ended(metadata, app)]
