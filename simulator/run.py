"""One run: a seed in, an outcome out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from headrace.api.specs import Durability
from headrace.core.errors import HeadraceError
from headrace.core.ids import SSP
from headrace.plan.inventory import Heritage
from headrace.protocol.read_committed import ReadCommitted
from headrace.task.host.task_host import TaskHost
from headrace.task.inputs.chooser import MEMORY_BYTES_MAX
from headrace.task.inputs.consumers import Idleness
from headrace.task.outputs.publisher import Publisher as TargetPublisher
from headrace.task.run_loop import RunLoop
from headrace.task.task import Task
from simulator.app_cluster import AppCluster
from simulator.app_oracle import AppOracle
from simulator.bare import BareTask
from simulator.case import INTERVAL_MS
from simulator.cluster import Cluster, RunSettings
from simulator.container import SimContainer
from simulator.coordinator import Coordinator
from simulator.declared import CASES
from simulator.disks import SimState
from simulator.expected import Row
from simulator.faults import Faults
from simulator.journal import WatchedMachine
from simulator.oracle import Oracle
from simulator.planned import AppShape, MakeHeritage, app_shape
from simulator.readers import MakeReader, Publisher
from simulator.savepoints import Taker
from simulator.shapes import MOVED, SHAPES, Shape
from simulator.systems import RowTarget
from simulator.timelines import Restorer, Timeline
from simulator.world import SimFailure, World

CUTS = "cuts"
"""``shuffle+cuts`` is the shape ``shuffle`` of which savepoints are taken."""

RESTORES = "restores"
"""``app-counts+restores`` is the app of which savepoints are restored, too."""

_ALIKE = tuple(name for name, case in CASES.items() if not case.before and not case.repeats_work)
_POWERED = tuple(name for name in _ALIKE if not (CASES[name].moved or CASES[name].slotted))
CUT_SHAPES = tuple(f"{name}+{CUTS}" for name in (*SHAPES, *_ALIKE))
RESTORED_SHAPES = tuple(
    f"{name}+{RESTORES}" for name in _ALIKE if not (CASES[name].asks or CASES[name].moved or CASES[name].slotted)
)

OBJECTS = "objects"
"""``shuffle+objects`` is the shape ``shuffle`` with its snapshots in an object store."""

ALONE = "alone"
"""``shuffle+alone`` is the shape ``shuffle`` with all its tasks in one container, where they rest together."""

# What is due while other sources go on is due in time only if tasks have threads of their own.
_PATIENT = tuple(name for name in _ALIKE if not (CASES[name].ends_early or CASES[name].deep))
ALONE_SHAPES = tuple(f"{name}+{ALONE}" for name in (*SHAPES, *_PATIENT))

OBJECT_SHAPES = tuple(f"{name}+{OBJECTS}" for name in (*SHAPES, *_ALIKE))

POWER = "power"
"""``shuffle+power`` is the shape ``shuffle`` on a machine whose power is cut at times."""

POWER_SHAPES = tuple(f"{name}+{POWER}" for name in (*SHAPES, *SHAPES, *_POWERED))

PROCESS = "process"
"""``app-counts+process`` is the app with ``durability="process"`` on such a machine."""

PROCESS_SHAPES = tuple(f"{name}+{PROCESS}" for name in _POWERED if not CASES[name].asks)

MIX = (
    *SHAPES,
    *SHAPES,
    *SHAPES,
    *SHAPES,
    *MOVED,
    *CASES,
    *POWER_SHAPES[: len(SHAPES)],
    *POWER_SHAPES[2 * len(SHAPES) :: 6],
)
"""What a seed may have: apps, and about as often shapes without operators, which take a third of the time.

