"""Run an app in a test: the real plan, tasks and operators, in memory, on a clock that only the test moves.

    with app.test() as t:
        t.feed("page-views", [{"member": "a", "ts": 1_000}, {"member": "b", "ts": 12_000}])
        t.end()
        assert t.read("views-per-member").sort("member").to_dicts() == [...]

Supported: every operator and guarantee that a live run has; several stages; restarts; event time and its idle
timeouts, by ``advance``. Not supported: real systems, several processes, and measuring speed.

The preview of a flow is a test run of the steps up to there, over the first rows of the app's inputs. Nothing of it
is durable. Rows are read where that leaves no trace: in logs, files and DataFrames of Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any, Self, cast

import polars as pl

from headrace.api.app import Declarations
from headrace.api.draft import Draft, cut_behind
from headrace.api.specs import Graph, Role, StreamSpec
from headrace.coordinator.messages import SetStartpoint
from headrace.coordinator.startpoints import StartpointService
from headrace.core.clock import Duration, ManualClock, WallClock, to_ms
from headrace.core.errors import HeadraceError, StreamSealedError, UsageError
from headrace.core.files import readable
from headrace.core.frame import END_VERSION, Header, Kind, body_of, decode_control, decode_header, encode
from headrace.core.ids import SSP, StreamId, TaskName
from headrace.life.inputs import inputs_of
from headrace.life.metadata import MemoryMetadata
from headrace.life.startpoints import StartpointState
from headrace.plan.inventory import NO_CONSENT, Consent, consent_of
from headrace.plan.model import StreamPlan
from headrace.protocol.read_committed import ReadCommitted
from headrace.rows.given import Rows, as_polars, concat_rows, given_rows
from headrace.rows.hashing import partition_of, split
from headrace.rows.ipc import decode_rows, encode_rows
from headrace.rows.schema import Schema
from headrace.run.planning import Deployment, Planned, prepare_streams
from headrace.run.savepoints.restoring import Restoring, restore
from headrace.run.startpoints import as_startpoint
from headrace.streams.reader import StreamReader
from headrace.systems.base import Edge, Ended, Records
from headrace.systems.base import Rows as Polled
from headrace.systems.memory import MemorySystem
from headrace.systems.positions import CustomStartpoint
from headrace.systems.registry import SystemSpec
from headrace.systems.startpoints import Grant, Outcome, Startpoint
from headrace.task.connections import Connections
from headrace.task.container import Container
from headrace.task.event_time import NEVER
from headrace.task.metrics import COUNTERS
from headrace.task.scope import run


def _in_memory(graph: Graph, memory: SystemSpec) -> Graph:
    streams = {
        id_: spec
        if id_ in graph.tables  # a remote table: its rows are in the user's service or database
        else replace(spec, system=memory, stream=StreamId(memory.name, spec.id), partitions=spec.partitions)
        for id_, spec in graph.streams.items()
    }
    return replace(graph, streams=streams, settings=replace(graph.settings, internal=memory, state_on_disk=False))


def _placed(stream: StreamPlan, rows: pl.DataFrame, partition: int | None) -> list[tuple[int, pl.DataFrame]]:
    """The rows for each partition: this one; by default those of their keys, or the first if the input has no key."""
    if partition is not None or not stream.key:
        return [(partition or 0, rows)]
    return split(rows, partition_of(rows, stream.key, stream.partitions), stream.partitions)


def _user_frames(connections: Connections, spec: StreamSpec, *, committed: bool) -> Iterator[bytes]:
    """The messages of a stream, as whole frames. ``committed``: only those that readers of committed ones get."""
    readers: dict[SSP, ReadCommitted[bytes]] = {}
    for some in records(connections, spec):
        reader = readers.setdefault(some.ssp, ReadCommitted(whole=True))
        following = [*some.offsets[1:], some.next]
        for offset, after, payload in zip(some.offsets, following, some.payloads, strict=True):
            header = decode_header(payload)
            if not committed:
                if header.kind is Kind.USER:
                    yield payload
                continue
            control = None if header.kind is Kind.USER else decode_control(header.kind, body_of(payload))
            released = reader.receive(offset, after, header, control, payload)
            yield from (held.frame for held in released if held.header.kind is Kind.USER)


def records(connections: Connections, spec: StreamSpec) -> Iterator[Records]:
    """What a stream holds, partition by partition."""
    admin = connections.admin(spec.system)
    with closing(connections.consumer(spec.system)) as consumer:
        for partition, extent in enumerate(admin.extents(spec.stream.name)):
            ssp = SSP(spec.stream, partition)
            consumer.register(ssp, Edge.OLDEST)
            while consumer.position(ssp) < extent.upcoming:
                yield from (polled for polled in consumer.poll([ssp], 1 << 30) if isinstance(polled, Records))


_TURNS_MAX = 100_000
CALLS_MS_MAX = 10_000


class TestApp:
    """An app under test; made by ``app.test()``. Use it as a context manager.

    Parameters
    ----------
    graph
        The app.
    partitions
        How many partitions its inputs have: one number for all, or one for each by name.
    """

    __test__ = False  # pytest: not a test class

    def __init__(self, graph: Graph, partitions: int | Mapping[str, int] = 1) -> None:
        if not isinstance(partitions, int | Mapping):
            raise UsageError(
                f"partitions={partitions!r} isn't a number of partitions", hint='write 2, or {"views": 2, "orders": 4}'
            )
        self._memory = SystemSpec(f"test-{uuid.uuid4().hex[:12]}", "memory")
        self._connections = Connections()
        self._generations: dict[TaskName, int] = {}
        self.clock = ManualClock()
        self._closed = False
        self._declared = graph
        try:
            self._partitions = partitions
            self._metadata = MemoryMetadata()
            self.plan = self._deployed(graph, NO_CONSENT).plan
            self._container = self._start()
        except BaseException:
            self._release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what a test does
    def feed(self, input_: str, rows: Rows, *, partition: int | None = None, settle: bool = True) -> None:
        """Append messages to an input and process them.

        Parameters
        ----------
        input_
            The input.
        rows
            A DataFrame (of Polars, pandas, Spark or Arrow), dicts, or instances of a dataclass. A column that the input
            doesn't declare is refused: in a test it is a mistake.
        partition
            The partition to append to. By default that of each row's key, or 0 if the input has no key.
        settle
            Whether to process until nothing is left to do.
        """
        self._check_open("feed")
        spec = self._spec(input_, Role.SOURCE, Role.SIDE_INPUT)
        table = given_rows(rows, Schema.of(spec.schema), input_)
        for number, part in _placed(self.plan.streams[input_], table, partition):
            self.feed_bytes(input_, encode(Header(Kind.USER), encode_rows(part)), partition=number, settle=False)
        if settle:
            self.settle()

    def feed_bytes(self, input_: str, record: bytes, *, partition: int = 0, settle: bool = True) -> None:
        """Append one record unchanged, to test how malformed ones are handled.

        Parameters
        ----------
        input_
            The input.
        record
            The bytes.
        partition
            The partition to append to.
        settle
            Whether to process until nothing is left to do.
        """
        self._check_open("feed_bytes")
        spec = self._spec(input_, Role.SOURCE, Role.SIDE_INPUT)
        if not isinstance(partition, int):
            raise UsageError(f"partition={partition!r} isn't the number of a partition", hint="partitions count from 0")
        producer = self._connections.record_producer(self._memory)
        try:
            producer.send(spec.stream.name, partition, record)
            producer.flush()
        except StreamSealedError as error:
            raise UsageError(
                f"feed: the input {input_!r} has ended",
                hint=f"feed it before t.end(); t.end({input_!r}) ends only this input",
            ) from error
        if settle:
            self.settle()

    def end(self, *inputs: str) -> None:
        """End inputs. Open windows emit their results, and the app ends when all inputs have.

        Parameters
        ----------
        *inputs
            The inputs; by default all that haven't ended.
        """
        self._check_open("end")
        admin = self._connections.admin(self._memory)
        names = inputs or [s.id for s in self.plan.graph.streams.values() if s.role is Role.SOURCE]
        for name in names:
            admin.seal(self._spec(name, Role.SOURCE, Role.SIDE_INPUT).stream.name)
        self.settle()

    def advance(self, duration: Duration) -> None:
        """Let processing time pass, for idle timeouts, checkpoints and timers of the clock.

        Parameters
        ----------
        duration
            How long: ``"10s"``, or a ``timedelta``.
        """
        self._check_open("advance")
        self.clock.advance(to_ms(duration, "advance"))
        self.settle()

    def settle(self) -> None:
        """Process until nothing is left to do. Calls that the app makes are waited for."""
        self._check_open("settle")
        quiet = 0
        for _ in range(_TURNS_MAX):
            sleep = self._container.turn()
            if sleep == 0:
                quiet = 0
            elif (waiting := self._waiting_for()) is not None:
                quiet = 0
                if not self._container.wakeup.wait(CALLS_MS_MAX):
                    raise UsageError(
                        f"calls of the app aren't done after {CALLS_MS_MAX // 1000} s: {waiting}",
                        hint="make the app's functions answer, or continue without them: feed(..., settle=False)",
                    )
            elif any(readable(fd, 0) for host in self._container.hosts for fd in host.inputs.filenos()):
                quiet = 0  # what a task sends at the end of one turn is read in the next
            elif any(host.owes for host in self._container.hosts):
                quiet = 0
                self.clock.wait(max(1, int(sleep)))  # a watermark is announced a little later
            else:
                quiet += 1
            if quiet == 2:
                return
        raise UsageError(f"the app didn't settle in {_TURNS_MAX} turns")

    def restart(self, *, checkpoint: bool = False) -> None:
        """Stop as if killed, and restart from the last checkpoint.

        Parameters
        ----------
        checkpoint
            Whether to commit a checkpoint just before.
        """
        self._check_open("restart")
        if checkpoint:
            self._commit()
        self._stop()
        self._container = self._start()
        self.settle()

    def change(
        self, app: Declarations, *, drop_state: Sequence[str] = (), rename: Mapping[str, str] | None = None
    ) -> None:
        """Drain the app, and start another version of it with what it keeps.

        Parameters
        ----------
        app
            The other version.
        drop_state
            As for ``App.run``.
        rename
            As for ``App.run``.

        Raises
        ------
        PlanError
            If it doesn't fit what the version before keeps. That version goes on.
        """
        self._check_open("change")
        changed = self._deployed(app.graph(), consent_of(drop_state, rename or {}))
        self._commit()
        self._stop()
        self._declared = app.graph()
        self.plan = changed.plan
        self._container = self._start()
        self.settle()

    def restore(self, savepoint: str) -> None:
        """Stop as if killed, and go on from a savepoint in the app's home.

        Parameters
        ----------
        savepoint
            The name of one that ``hr.write_savepoint`` or a backfill has made.

        Raises
        ------
        UsageError
            If there is no such savepoint.
        """
        self._check_open("restore")
        graph = self._declared
        home = Path(graph.settings.home)
        restore(Restoring(home=home, app=graph.app, metadata=self._metadata, name=savepoint))
        self._stop()
        self.plan = self._deployed(graph, NO_CONSENT).plan
        self._container = self._start()
        self.settle()

    def set_startpoint(
        self,
        input_: str,
        startpoint: Startpoint | CustomStartpoint,
        *,
        partition: int | None = None,
        task: str | None = None,
        apply: bool = False,
    ) -> None:
        """Set where the app reads an input from, as ``hr.startpoints`` does for apps that run.

        Parameters
        ----------
        input_
            The input.
        startpoint
            What a function of ``hr.startpoints`` returns, such as ``oldest()``. Times are those at which messages were
            fed, by the real clock.
        partition
            The partition; by default all.
        task
            The task, as ``"stage/0"``; by default all that read the partition.
        apply
            Whether it counts now, after a commit. Otherwise it counts from the next ``restart`` on.
        """
        self._check_open("set_startpoint")
        point = as_startpoint(startpoint)
        self._startpoints.set(
            SetStartpoint(input=input_, partition=partition, task=task, startpoint=point, apply=apply)
        )
        if apply:
            tasks = self._startpoints.fan_out()
            for host in self._container.hosts:
                if host.name in tasks:
                    host.restart_beyond(host.generation)
            self._commit()

    def startpoints(self, *, done: bool = False) -> list[StartpointState]:
        """Return the startpoints that wait or are being applied, each with its state.

        Parameters
        ----------
        done
            Whether to begin with the last ones that are done with.

        Returns
        -------
        list of StartpointState
        """
        self._check_open("startpoints")
        return self._startpoints.book.states(done=done)

    # -- what a test checks
    def read(self, output: str, *, committed: bool = False) -> pl.DataFrame:
        """Return everything that an output, or another stream, holds, in the order of partitions and offsets.

        Parameters
        ----------
        output
            The stream.
        committed
            Whether to leave out what no checkpoint covers yet and what a restart has taken back. What remains is what
            readers outside of an exactly-once app see.

        Returns
        -------
        polars.DataFrame
        """
        self._check_open("read")
        spec = self._spec(output, *Role)
        frames = [
            decode_rows(body_of(payload)) for payload in _user_frames(self._connections, spec, committed=committed)
        ]
        if not frames and spec.schema is not None:
            return spec.schema.empty()
        if any(frame.schema != frames[0].schema for frame in frames):  # versions of the app with other columns
            return pl.concat(frames, how="diagonal", rechunk=True)
        return concat_rows(frames)

    @property
    def watermark(self) -> int | None:
        """The lowest watermark of all tasks (ms); None before there is one."""
        lowest = min(host.task.progress.watermark for host in self._container.hosts)
        return None if lowest == NEVER else lowest

    @property
    def ended(self) -> bool:
        """Whether all tasks have finished."""
        return all(host.finished for host in self._container.hosts)

    @property
    def wants_shutdown(self) -> bool:
        """Whether a low-level task has asked to drain the app. In a test that ends nothing."""
        return any(host.task.chain.wants_shutdown for host in self._container.hosts)

    def counter(self, name: str) -> int:
        """Return a counter, summed over all tasks.

        Parameters
        ----------
        name
            ``late``, ``skipped``, ``dead_lettered``, one of ``hr.metrics`` that was added to (it ends with ``_total``),
            or a counter of a low-level task: its id, a dot and the name.

        Returns
        -------
        int

        Raises
        ------
        UsageError
            If nothing can count under this name.
        """
        own = [cell for host in self._container.hosts for cell in host.metrics.user.cells() if cell.name == name]
        if own:
            return int(sum(cell.value for cell in own))
        names = COUNTERS.union(*(host.metrics.counters for host in self._container.hosts))
        if name not in names:
            close = get_close_matches(name, sorted(names), n=1)
            raise UsageError(
                f"no counter is named {name!r}; the counters are {', '.join(sorted(names))}",
                hint=f"did you mean {close[0]!r}?" if close else None,
            )
        return sum(host.metrics.counters[name] for host in self._container.hosts)

    def close(self) -> None:
        """Stop the app and release what it holds. It can be called again."""
        if not self._closed:
            self._closed = True
            self._stop()
            self._release()

    def _deployed(self, declared: Graph, consent: Consent) -> Planned:
        """The plan of a version of the app, whose changes are accepted and recorded, and whose streams exist."""
        graph = _in_memory(declared, self._memory)
        self._create_inputs(graph)
        deployment = Deployment(graph, self._metadata, consent)
        planned = deployment.planned()
        planned.changes.check()
        prepare_streams(planned.plan)
        deployment.record(planned)
        return planned

    def _create_inputs(self, graph: Graph) -> None:
        admin = self._connections.admin(self._memory)
        inputs = [spec for spec in graph.streams.values() if spec.role in (Role.SOURCE, Role.SIDE_INPUT)]
        named = {} if isinstance(self._partitions, int) else self._partitions
        if unknown := sorted(named.keys() - {spec.id for spec in inputs}):
            raise UsageError(
                f"partitions= names {unknown[0]!r}, which isn't an input of the app",
                hint=f"its inputs: {', '.join(sorted(spec.id for spec in inputs))}",
            )
        for spec in inputs:
            count = self._partitions if isinstance(self._partitions, int) else named.get(spec.id, 1)
            if admin.describe(spec.stream.name) is None:
                admin.create(spec.stream.name, count)

    def _commit(self) -> None:
        for _ in range(2):  # a stage that is new, or commits more often now, has first to catch up with the others
            labels = {host.machine.label for host in self._container.hosts} - {END_VERSION}
            for host in self._container.hosts:
                host.ask_for_commit(max(labels, default=0))
                run(host.performing())
            self.settle()
            if len(labels) < 2:
                break

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise UsageError(
                f"{what}: this test of {self.plan.graph.app!r} is closed",
                hint="use it inside its `with` block, or call close() later",
            )

    def _waiting_for(self) -> str | None:
        calls = (host.task.chain.held_by or host.publishing.calling for host in self._container.hosts)
        return next((waiting for waiting in calls if waiting), None)

    def _release(self) -> None:
        self._connections.close()
        MemorySystem.forget(self._memory.name)

    def _start(self) -> Container:
        tasks = {task.name for stage in self.plan.stages for task in stage.tasks}
        inputs = inputs_of(self.plan)
        self._startpoints = StartpointService(self._metadata, inputs, lambda: lambda task: None, WallClock())
        self._startpoints.fan_out()

        def report(task: TaskName, outcomes: Sequence[Outcome]) -> None:
            self._startpoints.note(str(task), outcomes)

        container = Container(self.plan, tasks, self._next_generation, self.clock, report=report)
        for host in container.hosts:
            host.start()
        return container

    def _next_generation(self, task: TaskName) -> Grant:
        self._generations[task] = self._generations.get(task, 0) + 1
        orders = self._startpoints.grant({task: self._generations[task]})
        return Grant(generation=self._generations[task], orders=orders.get(task, ()))

    def _stop(self) -> None:
        for host in self._container.hosts:
            host.close()
        self._container.close()

    def _spec(self, id_: str, *roles: Role) -> StreamSpec:
        spec = self.plan.graph.streams.get(id_)
        if spec is None or spec.role not in roles:
            known = [s.id for s in self.plan.graph.streams.values() if s.role in roles]
            raise UsageError(f"the app has no stream {id_!r}", hint=f"its streams: {', '.join(sorted(known))}")
        if id_ in self.plan.graph.tables:
            raise UsageError(f"{id_!r} is a remote table", hint="read it from the system that stores it")
        return spec


# -- preview -----------------------------------------------------------------------------------------
ROWS_MAX = 1_000_000
"""How many rows of an input a test run may have: they are in memory."""

_POLL_BYTES = 1 << 20
_POLLS_MAX = 10_000
LOGS = ("log", "kafka-log")


Take = Callable[[StreamSpec], pl.DataFrame]


def head(draft: Draft, node: str, rows: int, sample: int | Mapping[str, Rows] | Take) -> pl.DataFrame:
    """The first results of a step. ``sample``: how many rows of each input, rows by the ids of inputs, or what takes
    them from an input."""
    if type(rows) is not int or rows < 0:
        raise UsageError(f"head: {rows!r} isn't a number of rows")
    output = next(name for number in count() if (name := f"head-{number}") not in draft.streams | draft.nodes)
    graph = cut_behind(draft, node, output)
    inputs = {s.id: s for s in graph.streams.values() if s.role in (Role.SOURCE, Role.SIDE_INPUT)}
    samples = _samples(inputs, sample)
    with TestApp(graph) as test:
        # Side inputs are read first by the app, whatever the order here.
        for id_, found in samples.items():
            test.feed(id_, found, settle=False)
        test.end()
        return test.read(output).head(rows)


def _samples(inputs: Mapping[str, StreamSpec], sample: int | Mapping[str, Rows] | Take) -> dict[str, Rows]:
    if callable(sample):
        return {id_: sample(spec) for id_, spec in inputs.items()}
    if isinstance(sample, Mapping):
        if unknown := sorted(sample.keys() - inputs.keys()):
            raise UsageError(
                f"head: sample= names {unknown[0]!r}, which isn't an input of the steps up to here",
                hint=f"their inputs: {', '.join(sorted(inputs))}",
            )
        return dict(sample)
    if type(sample) is not int or not 0 < sample <= ROWS_MAX:
        raise UsageError(
            f"head: sample={sample!r} isn't a number of rows up to {ROWS_MAX:,}",
            hint='write sample=1000, or pass your own rows by input: sample={"views": [...]}',
        )
    return {id_: first_rows(spec, sample) for id_, spec in inputs.items()}


def first_rows(spec: StreamSpec, rows: int) -> pl.DataFrame:
    """The first rows of an input, where reading leaves no trace."""
    where = f"head: input {spec.id!r} ({spec.location})"
    try:
        if spec.system.held is not None:
            found = as_polars(cast("Any", spec.system.held).limit(rows))
            batches = iter([cast("pl.DataFrame", found)])
        elif spec.system.kind in LOGS:
            batches = iter(StreamReader(spec.stream.name, system=spec.system))
        elif spec.system.kind == "files":
            batches = _of_files(spec)
        else:
            raise UsageError(
                f"rows of a system of kind {spec.system.kind!r} aren't read for a sample",
                hint=f'pass some: head(sample={{"{spec.id}": [...]}})',
            )
        taken: list[pl.DataFrame] = []
        left = rows
        for batch in batches:
            taken.append(batch.head(left))
            left -= taken[-1].height
            if left == 0:
                break
    except HeadraceError as error:
        error.message = f"{where}: {error.message}"
        raise
    columns = {} if spec.schema is None else spec.schema.columns
    if not taken:
        return pl.DataFrame(schema=columns)
    together = pl.concat(taken, how="diagonal_relaxed")
    return together.select(name for name in columns if name in together.columns)


def _of_files(spec: StreamSpec) -> Iterator[pl.DataFrame]:
    """The rows of files, one partition after another. The list in which an app remembers its files isn't touched."""
    options = {name: value for name, value in spec.system.options.items() if name not in ("list_file", "new_files")}
    system = replace(spec.system, options=options)
    with closing(Connections()) as connections:
        columns = None if spec.schema is None else dict(spec.schema.columns)
        partitions = len(connections.admin(system).extents(spec.stream.name))
        with closing(connections.consumer(system, columns)) as consumer:
            for ssp in (SSP(spec.stream, number) for number in range(partitions)):
                consumer.register(ssp, Edge.OLDEST)
                for _ in range(_POLLS_MAX):
                    polled = list(consumer.poll([ssp], _POLL_BYTES))
                    yield from (one.frame for one in polled if isinstance(one, Polled))
                    if any(isinstance(one, Ended) for one in polled):
                        break
