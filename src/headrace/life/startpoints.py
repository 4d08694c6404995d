"""The book of an app's startpoints in the metadata store: written, ordered, done. Samza's StartpointManager.

A user writes a startpoint under a partition of an input, or under that partition in one task. A fan-out turns it into
an order for each task that reads the partition, in one all-or-nothing write. A task is granted its orders with each
generation, until a commit covers them. The last ones that are done with are kept to be looked at.

A startpoint for a task takes precedence there until it is applied, so one without a task never overwrites it.
Otherwise a newer startpoint replaces an older one. One that fits nothing that the app reads is kept with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from headrace.core.clock import utc_text
from headrace.core.errors import FencedError, UnavailableError, UsageError
from headrace.core.files import decode_record
from headrace.core.ids import Offset
from headrace.core.log import logger
from headrace.life.metadata import Change, Delete, Entry, MetadataStore, Put
from headrace.systems.startpoints import Order, Outcome, Startpoint, in_words

FORMAT = 2
DONE_MAX = 100
_MOST_ATTEMPTS = 1000
_WRITTEN, _ORDERED, _DONE = "written/", "ordered/", "done/"

State = Literal["pending", "ordered", "applied", "failed", "released", "replaced", "deleted"]

_log = logger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class StartpointKey:
    """A partition of an input, named as tasks keep their positions in it, in one task or (None) in every reader."""

    stream: str
    partition: int
    task: str | None = None


class StartpointState(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A startpoint and its state. ``until`` and ``first``: see ``Order``. ``named``: the user wrote it for this task.

    *pending*: it waits for the next start. *ordered*: a task has to apply it, as this ``generation``; with an
    ``offset``, an earlier one has applied it, and ended before a commit. *applied*: ``generation`` reads from
    ``offset``; no commit covers it yet. *failed*: ``reason`` says why. *released*: a commit of ``version`` covers it.
    *replaced*: another one came before it was applied. *deleted*: by a user.
    """

    stream: str
    partition: int
    task: str | None = None
    startpoint: Startpoint
    state: State
    at_ms: int
    named: bool = False
    by: str = ""
    note: str = ""
    generation: int | None = None
    offset: Offset | None = None
    until: Offset | UnsetType = UNSET
    first: Offset | UnsetType = UNSET
    version: int | None = None
    reason: str | None = None

    @property
    def key(self) -> StartpointKey:
        """What it is for."""
        return StartpointKey(self.stream, self.partition, self.task)

    @property
    def in_words(self) -> str:
        """Return it for people: ``oldest for log.views[0] (pending), set by ann@laptop at ...: OPS-7``."""
        where = f"{self.stream}[{self.partition}]" + (f" in task {self.task}" if self.task else "")
        who = f"set by {self.by} at {utc_text(self.startpoint.created_ms)}"
        note = f": {self.note}" if self.note else ""
        return f"{in_words(self.startpoint)} for {where} ({self.state}), {who}{note}"

    @property
    def order(self) -> Order:
        """It as an order of its task; applied again, it means the same offset."""
        return Order(
            stream=self.stream,
            partition=self.partition,
            startpoint=self.startpoint,
            offset=self.offset,
            until=self.until,
            first=self.first,
        )


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    startpoint: StartpointState


_DECODER = msgspec.json.Decoder(_Record)


@dataclass(frozen=True, slots=True)
class UnfinishedStartpoints:
    """The contents of the book at one moment, by target; ``ordered`` always names a task."""

    written: Mapping[StartpointKey, StartpointState] = field(default_factory=dict)
    ordered: Mapping[StartpointKey, StartpointState] = field(default_factory=dict)


Partitions = Mapping[tuple[str, int], Sequence[str]]
"""The tasks that read each partition, by the name under which positions in the input are stored."""


@dataclass(frozen=True, slots=True)
class FanOut:
    """The changes of a fan-out: new orders, written ones that it removes or that have a problem, and replaced ones."""

    ordered: Sequence[StartpointState] = ()
    removed: Sequence[StartpointKey] = ()
    kept: Sequence[StartpointState] = ()
    done: Sequence[StartpointState] = ()

    def __bool__(self) -> bool:
        return bool(self.ordered or self.removed or self.kept or self.done)


