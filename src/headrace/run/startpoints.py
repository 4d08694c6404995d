"""Startpoints and offsets from Python, whether the app runs or not. Commands use it, too."""

from __future__ import annotations

import builtins
import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headrace.api.app import Declarations
from headrace.coordinator.address import Address
from headrace.coordinator.messages import Applied, SetAnswer, SetStartpoint, StartpointTarget
from headrace.coordinator.publication import find_all
from headrace.coordinator.startpoints import StartpointService
from headrace.core.clock import Duration, WallClock, moment_ms, parse_moment, to_ms
from headrace.core.deployment import home_of, metadata_url_of
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.ids import Offset
from headrace.life.changelogs import LastCommits as Committed
from headrace.life.changelogs import apps_with_checkpoints, committed_in, found_in
from headrace.life.inputs import AppInput, AppInputs, inputs_of, recorded_inputs
from headrace.life.metadata import MetadataStore, existing_metadata, open_metadata
from headrace.life.startpoints import StartpointBook, StartpointKey, StartpointState, UnfinishedStartpoints, next_orders
from headrace.plan.inventory import NO_CONSENT
from headrace.run.planning import Deployment
from headrace.systems.base import Extent
from headrace.systems.positions import CustomStartpoint, newest_time
from headrace.systems.startpoints import (
    End,
    EndOffset,
    EndTime,
    Startpoint,
    StartpointCustom,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
    is_moment,
)
from headrace.task.connections import Connections, lag

SLOTS = (
    "committed offsets count rows, because its partitions are slots, which share shards. headrace checkpoint show has "
    "the position in each shard, and headrace status of a running app says how far behind it is"
)


def as_startpoint(point: Startpoint | CustomStartpoint) -> Startpoint:
    if isinstance(point, CustomStartpoint):
        try:
            value = msgspec.to_builtins(point)
        except TypeError as error:
            raise UsageError(
                f"a startpoint of the kind {point.kind!r} can't be kept: {error}",
                hint="make it a frozen dataclass whose fields can be written as JSON",
            ) from error
        return StartpointCustom(name=point.kind, value=value)
    if not isinstance(point, Startpoint):
        raise UsageError(f"{point!r} isn't a startpoint", hint="write hr.startpoints.oldest(), or ago('1h')")
    return point


def as_end(until: object) -> End | UnsetType:
    match until:
        case None:
            return UNSET
        case StartpointSpecific(offset=number, until=msgspec.UNSET):
            return EndOffset(offset=number)
        case StartpointTimestamp(time_ms=time_ms, or_oldest=False, until=msgspec.UNSET):
            return EndTime(time_ms=time_ms)
        case _:
            raise UsageError(
                f"until={until!r} isn't an end", hint='write until=hr.startpoints.offset(n), at(time) or ago("30m")'
            )


