"""Startpoints of an app that runs, and the coordinator's part in them.

Whatever can be checked is checked before anything is written. What can't be resolved here, because only the app's
program knows the system, is resolved by the task. The coordinator fans them out, grants them with generations, and
records their outcome.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET

from headrace.coordinator.messages import (
    AllStartpoints,
    Move,
    SetAnswer,
    SetStartpoint,
    StartpointList,
    StartpointTarget,
)
from headrace.core.clock import Clock, check_past, utc_text
from headrace.core.errors import UsageError
from headrace.core.ids import Offset, TaskName
from headrace.core.log import logger
from headrace.life.apps import all_systems
from headrace.life.changelogs import LastCommits as Committed
from headrace.life.changelogs import found_in
from headrace.life.inputs import AppInput, AppInputs
from headrace.life.metadata import MemoryMetadata, MetadataStore
from headrace.life.startpoints import StartpointBook, StartpointKey, fan_out
from headrace.systems.positions import as_custom, extent_of, resolve, resolve_end
from headrace.systems.startpoints import (
    MOMENTS,
    EndOffset,
    EndTime,
    Order,
    Outcome,
    Startpoint,
    StartpointCustom,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
    in_words,
    is_moment,
)
from headrace.task.connections import Connections, Distance, distance

CLOSED_WINDOWS = (
    "event time doesn't go back: closed windows stay closed, and older messages are late. To compute them again, "
    "restore a savepoint"
)
AGAIN = "results of messages that are read again are sent again"
LATER = "it takes effect at the app's next start"
UNNAMED = "unnamed"
NOTE_MAX = 500
UNRESOLVED = "it can't be resolved without the app's program: give the app's file in place of its name to see where to"

_log = logger(__name__)


def waiting_startpoints(metadata: MetadataStore) -> AllStartpoints:
    apps = dict.fromkeys(app for app, _ in all_systems(metadata))
    found = {app: StartpointBook(metadata, app).states() for app in apps}
    return AllStartpoints(apps=tuple(StartpointList(app=app, startpoints=tuple(s)) for app, s in found.items() if s))


def warn_of_unapplied(metadata: MetadataStore, app: str, what: str) -> None:
    for state in StartpointBook(metadata, app).states():
        _log.warning(f"{what} doesn't apply a startpoint, which stays for the live app", startpoint=state.in_words)


def check_none_waits(metadata: MetadataStore, app: str) -> None:
    waiting = StartpointBook(metadata, app).states()
    if waiting:
        lines = "".join(f"\n  {state.in_words}" for state in waiting)
        raise UsageError(
            f"app {app!r} has startpoints, which would move it away from where its history ends:{lines}",
            hint="delete them (headrace startpoint delete), or start without the backfill; once the app has begun with "
            "the backfill, startpoints apply as usual",
        )


class _InputPlace(NamedTuple):
    input: AppInput
    partition: int
    task: str


class StartpointService:
    """The startpoints of one app: what users ask for, and what the coordinator does. Threads may share it."""

    def __init__(
        self, metadata: MetadataStore, inputs: AppInputs, committed: Callable[[], Committed], clock: Clock
    ) -> None:
        self.inputs = inputs
        self._partitions = inputs.partitions
        self.book = StartpointBook(metadata, inputs.app)
        self._committed = committed
        self._clock = clock

    @classmethod
    def none(cls, app: str, clock: Clock) -> StartpointService:
        return cls(MemoryMetadata(), AppInputs(app, ()), lambda: lambda _: None, clock)

    # -- for users
    def set(self, request: SetStartpoint) -> SetAnswer:
        places = self._places(request)
        keys = list(dict.fromkeys(StartpointKey(one.input.kept_as, one.partition, request.task) for one in places))
        self._check(request, len({key.partition for key in keys}))
        with closing(Connections()) as connections:
            resolving = _Resolving(self.inputs, self._committed(), connections)
            moves = tuple(resolving.move(place, request.startpoint) for place in places)
        self._check_not_empty(request.startpoint, moves)
        notes = self._notes(request, moves)
        if request.dry_run:
            return SetAnswer(moves=moves, notes=notes)
        now_ms = self._clock.now_ms()
        points = {
            key: msgspec.structs.replace(request.startpoint, id=uuid.uuid4().hex, created_ms=now_ms) for key in keys
        }
        replaced = self.book.write(points, now_ms, by=request.by or UNNAMED, note=request.note)
        ids = {point.id for point in points.values()}
        written = tuple(state for state in self.book.states() if state.startpoint.id in ids)
        return SetAnswer(moves=moves, written=written, replaced=tuple(replaced.values()), notes=notes)

    def delete(self, target: StartpointTarget, *, live: bool) -> StartpointList:
        names = {one.kept_as for one in self._named(target.input)} or {target.input}

        def wanted(key: StartpointKey) -> bool:
            fits = target.partition in (None, key.partition) and target.task in (None, key.task)
            return key.stream in names and fits

        gone = self.book.delete(wanted, self._clock.now_ms(), live=live)
        return StartpointList(app=self.inputs.app, startpoints=tuple(gone))

    def all(self) -> StartpointList:
        return StartpointList(app=self.inputs.app, startpoints=tuple(self.book.states(done=True)))

    # -- for the coordinator: only one thread at a time uses these
    def fan_out(self) -> list[TaskName]:
        found = self.book.fan_out(lambda present: fan_out(present, self._partitions, self._clock.now_ms()))
        app = self.inputs.app
        for state in (*found.kept, *found.ordered):
            where = f"{state.stream}[{state.partition}]"
            if state.state == "failed":
                _log.warning("a startpoint can't be applied", app=app, where=where, reason=state.reason or "")
            else:
                _log.info("a task gets a startpoint", app=app, task=state.task or "", where=where)
        for state in found.done:
            _log.info("a startpoint was replaced", app=app, where=f"{state.stream}[{state.partition}]")
        new = (one for one in self.book.states() if one.state == "ordered" and one.generation is None)
        return sorted({TaskName.parse(state.task) for state in new if state.task is not None})

    def grant(self, tasks: Mapping[TaskName, int]) -> dict[TaskName, tuple[Order, ...]]:
        if not tasks:
            return {}
        found = self.book.grant({str(task): generation for task, generation in tasks.items()})
        return {TaskName.parse(task): orders for task, orders in found.items()}

    def note(self, task: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            order = outcome.order
            where = f"{order.stream}[{order.partition}]"
            if self.book.note(task, outcome, self._clock.now_ms()) is None:
                _log.info("ignoring a report about a finished startpoint", task=task, where=where, state=outcome.state)
            elif outcome.state == "failed":
                _log.warning("a startpoint can't be applied", task=task, where=where, reason=outcome.reason or "")
            else:
                facts = {"offset": outcome.offset, "version": outcome.version}
                known = {name: value for name, value in facts.items() if value is not None}
                _log.info(f"a startpoint was {outcome.state}", task=task, where=where, **known)

    def _named(self, name: str) -> list[AppInput]:
        if any(state.stream == name for state in self.book.states()):
            return [one for one in self.inputs.inputs if one.kept_as == name]
        return self.inputs.named(name)

    def _places(self, target: StartpointTarget) -> list[_InputPlace]:
        inputs = self.inputs.named(target.input)
        most = max(one.partitions for one in inputs)
        if target.partition is not None and not 0 <= target.partition < most:
            what = f"input {target.input!r} has no partition {target.partition}; its partitions are 0 to {most - 1}"
            raise UsageError(what, hint=f"write {target.input}/0, or {target.input} for all partitions")
        places = [
            _InputPlace(one, partition, task)
            for one in inputs
            for partition in range(one.partitions)
            if target.partition in (None, partition)
            for task in one.readers(partition)
        ]
        if target.task is None:
            return places
        found = [place for place in places if place.task == target.task]
        if not found:
            which = target.input if target.partition is None else f"{target.input}/{target.partition}"
            tasks = list(dict.fromkeys(place.task for place in places))
            shown = ", ".join(tasks[:8]) + (f" and {len(tasks) - 8} more" if len(tasks) > 8 else "")
            hint = f"the tasks that do: {shown}"
            raise UsageError(f"task {target.task!r} of app {self.inputs.app!r} doesn't read {which}", hint=hint)
        return found

    def _check(self, request: SetStartpoint, partitions: int) -> None:
        point = request.startpoint
        for name, text in (("note", request.note), ("by", request.by)):
            if len(text) > NOTE_MAX or not text.isprintable():
                what = f"{name}={text[:60]!r}...: it must be one line of at most {NOTE_MAX} characters"
                raise UsageError(what, hint="write a short reason, such as a ticket's number")
        if isinstance(point, StartpointSpecific):
            if point.offset < 0:
                raise UsageError(f"{point.offset} isn't an offset", hint="use an integer of at least 0")
            self._check_one_partition(request, partitions, "name the partition")
        if isinstance(point, StartpointTimestamp):
            check_past(point.time_ms, self._clock.now_ms())
        self._check_end(request, partitions)
        if isinstance(point, StartpointCustom):
            kind = next((one for one in self.inputs.customs if one.kind == point.name), None)
            if kind is not None:
                as_custom(kind, point.value)

    def _check_end(self, request: SetStartpoint, partitions: int) -> None:
        point, end, now_ms = request.startpoint, request.startpoint.until, self._clock.now_ms()
        if isinstance(point, StartpointUpcoming) and end is not UNSET:
            what = "a startpoint at the upcoming message can't have an end: nothing is there to be read up to it"
            raise UsageError(what, hint="leave out until, or begin at an offset, a time or the oldest message")
        if isinstance(end, EndOffset):
            self._check_one_partition(request, partitions, "give a time for the end, or name the partition")
        if not isinstance(end, EndTime):
            return
        if end.time_ms > now_ms:
            raise UsageError(
                f"the end, {utc_text(end.time_ms)}, is in the future: now is {utc_text(now_ms)}",
                hint="give an end up to now; without until, the task reads all that follows. Times without a zone are "
                "UTC",
            )
        if isinstance(point, StartpointTimestamp) and end.time_ms <= point.time_ms:
            what = f"the end, {utc_text(end.time_ms)}, isn't after the start, {utc_text(point.time_ms)}"
            raise UsageError(what, hint="give an end that is later than the start")

    def _check_one_partition(self, request: SetStartpoint, partitions: int, hint: str) -> None:
        if partitions > 1:
            what = f"input {request.input!r} has {partitions} partitions, each with its own offsets"
            raise UsageError(what, hint=f"{hint}, as in {request.input}/0")

    def _check_not_empty(self, point: Startpoint, moves: Sequence[Move]) -> None:
        if point.until is not UNSET and all(move.until_offset == move.to_offset is not None for move in moves):
            hint = "headrace offsets shows the offsets and times of what the input holds"
            raise UsageError(f"no message of {moves[0].input!r} lies in {in_words(point)}", hint=hint)

    def _notes(self, request: SetStartpoint, moves: Sequence[Move]) -> tuple[str, ...]:
        notes: list[str] = []
        if any(move.direction == "unknown" and move.to_offset is None for move in moves):
            notes.append(UNRESOLVED)
        if any(_may_repeat(move) for move in moves):
            notes += [AGAIN, *([CLOSED_WINDOWS] if self.inputs.timed else [])]
        if not request.apply and not request.dry_run:
            notes.append(LATER)
        return tuple(notes)


def _direction(start: Offset | None, to: Offset) -> Literal["back", "ahead", "same", "unknown"]:
    """Return the direction of a move. Between a number of rows and a moment it is unknown, except for the oldest."""
    if start is None or (is_moment(to) and not is_moment(start) and to != MOMENTS):
        return "unknown"
    if is_moment(to) and not is_moment(start):
        return "back"
    return "same" if to == start else "back" if to < start else "ahead"


def _may_repeat(move: Move) -> bool:
    return (move.direction in {"back", "again"} and move.messages != 0) or (
        move.direction == "unknown" and move.committed and move.to_offset is not None
    )


class _Resolving:
    def __init__(self, inputs: AppInputs, committed: Committed, connections: Connections) -> None:
        self._inputs = inputs
        self._committed = committed
        self._connections = connections
        self._offsets: dict[tuple[str, int], Offset] = {}

    def move(self, place: _InputPlace, point: Startpoint) -> Move:
        one = place.input
        self._check_not_ended(place)
        spec = self._inputs.system(one)
        here = partial(Move, input=one.id, stream=one.stream, partition=place.partition, task=place.task)
        found = found_in(self._committed(place.task), one, place.partition)
        position = None if found is None else found.offset
        inputs = self._inputs
        # A custom one may be resolvable only by the app's program, which isn't here.
        away = isinstance(point, StartpointCustom) and not inputs.declared and point.name in inputs.kinds
        if spec is None or away:
            return here(direction="unknown", from_offset=position, committed=position is not None)
        admin = self._connections.admin(spec)
        ssp = one.ssp(place.partition)
        key = one.stream, place.partition
        if key not in self._offsets:
            self._offsets[key] = resolve(point, ssp, admin, self._inputs.customs)
        to = self._offsets[key]
        # Without a commit, the task begins at the oldest message, or where the end is then.
        default = extent_of(ssp, admin).oldest if position is None and one.start == "oldest" else None
        start = default if position is None else position
        until = None if point.until is UNSET else resolve_end(point.until, to, ssp, admin)
        near, far = (to, until) if until is not None else (start, to)
        between = Distance(None, None)
        if near is not None:
            between = distance(self._connections, spec, ssp, min(near, far), max(near, far))
        return here(
            direction=_direction(start, to) if until is None else "again",
            from_offset=start,
            to_offset=to,
            until_offset=until,
            committed=position is not None,
            messages=between.messages,
            bytes=between.size,
            from_ms=None if start is None else admin.time_of(ssp, start),
            to_ms=admin.time_of(ssp, to),
        )

    def _check_not_ended(self, place: _InputPlace) -> None:
        checkpoint = self._committed(place.task)
        if checkpoint is not None and checkpoint.ended:
            raise UsageError(
                f"task {place.task} of app {self._inputs.app!r} has ended: its inputs have, and it has processed them",
                hint="to read them again, start the app under another name, or restore a savepoint",
            )