class StartpointBook:
    """The startpoints of one app. Threads may share it, and any number of processes may have one."""

    def __init__(self, store: MetadataStore, app: str) -> None:
        self._store = store
        self._app = app
        self._namespace = f"startpoints/{app}"

    # -- for users
    def write(
        self, points: Mapping[StartpointKey, Startpoint], now_ms: int, *, by: str = "", note: str = ""
    ) -> dict[StartpointKey, StartpointState]:
        """Write startpoints, all or none; return those replaced. ``UnavailableError``: another command was faster."""
        there = self._store.scan(self._namespace, _WRITTEN)
        changes: list[Change] = []
        ended: list[StartpointState] = []
        for key, point in points.items():
            name, named = _written(key), key.task is not None
            new = StartpointState(
                **asdict(key), startpoint=point, state="pending", at_ms=now_ms, named=named, by=by, note=note
            )
            old = there.get(name)
            changes.append(_put(name, new, old))
            if old is not None:
                ended.append(msgspec.structs.replace(self._read(name, old), state="replaced", at_ms=now_ms))
        if not self._commit([*changes, *self._closing(ended)]):
            raise self._overtaken("written")
        return {state.key: state for state in ended}

    def read(self, key: StartpointKey) -> Startpoint | None:
        for name in (_written(key), *([] if key.task is None else [_ordered(key)])):
            entry = self._store.get(self._namespace, name)
            if entry is not None:
                return self._read(name, entry).startpoint
        return None

    def delete(self, wanted: Callable[[StartpointKey], bool], now_ms: int, *, live: bool) -> list[StartpointState]:
        """Delete those ``wanted``, all or none. ``live``: ``UsageError`` if a task has been told to apply one."""
        entries = self._unfinished()
        found = {name: state for name, state in self._states(entries).items() if wanted(state.key)}
        for state in found.values():
            if live and state.state in {"ordered", "applied"} and state.generation is not None:
                raise self._under_way(state)
        gone = [msgspec.structs.replace(state, state="deleted", at_ms=now_ms) for state in found.values()]
        changes: list[Change] = [Delete(name, entries[name].version) for name in found]
        if found and not self._commit([*changes, *self._closing(gone)]):
            raise self._overtaken("deleted")
        return gone

    def unfinished(self) -> UnfinishedStartpoints:
        return self._present(self._unfinished())

    def states(self, *, done: bool = False) -> list[StartpointState]:
        entries = self._store.scan(self._namespace)
        states = self._states({name: e for name, e in entries.items() if name.startswith((_WRITTEN, _ORDERED))})
        listed = sorted(states.values(), key=_by_key)
        if done:
            over = self._states({name: e for name, e in entries.items() if name.startswith(_DONE)})
            listed = [*sorted(over.values(), key=lambda state: state.at_ms), *listed]
        return listed

    def fan_out(self, decide: Callable[[UnfinishedStartpoints], FanOut]) -> FanOut:
        for _ in range(_MOST_ATTEMPTS):
            entries = self._unfinished()
            found = decide(self._present(entries))
            named = [(_ordered(state.key), state) for state in found.ordered]
            named += [(_written(state.key), state) for state in found.kept]
            changes: list[Change] = [_put(name, state, entries.get(name)) for name, state in named]
            changes += [Delete(name, entries[name].version) for name in map(_written, found.removed)]
            if not changes or self._commit([*changes, *self._closing(found.done)]):
                return found
            _log.info("the startpoints changed during the fan-out; trying again", app=self._app)
        raise self._overtaken("fanned out")

    def grant(self, tasks: Mapping[str, int]) -> dict[str, tuple[Order, ...]]:
        for _ in range(_MOST_ATTEMPTS):
            entries = self._store.scan(self._namespace, _ORDERED)
            mine = {name: state for name, state in self._states(entries).items() if state.task in tasks}
            changes = [_put(name, _told(state, tasks[str(state.task)]), entries[name]) for name, state in mine.items()]
            if not changes or self._commit(changes):
                states = sorted(mine.values(), key=_by_key)
                return {task: tuple(state.order for state in states if state.task == task) for task in tasks}
        raise self._overtaken("granted")

    def note(self, task: str, outcome: Outcome, now_ms: int) -> StartpointState | None:
        """Note what happened to an order; return it, None if replaced. ``FencedError``: a user has deleted it."""
        order = outcome.order
        key = StartpointKey(order.stream, order.partition, task)
        name = _ordered(key)
        for _ in range(_MOST_ATTEMPTS):
            entry = self._store.get(self._namespace, name)
            state = None if entry is None else self._read(name, entry)
            if entry is None or state is None or state.startpoint.id != order.startpoint.id:
                self._check_not_deleted(task, outcome)
                return None
            new = msgspec.structs.replace(
                state,
                state=outcome.state,
                generation=outcome.generation,
                offset=state.offset if outcome.offset is None else outcome.offset,
                until=state.until if outcome.until is UNSET else outcome.until,
                first=state.first if outcome.first is UNSET else outcome.first,
                version=outcome.version,
                reason=outcome.reason,
                at_ms=now_ms,
            )
            changes: list[Change] = [_put(name, new, entry)]
            if outcome.state == "released":
                changes = [Delete(name, entry.version), *self._closing([new])]
            if self._commit(changes):
                return new
        raise self._overtaken("noted")

    def _check_not_deleted(self, task: str, outcome: Outcome) -> None:
        id_ = outcome.order.startpoint.id
        done = self._store.get(self._namespace, _done(id_, task))
        if outcome.state == "applied" and done is not None and self._read(id_, done).state == "deleted":
            raise FencedError(
                f"task {task} of app {self._app!r} was about to apply a startpoint for {outcome.order.stream}"
                f"[{outcome.order.partition}] that has been deleted",
                hint="wait: the task starts again without it",
            )

    def _unfinished(self) -> dict[str, Entry]:
        entries = self._store.scan(self._namespace)
        return {name: entry for name, entry in entries.items() if name.startswith((_WRITTEN, _ORDERED))}

    def _present(self, entries: Mapping[str, Entry]) -> UnfinishedStartpoints:
        states = self._states(entries)
        return UnfinishedStartpoints(
            {state.key: state for name, state in states.items() if name.startswith(_WRITTEN)},
            {state.key: state for name, state in states.items() if name.startswith(_ORDERED)},
        )

    def _states(self, entries: Mapping[str, Entry]) -> dict[str, StartpointState]:
        return {name: self._read(name, entry) for name, entry in entries.items()}

    def _closing(self, ended: Iterable[StartpointState]) -> list[Change]:
        new = {_done(state.startpoint.id, state.task): state for state in ended}
        if not new:
            return []
        there = self._store.scan(self._namespace, _DONE)
        ages = {name: self._read(name, entry).at_ms for name, entry in there.items() if name not in new}
        surplus = sorted(ages, key=lambda name: ages[name])[: max(0, len(ages) + len(new) - DONE_MAX)]
        changes: list[Change] = [_put(name, state, there.get(name)) for name, state in new.items()]
        return [*changes, *(Delete(name, there[name].version) for name in surplus)]

    def _commit(self, changes: Sequence[Change]) -> bool:
        return self._store.write(self._namespace, changes) is not None

    def _read(self, name: str, entry: Entry) -> StartpointState:
        where = f"the startpoint {name!r} of app {self._app!r} in the metadata store"
        return decode_record(_DECODER, entry.value, where, FORMAT).startpoint

    def _under_way(self, state: StartpointState) -> UsageError:
        done = (
            "is about to apply it"
            if state.state == "ordered"
            else f"has applied it: generation {state.generation} reads from offset {state.offset}"
        )
        what = f"the startpoint of {state.stream}[{state.partition}] can't be deleted: task {state.task} {done}"
        return UsageError(what, hint="to read from elsewhere, set another one with --apply; or stop the app first")

    def _overtaken(self, what: str) -> UnavailableError:
        return UnavailableError(
            f"another command changed the startpoints of app {self._app!r} while they were {what}; this command "
            "changed nothing",
            hint="look at them with headrace startpoint list, and try again",
        )