class InputOffsets(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A partition of an input in one task: where the last commit is, and what the partition holds.

    ``committed`` is None before the first commit. ``lag`` is in messages, ``lag_bytes`` in bytes; None: unknown.
    ``newest`` is the offset after the newest message. The times say when the messages at these offsets arrived.
    ``problem``: why nothing is known. ``startpoint`` is the task's next one, until committed. While one with an end is
    under way, ``until`` is that end, and ``back`` where the task then goes on.
    """

    input: str
    stream: str
    partition: int
    task: str
    committed: Offset | None = None
    lag: int | None = None
    lag_bytes: int | None = None
    oldest: Offset | None = None
    newest: Offset | None = None
    committed_ms: int | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None
    sealed: bool = False
    problem: str | None = None
    startpoint: StartpointState | None = None
    until: Offset | UnsetType = UNSET
    back: Offset | UnsetType = UNSET


def read_offsets(
    inputs: AppInputs, committed: Committed, present: UnfinishedStartpoints, now_ms: int
) -> list[InputOffsets]:
    """Return the offsets of all inputs, by input, partition and task; ``present`` are the startpoints of the app."""
    waiting = next_orders(present, inputs.partitions)
    found: list[InputOffsets] = []
    with closing(Connections()) as connections:
        for one in sorted(inputs.inputs, key=lambda one: (one.id, one.stage)):
            extents, problem = _extents(connections, inputs, one)
            for partition in range(one.partitions):
                for task in one.readers(partition):
                    position = found_in(committed(task), one, partition)
                    known = InputOffsets(
                        input=one.id,
                        stream=one.stream,
                        partition=partition,
                        task=task,
                        committed=None if position is None else position.offset,
                        until=UNSET if position is None else position.until,
                        back=UNSET if position is None else position.back,
                        problem=problem,
                        startpoint=waiting.get(StartpointKey(one.kept_as, partition, task)),
                    )
                    if partition < len(extents):
                        known = _measured(connections, inputs, one, known, extents[partition], now_ms)
                    found.append(known)
    return found


def _extents(connections: Connections, inputs: AppInputs, one: AppInput) -> tuple[list[Extent], str | None]:
    spec = inputs.system(one)
    if spec is None:
        return [], "only the app's program knows this system: give the app's file in place of its name"
    try:
        return connections.admin(spec).extents(one.ssp(0).stream.name), None
    except HeadraceError as error:
        return [], error.message


def _measured(
    connections: Connections, inputs: AppInputs, one: AppInput, known: InputOffsets, extent: Extent, now_ms: int
) -> InputOffsets:
    if is_moment(extent.upcoming):
        return msgspec.structs.replace(known, problem=SLOTS)
    spec = inputs.system(one)
    assert spec is not None  # else there would be no extents
    admin, ssp = connections.admin(spec), one.ssp(known.partition)
    known = msgspec.structs.replace(
        known,
        oldest=extent.oldest,
        newest=extent.upcoming,
        oldest_ms=admin.time_of(ssp, extent.oldest),
        newest_ms=newest_time(ssp, admin, now_ms),
        sealed=extent.sealed,
    )
    if known.committed is None:
        return known
    behind = lag(connections, spec, ssp, max(known.committed, extent.oldest), extent.upcoming)
    return msgspec.structs.replace(
        known, lag=behind.messages, lag_bytes=behind.size, committed_ms=admin.time_of(ssp, known.committed)
    )


def oldest(*, until: Startpoint | None = None) -> Startpoint:
    """Read from the oldest message on that is kept, or only to ``until``: a result of ``offset`` or ``at``.

    Reading then goes on where the task was before.

    Examples
    --------
    >>> hr.startpoints.oldest()
    StartpointOldest(id='', created_ms=0, until=UNSET)
    """
    return StartpointOldest(until=as_end(until))


def upcoming() -> Startpoint:
    """Read messages that arrive after the start, and skip all earlier ones.

    Examples
    --------
    >>> hr.startpoints.upcoming()
    StartpointUpcoming(id='', created_ms=0, until=UNSET)
    """
    return StartpointUpcoming()


def offset(number: int, *, until: Startpoint | None = None) -> Startpoint:
    """Read from offset ``number`` on, as ``offsets`` shows it. In the embedded log a message must begin there.

    ``until`` is as for ``oldest``.

    Examples
    --------
    >>> hr.startpoints.offset(4096, until=hr.startpoints.offset(8192)).until.offset
    8192
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise UsageError(f"{number!r} isn't an offset", hint="use an integer of at least 0")
    return StartpointSpecific(offset=number, until=as_end(until))


def at(time: datetime | int | str, *, or_oldest: bool = False, until: Startpoint | None = None) -> Startpoint:
    """Read from the first message on that arrived at ``time`` or later.

    It is a ``datetime``, ISO 8601, or milliseconds since the epoch; without a zone it is in UTC. If a partition has
    deleted messages from then on, the startpoint is refused, or begins with the oldest that is left (``or_oldest``).
    ``until`` is as for ``oldest``.

    Examples
    --------
    >>> hr.startpoints.at("2026-01-31T12:00:00+01:00").time_ms
    1769857200000
    """
    given: object = time
    if isinstance(time, datetime):
        given = moment_ms(time)
    elif isinstance(time, str):
        given = parse_moment(time)[0]
    if isinstance(given, bool) or not isinstance(given, int):
        raise UsageError(f"{given!r} isn't a time", hint="give a datetime, ISO 8601, or milliseconds since the epoch")
    return StartpointTimestamp(time_ms=given, or_oldest=or_oldest, until=as_end(until))


def ago(duration: Duration, *, or_oldest: bool = False, until: Startpoint | None = None) -> Startpoint:
    """Read from the first message on that arrived ``duration`` (``"1h"``, or a ``timedelta``) ago or later.

    ``or_oldest`` is as for ``at``, and ``until`` as for ``oldest``; often ``ago("30m")``.

    Examples
    --------
    >>> hr.startpoints.ago("1h").time_ms < hr.startpoints.ago("1m").time_ms
    True
    """
    shift = duration if isinstance(duration, str | timedelta) else str(duration)
    return at(WallClock().now_ms() - to_ms(shift, "ago", error=UsageError), or_oldest=or_oldest, until=until)


def custom(kind: str, value: dict[str, Any] | None = None, *, until: Startpoint | None = None) -> Startpoint:
    """Read from a position of a ``kind`` that a ``CustomStartpoint`` of the app, or the input's system, defines.

    ``value`` is what it needs, as JSON. ``until`` is as for ``oldest``.

    Examples
    --------
    >>> hr.startpoints.custom("after-release", {"release": "1.2"}).name
    'after-release'
    """
    return StartpointCustom(name=kind, value=dict(value or {}), until=as_end(until))


class Startpoints:
    """The startpoints of one app, whether it runs or not. Made by ``hr.startpoints.open_startpoints``.

    One says where the app reads a partition of an input from, whatever it has committed. It is applied at the next
    start, or at once with ``apply=True``, and deleted when a commit covers it.
    """

    def __init__(self, app: str | Declarations, *, home: str | Path | None = None, metadata: str | None = None) -> None:
        self._declared = app if isinstance(app, Declarations) else None
        self.app = app.name if isinstance(app, Declarations) else app
        self._home = (
            Path(app.settings.home) if isinstance(app, Declarations) and home is None else home_of(home, self.app)
        )
        own = app.settings.metadata if isinstance(app, Declarations) and metadata is None else None
        self._metadata = own or metadata_url_of(metadata, self.app)

    def set(
        self,
        input: str,  # what the app calls it
        startpoint: Startpoint | CustomStartpoint,
        *,
        partition: int | None = None,
        task: str | None = None,
        apply: bool = False,
        note: str = "",
    ) -> SetAnswer:
        """Set startpoints for the ``input`` (or side input) of that id: all of them, or none if one can't be.

        ``startpoint`` is such as ``hr.startpoints.ago("1h")``, or a ``CustomStartpoint`` of the app. By default it is
        for every ``partition``, and for every ``task`` (as ``"stage/0"``) that reads it; one with a task has
        precedence. With ``apply``, these tasks restart in place now; otherwise it counts from the app's next start on.
        ``note`` is why you set it, in one line; lists show it with your user name, your host and the time.

        The answer's ``moves`` say for each partition and task from where to where, its ``notes`` what else to know.
        Raises ``UsageError`` if the input, partition, task or position doesn't exist.
        """
        point = as_startpoint(startpoint)
        return self._send(
            SetStartpoint(
                input=input, partition=partition, task=task, startpoint=point, by=_me(), note=note, apply=apply
            )
        )

    def preview(
        self,
        input: str,
        startpoint: Startpoint | CustomStartpoint,
        *,
        partition: int | None = None,
        task: str | None = None,
    ) -> SetAnswer:
        """Say what ``set`` would do for ``input``, ``startpoint``, ``partition`` and ``task``, and change nothing."""
        point = as_startpoint(startpoint)
        return self._send(
            SetStartpoint(input=input, partition=partition, task=task, startpoint=point, by=_me(), dry_run=True)
        )

    def list(self, *, done: bool = False) -> builtins.list[StartpointState]:
        """Return the startpoints that wait or are being applied; with ``done``, the last ones done with come first."""
        with self._service() as service:
            return service.book.states(done=done)

    def delete(
        self, input: str, *, partition: int | None = None, task: str | None = None
    ) -> builtins.list[StartpointState]:
        """Delete startpoints of an ``input`` that haven't been ordered to a task yet; if the app is stopped, all.

        With ``partition`` or ``task``, only those of it. Returns what was deleted.
        """
        target = StartpointTarget(input=input, partition=partition, task=task)
        with self._service() as service:
            return [*service.delete(target, live=bool(self._running())).startpoints]

    def apply(self) -> Applied:
        """Restart the tasks of the running app that have new startpoints, in place. The others go on."""
        addresses = self._running()
        if not addresses:
            raise self._not_running()
        return _apply(addresses)

    def offsets(self) -> builtins.list[InputOffsets]:
        """Return where the tasks are in their inputs, what the inputs hold, and which startpoints wait."""
        with self._opened() as metadata:
            committed = committed_in(self._home, metadata, self.app)
            present = StartpointBook(metadata, self.app).unfinished()
            return read_offsets(self._inputs(metadata), committed, present, WallClock().now_ms())

    def positions_of(self, input: str) -> frozenset[str]:
        """Return the names under which the app keeps its positions in the ``input`` of that id."""
        with self._service() as service:
            return frozenset(one.kept_as for one in service.inputs.named(input))

    def _send(self, request: SetStartpoint) -> SetAnswer:
        addresses = self._running()
        if not addresses:
            if request.apply:
                raise self._not_running()
            with self._service() as service:
                return service.set(request)
        with closing(addresses[0].client()) as client:
            answer = client.set_startpoint(request)
        if request.apply and len(addresses) > 1:
            restarted = (*answer.restarted, *_apply(addresses[1:]).restarted)
            answer = msgspec.structs.replace(answer, restarted=restarted)
        return answer

    def _running(self) -> builtins.list[Address]:
        with existing_metadata(self._home, self._metadata) as metadata:
            return find_all(metadata, self.app)

    def _not_running(self) -> UsageError:
        return UsageError(
            f"app {self.app!r} isn't running in {self._metadata or self._home}, so a startpoint can't be applied now",
            hint="leave out apply: a startpoint takes effect when the app starts",
        )

    @contextmanager
    def _service(self) -> Iterator[StartpointService]:
        with self._opened() as metadata:
            committed = partial(committed_in, self._home, metadata, self.app)
            yield StartpointService(metadata, self._inputs(metadata), committed, WallClock())

    def _opened(self) -> AbstractContextManager[MetadataStore]:
        place = self._home, self._metadata
        return existing_metadata(*place) if self._declared is None else closing(open_metadata(*place))

    def _inputs(self, metadata: MetadataStore) -> AppInputs:
        if self._declared is not None:
            return inputs_of(Deployment(self._declared.graph(), metadata, NO_CONSENT).planned().plan)
        found = recorded_inputs(metadata, self.app, self._home)
        if found is None:
            known = ", ".join(apps_with_checkpoints(self._home, metadata))
            elsewhere = "name its home folder or its metadata store, or give the app's file"
            raise UsageError(
                f"app {self.app!r} has never run on {metadata.place}",
                hint=f"apps that have: {known}" if known else elsewhere,
            )
        return found


def open_startpoints(
    app: str | Declarations, *, home: str | Path | None = None, metadata: str | None = None
) -> Startpoints:
    """Open the startpoints of an app, to look at them and to change them.

    ``app`` is the app or its name. With a name, only the facts recorded at its last start are known. ``home`` is by
    default that of the app, the deployment's (see the page "Settings"), or ``.headrace``, and ``metadata``, the URL of
    a metadata store outside of the home, that of the app or of the deployment.

    Examples
    --------
    >>> hr.streams.create_stream("views", 1, {"member": pl.String}, home="startpoints-example")
    >>> app = hr.App("page-views", home="startpoints-example")
    >>> _ = app.input("views", {"member": pl.String}).send_to("seen")
    >>> points = hr.startpoints.open_startpoints(app)
    >>> answer = points.set("views", hr.startpoints.oldest(), partition=0)
    >>> [state.state for state in points.list()]
    ['pending']
    """
    return Startpoints(app, home=home, metadata=metadata)


def _me() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers may run as a user without a name
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _apply(addresses: list[Address]) -> Applied:
    restarted: list[str] = []
    for address in addresses:
        with closing(address.client()) as client:
            restarted += client.apply_startpoints().restarted
    return Applied(restarted=tuple(restarted))
