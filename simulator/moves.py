"""The judge of startpoints: what the book has to hold, and what each source partition's committed history has to be.

The history of a source partition in one task is made of stretches. The first begins where the task begins without a
startpoint; each other one where one startpoint said, in the order in which these were written. Within a stretch each
commit goes on where the last one stopped. Which startpoint begins a stretch follows from what the coordinator was told
by the generation that commits, and not from what the commit says of itself.

The book's contents are worked out here a second time, and compared after everything that changes it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from headrace.core.errors import HeadraceError
from headrace.core.frame import Kind, decode_header
from headrace.core.ids import SSP, Offset, TaskName
from headrace.life.startpoints import FanOut, StartpointBook, StartpointKey, StartpointState, UnfinishedStartpoints
from headrace.protocol.record import CommitRecord, SourceEntry
from headrace.systems.startpoints import (
    EndOffset,
    Order,
    Outcome,
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
)
from headrace.task.event_time import decode_times
from simulator.sources import SourceLog
from simulator.storage import STEP
from simulator.world import World

Fail = Callable[[object, str], Any]


@dataclass(frozen=True)
class Written:
    """A startpoint as the user wrote it, with its number."""

    number: int
    key: StartpointKey
    point: Startpoint

    @property
    def named(self) -> bool:
        """It is for one task."""
        return self.key.task is not None


@dataclass(frozen=True)
class Place:
    """A source partition, and which message is in the frame at an offset (None: one that isn't accounted for)."""

    ssp: SSP
    log: SourceLog
    message_at: Callable[[Offset], int]
    first: Offset
    """Where tasks begin."""

    def after(self, start: Offset) -> list[int]:
        """The messages that whoever begins at ``start`` is to get, in order: those of another app once they count."""
        return [self.message_at(offset) for offset in self._counting(start)[0]]

    def between(self, start: Offset, until: Offset) -> tuple[list[int], bool]:
        """Those of them before ``until``, and whether there can't be more: all are there, and it is known what counts.

        The end of the partition decides, too.
        """
        found, held = self._counting(start)
        open_ = [offset for offset in held if offset < until]
        return [self.message_at(offset) for offset in found if offset < until], not open_ or self.log.ended

    def _counting(self, start: Offset) -> tuple[list[Offset], list[Offset]]:
        """Where they are, and where those are that may count one day."""
        found: list[Offset] = []
        held: list[Offset] = []
        for offset in range(start, self.log.end, STEP):
            header = decode_header(self.log.read(offset))
            if header.kind is Kind.CHECKPOINT:
                found += held
                held.clear()
            elif header.kind is Kind.RESTORE:
                held.clear()
            else:
                (held if header.producer else found).append(offset)
        return found, held

    def meant_by(self, point: Startpoint) -> tuple[Offset, Offset | None] | None:
        """The offset that a startpoint means now, and its end; None if it can't be applied."""
        start, end = self._start(point), point.until
        if start is None or end is UNSET:
            return None if start is None else (start, None)
        log = self.log
        if isinstance(end, EndOffset):
            return (start, end.offset) if log.oldest <= end.offset <= log.end and end.offset > start else None
        late = [at for at in range(log.oldest, log.end, STEP) if log.arrived_at(at) >= end.time_ms]
        until = late[0] if late else log.end
        return (start, until) if until >= start else None

    def _start(self, point: Startpoint) -> Offset | None:
        log = self.log
        match point:
            case StartpointSpecific(offset=offset):
                return offset if log.oldest <= offset <= log.end and not offset % STEP else None
            case StartpointOldest():
                return log.oldest
            case StartpointUpcoming():
                return log.end
            case StartpointTimestamp(time_ms=time_ms):
                late = [at for at in range(log.oldest, log.end, STEP) if log.arrived_at(at) >= time_ms]
                if late and late[0] == log.oldest > 0 and time_ms < int(log.arrived_at(log.oldest)):
                    return None  # what was there at that time is gone
                if log.oldest == log.end > 0 and time_ms <= int(log.arrived_at(log.end - STEP)):
                    return None  # as above, and nothing is left
                return late[0] if late else log.end
            case _:
                raise AssertionError(f"nobody writes {point}")


@dataclass
class Stretch:
    """What has been committed since a partition was moved last; ``by`` is the startpoint (None: the beginning).

    With ``until``, the messages from ``start`` up to there come first, and then those that are left from ``before`` on,
    behind the first ``known``.
    """

    start: Offset
    by: Written | None = None
    read: list[int] = field(default_factory=list)
    until: Offset | None = None
    before: Offset = 0
    known: int = 0

    def wanted(self, place: Place) -> list[int]:
        """What is to be read, as far as it has come."""
        if self.until is None:
            return place.after(self.start)
        first, whole = place.between(self.start, self.until)
        return first + place.after(self.before)[self.known :] if whole else first

    def left(self, place: Place) -> tuple[Offset, int]:
        """Where it is without its detour: from where on, and how many messages of that are read."""
        if self.until is None:
            return self.start, len(self.read)
        first, whole = place.between(self.start, self.until)
        return self.before, self.known + (max(0, len(self.read) - len(first)) if whole else 0)


class Moves:
    """Judges the startpoints of one run."""

    def __init__(self, world: World, fail: Fail, partitions: Mapping[tuple[str, int], Sequence[str]]) -> None:
        self.readers = partitions
        self.counts: Counter[str] = Counter()
        """How often what has happened."""
        self.covered: dict[tuple[str, str], Written] = {}
        """What a commit of a task includes, by task and id."""
        self.failing: set[str] = set()
        """The tasks that rightly couldn't apply one."""
        self._world = world
        self._fail = fail
        self._places: dict[tuple[str, int], Place] = {}
        self._partition_of: dict[int, tuple[str, int]] = {}
        self._written: dict[str, Written] = {}
        self._pending: dict[StartpointKey, Written] = {}
        self._orders: dict[StartpointKey, Written] = {}
        self._deleted: set[tuple[str, str]] = set()
        self._meaning: dict[tuple[str, str], tuple[Offset, Offset | None]] = {}
        self._applied: dict[tuple[str, int], dict[tuple[str, int], Written]] = defaultdict(dict)
        self._granted: dict[tuple[str, int], tuple[Order, ...]] = {}
        self._told: dict[tuple[str, int], int] = {}
        """How often generations that have to start over have committed since they know."""
        self._committed: dict[tuple[str, str, int], Offset] = {}
        """Where each task goes on in each partition, as its last commit says."""
        self._newest: dict[str, int] = {}
        """The last generation of each task."""
        self._stretches: dict[tuple[str, str, int], Stretch] = {}
        self._ended: dict[str, set[tuple[str, int]]] = defaultdict(set)

    def keep(self, book: StartpointBook) -> None:
        """This is the book."""
        self._book = book

    def place(self, name: tuple[str, int], place: Place) -> None:
        """A source partition exists, under the name that positions in it have."""
        self._places[name] = place
        for offset in place.log.all_offsets:
            if decode_header(place.log.read(offset)).kind is Kind.USER:
                self._partition_of[place.message_at(offset)] = name

    def log_of(self, key: StartpointKey) -> SourceLog | None:
        """The source partition that a key is for, if there is one."""
        place = self._places.get((key.stream, key.partition))
        return None if place is None else place.log

    def is_source(self, message: int) -> bool:
        """The message is in a source that may be moved: it may be read again, or never."""
        return message in self._partition_of

    def needed(self, name: tuple[str, int]) -> Offset:
        """Nothing at or behind this is to be given up: somebody may go on there, or has been told to."""
        places = [self._committed.get((task, *name), self._places[name].first) for task in self.readers[name]]
        for (task, id_), (offset, _) in self._meaning.items():
            key = self._written[id_].key
            if (key.stream, key.partition) == name and (task, id_) not in self.covered:
                places.append(offset)
        return min(places)

    def told(self, task: str, generation: int) -> None:
        """A task knows that this generation has to start over: after the next commit, which may be under way."""
        self._told.setdefault((task, generation), 0)

    # -- what users do

    def wrote(self, points: Mapping[StartpointKey, Startpoint]) -> None:
        """These are written now."""
        for key, point in points.items():
            self._pending[key] = self._written[point.id] = Written(len(self._written), key, point)
            self.counts["written"] += 1
        self._compare()

    def deleted(self, states: Iterable[StartpointState]) -> None:
        """These are deleted now."""
        for state in states:
            key, id_ = state.key, state.startpoint.id
            for kept in (self._pending, self._orders):
                if key in kept and kept[key].point.id == id_:
                    del kept[key]
            for task in self._tasks(key):
                if (task, id_) not in self._meaning:
                    self._deleted.add((task, id_))
            self.counts["deleted"] += 1
        self._compare()

    def unapplied(self) -> dict[StartpointKey, Written]:
        """What tasks have yet to apply, or to release."""
        return dict(self._orders)

    # -- what the coordinator does

    def fanned_out(self, since: int) -> None:
        """The coordinator has fanned out. It can't have seen what was written meanwhile, from number ``since`` on."""
        there = self._present().written
        taken = [written for key, written in self._pending.items() if key not in there]
        for key in self._pending.keys() & there.keys():
            if self._pending[key].number < since and self._tasks(key):
                self._fail("coordinator", f"the fan-out has left {self._pending[key]} out")
        for written in sorted(taken, key=lambda one: not one.named):
            del self._pending[written.key]
            tasks = self._tasks(written.key)
            if not tasks:
                self._fail("coordinator", f"the fan-out has lost {written}, which no task reads")
            for task in tasks:
                key = StartpointKey(written.key.stream, written.key.partition, task)
                old = self._orders.get(key)
                own = old is not None and old.named and (task, old.point.id) not in self._meaning
                if written.named or not own:
                    self._orders[key] = written
                    self.counts["replaced"] += old is not None
                else:
                    self.counts["passed over"] += 1
        self._compare()

    @property
    def written_so_far(self) -> int:
        """How many there are."""
        return len(self._written)

    def granted(self, grants: Mapping[TaskName, int], orders: Mapping[TaskName, Sequence[Order]]) -> None:
        """Generations are granted to tasks, with these orders."""
        self._compare()
        for task, generation in grants.items():
            found = {(order.stream, order.partition): order.startpoint.id for order in orders.get(task, ())}
            wanted = {(k.stream, k.partition): w.point.id for k, w in self._orders.items() if k.task == str(task)}
            if found != wanted:
                self._fail(task, f"generation {generation} is granted the startpoints {found}, not {wanted}")
            self._granted[str(task), generation] = tuple(orders.get(task, ()))
            self._newest[str(task)] = max(generation, self._newest.get(str(task), 0))
            self.counts["granted"] += len(found)

    def refused(self, task: str, outcome: Outcome) -> None:
        """A task may not apply a startpoint."""
        if (task, outcome.order.startpoint.id) not in self._deleted:
            self._fail(task, f"may not say what has happened to {outcome.order}")

    def noted(self, task: str, outcome: Outcome) -> None:
        """A task has reported what has happened to a startpoint."""
        written = self._written[outcome.order.startpoint.id]
        if outcome.generation != self._newest[task]:
            self._fail(task, f"generation {outcome.generation} may report no more, {self._newest[task]} is granted")
        self.counts[outcome.state] += 1
        if outcome.state == "applied":
            self._note_applied(task, written, outcome)
        elif outcome.state == "released":
            if (task, written.point.id) not in self.covered:
                self._fail(task, f"{written} is released, but no commit that counts covers it")
            key = StartpointKey(written.key.stream, written.key.partition, task)
            if self._orders.get(key) is written:
                del self._orders[key]
        else:
            self._note_failed(task, written)
        self._compare()

    def _note_applied(self, task: str, written: Written, outcome: Outcome) -> None:
        order, offset = outcome.order, outcome.offset
        if (task, written.point.id) in self.covered:
            self._fail(task, f"applies {written} again, which a commit covers")
        if (task, written.point.id) in self._deleted:
            self._fail(task, f"applies {written}, which was deleted")
        place = self._places[order.stream, order.partition]
        assert offset is not None
        self.counts["applied again"] += (task, written.point.id) in self._meaning
        meant = offset, None if outcome.until is UNSET else outcome.until
        meaning = self._meaning.setdefault((task, written.point.id), meant)
        if meaning != meant:
            self._fail(task, f"{written} means {meant} in {place.ssp} now; it was {meaning} at first")
        if order.offset is None and meant != place.meant_by(written.point):
            self._fail(task, f"{written} means {place.meant_by(written.point)} in {place.ssp}, and not {meant}")
        self._applied[task, outcome.generation][order.stream, order.partition] = written

    def _note_failed(self, task: str, written: Written) -> None:
        name = written.key.stream, written.key.partition
        if name not in self._ended[task] and self._places[name].meant_by(written.point) is not None:
            self._fail(task, f"can't apply {written}, and should")
        self.failing.add(task)

    def stops(self, tasks: Iterable[str], error: HeadraceError) -> bool:
        """Whether one of these tasks may stop with this error, because it can't apply what it was ordered."""
        return not self.failing.isdisjoint(tasks) and "can't apply startpoint" in error.message

    # -- what commits say

    def committed(self, task: TaskName, record: CommitRecord, consumed: Sequence[int]) -> None:
        """A commit of a task counts, in which it has processed these messages."""
        read: dict[tuple[str, int], list[int]] = defaultdict(list)
        for message in consumed:
            if message in self._partition_of:
                read[self._partition_of[message]].append(message)
        entries = {(entry.stream, entry.partition): entry for entry in record.sources}
        applied = self._applied.get((str(task), record.generation), {})
        for name, readers in self.readers.items():
            if str(task) not in readers or name not in self._places:
                continue
            stretch = self._stretch(str(task), name, applied.get(name))
            self._go_on(task, record, name, stretch, read[name])
            self._check_detour(task, record, entries.get(name), stretch)
            said = entries[name].startpoint if name in entries else None
            wanted = stretch.by.point.id if stretch.by is not None else ""
            if (said or "") != wanted:
                self._fail(task, f"commit {record.version} names the startpoint {said!r} of {name}, not {wanted!r}")
        for order in self._granted.get((str(task), record.generation), ()):
            if (str(task), order.startpoint.id) not in self.covered:
                self._fail(task, f"commit {record.version} of g{record.generation} doesn't cover {order}")
        life = str(task), record.generation
        if life in self._told:
            self._told[life] += 1
            if self._told[life] > 1 and not record.ended:
                self._fail(task, f"g{record.generation} commits again, and should have started over")
        self._committed |= {
            (str(task), *name): entry.offset if entry.detour is UNSET else min(entry.offset, entry.detour.offset)
            for name, entry in entries.items()
            if entry.offset is not None
        }
        times = decode_times(record.bookkeeping)
        self._ended[str(task)] |= {(time.stream_id, time.partition) for time in times.partitions if time.progress.ended}

    def _stretch(self, task: str, name: tuple[str, int], applied: Written | None) -> Stretch:
        """The stretch that a commit belongs to: a new one if its generation was moved, and hasn't committed yet."""
        place = self._places[name]
        stretch = self._stretches.setdefault((task, *name), Stretch(place.first))
        if applied is None or (task, applied.point.id) in self.covered:
            return stretch
        if stretch.by is not None and applied.number < stretch.by.number:
            self._fail(task, f"{applied} was written before {stretch.by}, and is applied after it")
        if (task, applied.point.id) in self._deleted:
            self._fail(task, f"a commit covers {applied}, which was deleted before it was applied")
        self.covered[task, applied.point.id] = applied
        self.counts["covered"] += 1
        start, until = self._meaning[task, applied.point.id]
        new = self._stretches[(task, *name)] = Stretch(start, applied, [], until, *stretch.left(place))
        self.counts["detours"] += until is not None
        self.counts["detours on detours"] += until is not None and stretch.until is not None
        return new

    def _check_detour(self, task: TaskName, record: CommitRecord, entry: SourceEntry | None, stretch: Stretch) -> None:
        """A commit says that a detour is under way if what it was for isn't read yet."""
        place = self._places[entry.stream, entry.partition] if entry is not None else None
        if entry is None or place is None:
            return
        if entry.detour is not UNSET:
            self.counts["commits on detours"] += 1
            if entry.detour.until != stretch.until:
                self._fail(task, f"commit {record.version} is on {entry.detour}, and should end at {stretch.until}")
        elif stretch.until is not None:
            first, whole = place.between(stretch.start, stretch.until)
            if not whole or len(stretch.read) < len(first):
                self._fail(task, f"commit {record.version} isn't on the detour of {stretch} any more")
            self.counts["commits behind detours"] += 1

    def _go_on(
        self, task: TaskName, record: CommitRecord, name: tuple[str, int], stretch: Stretch, read: list[int]
    ) -> None:
        wanted = stretch.wanted(self._places[name])
        begin = len(stretch.read)
        if wanted[begin : begin + len(read)] != read:
            self._fail(
                task,
                f"commit {record.version} of g{record.generation} goes on in {name} with {read}, and not with "
                f"{wanted[begin:]}; it has read {stretch.read} from {stretch.start} on, by {stretch.by}",
            )
        stretch.read += read

    # -- the end

    def missing(self, over: Callable[[str], bool]) -> str | None:
        """What has not been read, applied or released yet. ``over``: the task has ended, and can't apply anything."""
        for key, written in self._orders.items():
            assert key.task is not None
            if (key.task, written.point.id) in self.covered:
                return f"task {key.task} has not released {written}, which a commit covers"
            if not over(key.task):
                return f"task {key.task} has not applied {written}"
        for (task, *name), stretch in self._stretches.items():
            left = stretch.wanted(self._places[name[0], name[1]])[len(stretch.read) :]  # type: ignore[index]
            if left:
                return f"task {task} has not read {left} of {name}"
        return None

    # -- inside

    def _tasks(self, key: StartpointKey) -> list[str]:
        """The tasks that a startpoint of this key is for."""
        readers = self.readers.get((key.stream, key.partition), ())
        return [task for task in readers if key.task is None or key.task == task]

    def _present(self) -> UnfinishedStartpoints:
        """What is in the book."""
        found: list[UnfinishedStartpoints] = []

        def look(present: UnfinishedStartpoints) -> FanOut:
            found.append(present)
            return FanOut()

        self._book.fan_out(look)
        return found[-1]

    def _compare(self) -> None:
        present = self._present()
        for what, kept, wanted in (
            ("pending", present.written, self._pending),
            ("ordered", present.ordered, self._orders),
        ):
            have = {key: state.startpoint.id for key, state in kept.items()}
            want = {key: written.point.id for key, written in wanted.items()}
            if have != want:
                self._fail("book", f"{what} are {have}, and should be {want}")