@dataclass(slots=True)
class _Orders:
    before: Mapping[StartpointKey, StartpointState]
    now_ms: int
    new: dict[StartpointKey, StartpointState] = field(default_factory=dict)
    done: list[StartpointState] = field(default_factory=list)

    def give(self, task: str, point: StartpointState) -> None:
        key = StartpointKey(point.stream, point.partition, task)
        if (old := self.new.get(key) or self.before.get(key)) is not None:
            self.done.append(msgspec.structs.replace(old, state="replaced", at_ms=self.now_ms))
        self.new[key] = msgspec.structs.replace(point, task=task, state="ordered", at_ms=self.now_ms, reason=None)

    def yields(self, task: str, point: StartpointState) -> bool:
        """Whether a startpoint without a task may go to this one: not over an unapplied one that names it."""
        key = StartpointKey(point.stream, point.partition, task)
        old = self.new.get(key) or self.before.get(key)
        return old is None or not old.named or old.offset is not None

    def pass_over(self, task: str, point: StartpointState) -> None:
        reason = f"task {task} has a startpoint of its own"
        self.done.append(msgspec.structs.replace(point, task=task, state="replaced", at_ms=self.now_ms, reason=reason))


def fan_out(present: UnfinishedStartpoints, partitions: Partitions, now_ms: int) -> FanOut:
    orders = _Orders(present.ordered, now_ms)
    removed: list[StartpointKey] = []
    kept: list[StartpointState] = []
    # Startpoints that name a task come first, so that the others find them.
    for key, point in sorted(present.written.items(), key=lambda item: (item[0].task is None, _by_key(item[0]))):
        reason = _misfit(key, partitions)
        if reason is not None:
            if point.reason != reason:
                kept.append(msgspec.structs.replace(point, state="failed", reason=reason, at_ms=now_ms))
            continue
        removed.append(key)
        if key.task is not None:
            orders.give(key.task, point)
            continue
        for task in partitions[key.stream, key.partition]:
            if orders.yields(task, point):
                orders.give(task, point)
            else:
                orders.pass_over(task, point)
    stranded = [
        msgspec.structs.replace(old, state="failed", reason=reason, at_ms=now_ms)
        for key, old in present.ordered.items()
        if key not in orders.new and (reason := _misfit(key, partitions)) is not None and old.reason != reason
    ]
    return FanOut([*orders.new.values(), *stranded], removed, kept, orders.done)