In one of eight the power fails.
"""

_EARLY_BYTES = (MEMORY_BYTES_MAX,), (0, 100, 400)
_PATIENCE_MS = math.inf, math.inf, 20.0, 60.0

_DEALING_MS = 12_000
"""How much longer that may take if shards have to be dealt."""

GRACE_INTERVALS = 80
"""How long after the last fault everything has to be done."""


@dataclass(frozen=True)
class Outcome:
    """What a seed came to. ``failure`` is None when it passed."""

    seed: int
    shape: str
    failure: str | None
    steps: int
    commits: int
    rollbacks: int
    incarnations: int
    ended_at_ms: float


@dataclass(frozen=True)
class Parts:
    """What a run is made of: the seam for mutants."""

    host: type[TaskHost] = TaskHost
    loop: type[RunLoop] = RunLoop
    machine: type[WatchedMachine] = WatchedMachine
    state: type[SimState] = SimState
    task: type[Task] = Task
    bare: type[BareTask] = BareTask
    publisher: type[TargetPublisher] = TargetPublisher
    idleness: type[Idleness] = Idleness
    container: type[SimContainer] = SimContainer
    cluster: type[Cluster] = Cluster
    app_cluster: type[AppCluster] = AppCluster
    coordinator: type[Coordinator] = Coordinator
    target: type[RowTarget] = RowTarget
    reader_at_edge: type[Publisher] = Publisher
    heritage: MakeHeritage = Heritage
    reader: MakeReader = lambda position, whole: ReadCommitted(position, whole=whole)


def simulate(
    seed: int, shapes: Sequence[str] = (), parts: Parts | None = None, story: list[str] | None = None
) -> Outcome:
    """Run one seed over one of ``shapes`` (none: of all); ``story`` is filled with what happened."""
    run = Run(seed, shapes or MIX, parts or Parts(), story)
    failure = None
    try:
        run.run()
    except (SimFailure, HeadraceError, AssertionError) as error:
        failure = f"{type(error).__name__}: {error}"
    finally:
        run.cluster.close()
    oracle = run.oracle
    return Outcome(
        seed,
        run.shape_name,
        failure,
        run.world.steps,
        sum(len(ledger.commits) for ledger in oracle.ledgers.values()),
        oracle.rollbacks,
        len(run.cluster.containers),
        run.world.now,
    )


class SilentError(SimFailure):
    """Results are wrong, and nobody said so."""


class Run:
    """The world of one seed."""

    def __init__(self, seed: int, shapes: Sequence[str], parts: Parts, story: list[str] | None) -> None:
        self.world = world = World(seed, story)
        self.shape_name = world.chance.choice(list(shapes))
        name, _, extra = self.shape_name.partition("+")
        stored = extra == OBJECTS
        failing = extra if extra in (POWER, PROCESS) else ""
        self.oracle: Oracle
        self.cluster: Cluster
        if name in CASES:
            self.shape: Shape = (app := app_shape(name, parts.heritage))
            self.settings = _with_power(_with_objects(_draw_app_settings(world, app), stored), failing)
            self._crowd(extra)
            if extra == RESTORES:
                self.settings = replace(
                    self.settings, faults_until=3 * self.settings.faults_until, ends_late=world.chance.random() < 0.8
                )
            self.oracle = judge = AppOracle(world, app, app.tasks())
            self.cluster = parts.app_cluster(world, app, self.settings, judge, parts)
        else:
            self.shape = {**SHAPES, **MOVED}[name]
            self.settings = _with_power(_with_objects(_draw_settings(world, self.shape), stored), failing)
            self._crowd(extra)
            self.oracle = Oracle(world, self.shape, self.shape.tasks(), self.settings.exactly_once)
            self.cluster = parts.cluster(world, self.shape, self.settings, self.oracle, parts)
        self.publishers: list[Publisher] = []
        if self.cluster.power is not None:
            self.cluster.power.publishers = self.publishers
        self._parts = parts
        self.faults = Faults(world, self.cluster, self.publishers)
        self.taker = Taker(world, self.cluster) if extra in (CUTS, RESTORES) and self.settings.exactly_once else None
        self.restorer: Restorer | None = None
        if extra == RESTORES and self.taker is not None and isinstance(self.cluster, AppCluster):
            self.restorer = Restorer(world, self.cluster, self.taker, self._renew)
        world.tell("run", f"seed {seed}, {self.shape_name}, {self.settings}")

    def _crowd(self, extra: str) -> None:
        """Have one container run everything, so that tasks rest while nothing arrives."""
        if extra == ALONE:
            self.settings = replace(self.settings, crowding=1.0)

    def run(self) -> None:
        """From the first start to the verdict. Who isn't promised more may end with an error after a power cut."""
        try:
            self._run()
        except (SimFailure, HeadraceError) as error:
            power = self.cluster.power
            if power is None or isinstance(error, SilentError) or not power.excuses(error):
                raise
            self.world.tell("power", f"the damage was noticed: {error}")

    def _run(self) -> None:
        world, settings = self.world, self.settings
        self.cluster.start()
        for ssp in self._output_partitions():
            self._publish(ssp, 0)
            if world.chance.random() < 0.6:
                begin_later = partial(self._publish, ssp, None)
                world.after(world.chance.random() * settings.faults_until, begin_later)
        world.spawn("faults", self.faults.run())
        if self.taker is not None:
            world.spawn("savepoints", self.taker.run())
        if self.restorer is not None:
            world.spawn("restore", self.restorer.run())
        quiet = self.shape.case.quiet_ms if isinstance(self.shape, AppShape) else 0
        quiet += _DEALING_MS if self.cluster.slotted else 0
        deadline = settings.faults_until + quiet + GRACE_INTERVALS * settings.interval_ms
        if not world.run(deadline, self._done):
            self.oracle.fail("run", f"no end by {deadline:.0f} ms: {self._hanging()}")
        if self.oracle.blind and isinstance(self.cluster, AppCluster):
            self._judge_in_spite_of(self.cluster)
        else:
            self._judge()

    def _judge_in_spite_of(self, cluster: AppCluster) -> None:
        """Commits were lost, and nobody has noticed it: the results have to be right nevertheless."""
        power = self.cluster.power
        assert power is not None
        try:
            self._judge_results(cluster)
        except SimFailure as failure:
            raise SilentError(f"nobody noticed that {power.damaged}, and {failure}") from failure

    def _renew(self, timeline: Timeline) -> None:
        """A savepoint was restored."""
        assert self.taker is not None
        self.shape, self.oracle = timeline.shape, timeline.oracle
        self.cluster = self.faults.cluster = self.taker.cluster = timeline

    def _publish(self, ssp: SSP, start: int | None) -> None:
        log = self.cluster.logs[ssp]
        begin = log.end if start is None else start
        publisher = self._parts.reader_at_edge(self.world, ssp, log, begin, self._parts.reader, self.oracle.message_of)
        self.publishers.append(publisher)
        publisher.begin()

    def _output_partitions(self) -> list[SSP]:
        shape = self.shape
        return [SSP(shape.id_of(name), p) for name in shape.outputs for p in range(shape.streams[name])]

    def _done(self) -> bool:
        if not self.faults.over:
            return False
        if self.restorer is not None and self.restorer.left:
            return False
        if self.taker is not None and not self.cluster.all_over:
            self.taker.calm = True
            if not self.taker.satisfied:
                return False
        if all(stage.name in self.settings.sealed for stage in self.shape.stages if stage.sources):
            return self.cluster.all_over and all(publisher.drained for publisher in self.publishers)
        return (
            self.oracle.missing() is None
            and all(set(p.target.rows) >= self.oracle.expected_rows(p.ssp, p.start) for p in self.publishers)
            and self.cluster.sources_read
        )

    def _hanging(self) -> str:
        lines = [self.oracle.missing() or "nothing is missing"]
        lines += [f"{container.name}: {container.status()}" for container in self.cluster.current.values()]
        lines += [stream.hanging() for stream in self.cluster.slotted]
        return "; ".join(lines)

    def _judge(self) -> None:
        missing = self.oracle.missing()
        if missing:
            self.oracle.fail("run", missing)
        self.oracle.check_ends()
        self.oracle.check_state()
        self.cluster.check_copies()
        for publisher in self.publishers:
            self.oracle.judge_rows(publisher.ssp, publisher.target.rows, publisher.start)
        for publisher in self.publishers[: len(self._output_partitions())]:
            for _ in range(6):
                start = int(self.world.chance.random() * publisher.log.end)
                self.oracle.judge_rows(publisher.ssp, publisher.read_alone(start), start)
        if isinstance(self.cluster, AppCluster):
            self._judge_results(self.cluster)

    def _judge_results(self, cluster: AppCluster) -> None:
        published: dict[str, list[int]] = {name: [] for name in self.shape.outputs}
        for publisher in self.publishers[: len(self._output_partitions())]:
            published[publisher.ssp.stream.name] += publisher.target.rows
        has = cluster.oracle.inherited.has
        targets: dict[str, list[Row]] = {
            stream.name: [row for row, version in zip(target.rows, target.versions, strict=True) if has(version)]
            for stream, target in cluster.targets.items()
        }
        targets |= {name: list(rows.values()) for name, rows in self.world.services.items()}
        cluster.oracle.judge_results(published, targets)


def _with_objects(settings: RunSettings, stored: bool) -> RunSettings:
    """Snapshots take their time: with a store of them, more goes wrong, and for longer."""
    if not stored:
        return settings
    longer = max(250.0, settings.faults_until)
    return replace(settings, objects=True, faults=2 * settings.faults + 3, faults_until=longer, trims=True)


def _with_power(settings: RunSettings, failing: str) -> RunSettings:
    """Each cut stops everything for a while."""
    if not failing:
        return settings
    longer = max(250.0, settings.faults_until)
    durability: Durability = "process" if failing == PROCESS else "commit"
    return replace(settings, power_fails=True, durability=durability, exactly_once=True, faults_until=longer)


def _draw_settings(world: World, shape: Shape) -> RunSettings:
    chance = world.chance
    interval = 30
    stages = sorted(stage.name for stage in shape.stages if stage.sources)
    return RunSettings(
        interval_ms=interval,
        exactly_once=chance.random() < 0.93,
        sealed=frozenset(stages if chance.random() < 0.7 else {s for s in stages if chance.random() < 0.5}),
        retry=chance.choice((0.0, 0.05, 0.2)),
        skew_ms=chance.choice((0, interval // 2, interval * 3, interval * 6)),
        hosts=chance.choice((1, 2, 3)),
        faults=chance.choice((0, 2, 5, 10, 15, 30)),
        faults_until=float(chance.choice((150, 250, 400, 400, 900))),
        trims=chance.random() < 0.7,
        crowding=chance.choice((0.0, 0.0, 0.0, 0.3, 0.6)),
        early_bytes=world.limits.choice(_EARLY_BYTES),
        patience_ms=world.limits.choice(_PATIENCE_MS),
    )


def _draw_app_settings(world: World, shape: AppShape) -> RunSettings:
    """Apps end, so that all they have to say can be judged; what costs most, real time, is kept short."""
    chance = world.chance
    return RunSettings(
        interval_ms=INTERVAL_MS,
        sealed=frozenset(stage.name for stage in shape.stages),
        retry=chance.choice((0.0, 0.05, 0.2)),
        skew_ms=chance.choice((0, INTERVAL_MS // 2, INTERVAL_MS * 3)),
        hosts=chance.choice((1, 2, 3)),
        faults=chance.choice((1, 3, 6, 9, 12)),
        faults_until=float(chance.choice((150, 250, 400) if shape.case.slotted else (60, 100, 180))),
        trims=chance.random() < 0.7,
        crowding=chance.choice((0.0, 0.0, 0.0, 0.3, 0.6)),
        early_bytes=world.limits.choice(_EARLY_BYTES),
        patience_ms=world.limits.choice(_PATIENCE_MS),
    )