def next_orders(present: UnfinishedStartpoints, partitions: Partitions) -> dict[StartpointKey, StartpointState]:
    written = {state.startpoint.id: state for state in present.written.values()}
    due = [*present.ordered.values(), *fan_out(present, partitions, 0).ordered]
    return {state.key: written.get(state.startpoint.id, state) for state in due}


def _misfit(key: StartpointKey, partitions: Partitions) -> str | None:
    readers = partitions.get((key.stream, key.partition))
    if readers is None:
        numbers = sorted(partition for stream, partition in partitions if stream == key.stream)
        if not numbers:
            return f"the app reads no input {key.stream!r}; delete the startpoint, or start the app that reads it"
        return f"{key.stream} has no partition {key.partition}, only 0 to {numbers[-1]}; delete the startpoint"
    if key.task is not None and key.task not in readers:
        return (
            f"task {key.task} doesn't read {key.stream}[{key.partition}]; what reads it: {', '.join(readers)}; "
            "delete the startpoint"
        )
    return None


def _told(state: StartpointState, generation: int) -> StartpointState:
    # A failed order remains so until the task has tried again.
    now = state.state if state.state == "failed" else "ordered"
    return msgspec.structs.replace(state, state=now, generation=generation)


def _put(name: str, state: StartpointState, old: Entry | None) -> Put:
    return Put(name, msgspec.json.encode(_Record(startpoint=state)), None if old is None else old.version)


def _by_key(one: StartpointKey | StartpointState) -> tuple[str, int, str]:
    return one.stream, one.partition, one.task or ""


def _written(key: StartpointKey) -> str:
    name = f"{_WRITTEN}{quote(key.stream, safe='')}/{key.partition}"
    return name if key.task is None else f"{name}/{quote(key.task, safe='')}"


def _ordered(key: StartpointKey) -> str:
    return f"{_ORDERED}{quote(str(key.task), safe='')}/{quote(key.stream, safe='')}/{key.partition}"


def _done(id_: str, task: str | None) -> str:
    return f"{_DONE}{id_}/{quote(task or '', safe='')}"
