"""An app on a standalone Spark cluster whose machines share no folder, while processes and machines come and go.

There is a machine for the driver, one for each Spark worker, and one from which somebody looks at the app. Kafka,
PostgreSQL, an object store and Spark's master run beside them. At the end every order must be in each output once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyspark
from typing_extensions import override

from chaos import cluster_app, faults
from chaos.deployment import START_S, Deployment, until
from chaos.faults import RECOVERY_MAX_S, Chaos
from chaos.kafka_server import KafkaServer
from chaos.load import Load
from chaos.local_server import LocalServer, free_port
from chaos.object_server import BUCKET, ObjectServer
from chaos.oracle import expected
from chaos.postgres_server import PostgresServer
from chaos.processes import Process, look
from chaos.run import PAUSE_S, summary
from chaos.verdict import Comparison, compare
from chaos.workload import APP
from chaos.world import OWN, Machine, World
from headrace.coordinator.address import Address
from headrace.core.deployment import SETTINGS
from headrace.core.errors import HeadraceError, InfrastructureError, StreamNotFoundError, UnavailableError
from headrace.core.secrets import SecretUrl
from headrace.run.spark.launch import ensure_java

WORKERS = ("worker-1", "worker-2")
DRIVER, DESK = "driver", "desk"
_OWN_KINDS = {"kill machine": 2, "wipe machine": 2, "unplug machine": 1, "move driver": 1}
KINDS = (*faults.KINDS, *_OWN_KINDS)
FIRST = ("kill container", "kill executor", "kill machine", "kill driver", "wipe machine")
"""The last one when changelogs are trimmed, so that only a snapshot helps."""
TAKEN_S, END_S = 180.0, 120.0
LOOK_AGAIN_S = 1.0
UNPLUGGED_S = (1.0, 30.0)
_COMMAND_S = 60.0
_SPARK = Path(pyspark.__file__).parent
_SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """The settings of a run. ``kinds`` come first, and then random faults until ``seconds`` are over."""

    seed: int
    seconds: float = 60.0
    rate: int = 1000
    kinds: tuple[str, ...] = FIRST
    keep: bool = False
    standby: int = 0
    """How many standbys each task has. Each machine then has as much room to spare for containers."""


class SparkMaster:
    """A standalone master, from ``with`` to its end."""

    def __init__(self, host: str) -> None:
        self._server = LocalServer("Spark's master")
        self._address = f"{host}:{free_port(host)}"
        self.url = f"spark://{self._address}"

    def __enter__(self) -> SparkMaster:
        host, port = self._address.split(":")
        options = ["--host", host, "--port", port, "--webui-port", "0"]
        self._server.start(_daemon("master.Master", *options), "New state: ALIVE", environment=_spark_environment())
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()


class SparkWorker:
    """A worker on a machine of its own."""

    def __init__(self, machine: Machine, master: str, credentials: Mapping[str, str], cores: int) -> None:
        """``credentials`` are in the environment of executors, too."""
        self.machine = machine
        self._cores = str(cores)
        self._credentials = credentials
        self._master = master
        self._server = LocalServer(f"the worker on {machine.name}")

    def start(self) -> None:
        """Return when the master knows it."""
        options = [
            "--cores",
            self._cores,
            "--memory",
            "1g",
            "--host",
            self.machine.address,
            "--work-dir",
            f"{OWN}/spark-work",
        ]
        command = self.machine.command(*_daemon("worker.Worker", *options, "--webui-port", "0", self._master))
        environment = self.machine.environment | _spark_environment() | dict(self._credentials)
        self._server.start(command, "Successfully registered with master", environment=environment)

    def kill(self) -> int:
        """Kill it and all that runs below it, at once; return how many processes."""
        killed = self.machine.kill_all()
        self._server.stop()
        return killed


class ClusterDeployment(Deployment):
    """A driver on its own machine, with executors on others."""

    def __init__(self, scene: Scene, scratch: Path) -> None:
        """Start the driver."""
        self._workers = scene.workers
        self._found: Address | None = None
        machine = scene.world.machines[scene.drives]
        arguments = scene.brokers, scene.master, str(scene.standby)
        command = machine.command(sys.executable, "-m", cluster_app.__name__, *arguments)
        settings = {"HEADRACE_METADATA": scene.database, "SPARK_SUBMIT_OPTS": f"{_SMALL_JVM} -Djava.io.tmpdir={OWN}"}
        super().__init__(
            command,
            Path(cluster_app.HOME),
            APP,
            scratch,
            machine.environment | settings | scene.credentials,
            SecretUrl(scene.database),
        )

    @override
    def address(self) -> Address | None:
        # The database isn't asked again: a driver has one address.
        self._found = self._found or super().address()
        return self._found

    @override
    def processes(self) -> list[Process]:
        below = [process for worker in self._workers for process in worker.machine.processes()]
        return super().processes() + [process for process in below if process.is_executor or process.is_python_side]

    @override
    def _is_mine(self, pid: int | None) -> bool:
        process = look(pid) if pid is not None else None
        return process is not None and process.alive


@dataclass(slots=True)
class ClusterChaos(Chaos):
    """Faults of a cluster, beside those of any deployment."""

    workers: list[SparkWorker] = field(default_factory=list)
    move: Callable[[], str] = lambda: ""
    """Have the next driver start on another machine; returns its name."""

    @override
    def kinds(self) -> dict[str, int]:
        return super(ClusterChaos, self).kinds() | _OWN_KINDS

    @override
    def act(self, kind: str, victim: int) -> str:
        acts = {
            "kill machine": self._kill_machine,
            "wipe machine": self._wipe_machine,
            "unplug machine": self._unplug,
            "move driver": self._move_driver,
        }
        before = self._places()
        detail = acts[kind](victim) if kind in acts else super(ClusterChaos, self).act(kind, victim)
        if "driver" not in kind:
            return detail
        after = self._places()
        same = sum(after.get(task) == host for task, host in before.items())
        return f"{detail}; {same} of {len(before)} tasks begin again where they were"

    def _places(self) -> dict[str, str]:
        """The host of each task."""
        return {task: c.host or "" for c in self.deployment.containers() for task in c.tasks}

    def _kill_machine(self, victim: int, wiped: str = "") -> str:
        worker, containers = self._host_of(victim)
        killed = worker.kill()
        if wiped:
            worker.machine.wipe()
        worker.start()
        self._wait_replaced(containers)
        return f"{worker.machine.name} with {killed} processes{wiped}"

    def _wipe_machine(self, victim: int) -> str:
        return self._kill_machine(victim, ", and all its folders")

    def _move_driver(self, victim: int) -> str:
        return f"to {self.move()}: {self._kill_driver(victim)}"

    def _unplug(self, victim: int) -> str:
        worker, _ = self._host_of(victim)
        seconds = self.random.uniform(*UNPLUGGED_S)
        worker.machine.unplug()
        time.sleep(seconds)
        worker.machine.plug_in()
        self.deployment.wait_running(RECOVERY_MAX_S)
        return f"{worker.machine.name} for {seconds:.1f} s"

    def _host_of(self, victim: int) -> tuple[SparkWorker, list[int]]:
        """The worker under which a container runs, and all containers there."""
        containers = {c.pid: c.host for c in self.deployment.containers() if c.pid is not None}
        name = containers.get(victim, "")
        worker = next((worker for worker in self.workers if worker.machine.name == name), self.workers[0])
        return worker, [pid for pid, host in containers.items() if host == worker.machine.name]


@dataclass(slots=True)
class Scene:
    """What a run has around it."""

    folder: Path
    world: World
    brokers: str
    database: str
    master: str
    workers: list[SparkWorker]
    objects: ObjectServer | None
    standby: int
    drivers: int = 0
    drives: str = DRIVER
    """The machine on which the next driver starts."""

    @property
    def credentials(self) -> dict[str, str]:
        """What the driver needs for the object store, if there is one."""
        if self.objects is None:
            return {}
        return self.objects.environment | {SETTINGS["snapshots"].variable: f"s3://{BUCKET}/{APP}"}

    def start(self) -> Deployment:
        """Start a driver."""
        self.drivers += 1
        return ClusterDeployment(self, self.folder / f"driver-{self.drivers}")

    def move(self) -> str:
        """Have the next driver start on another machine; return its name."""
        self.drives = DESK if self.drives == DRIVER else DRIVER
        return self.drives

    def status_from_elsewhere(self) -> int:
        """What ``headrace status`` says on another machine: how many containers run."""
        desk = self.world.machines[DESK]
        command = (sys.executable, "-m", "headrace.operate.cli.main", "status", APP, "--json")
        environment = {"HEADRACE_METADATA": self.database}
        found = json.loads(desk.run(*command, seconds_max=_COMMAND_S, environment=environment))
        return sum(one["state"] == "running" for app in found for one in app["containers"] if app["app"] == APP)


@contextmanager
def scene_in(folder: Path, report: Callable[[str], None], standby: int = 0) -> Iterator[Scene]:
    """Start all servers; end them."""
    with ExitStack() as stack:
        world = stack.enter_context(World(folder, (DRIVER, *WORKERS, DESK)))
        objects = _objects(world.address, stack, report)
        with ThreadPoolExecutor(3) as starting:  # most of it is waiting for JVMs
            broker = starting.submit(lambda: stack.enter_context(KafkaServer(host=world.address)))
            database = starting.submit(lambda: stack.enter_context(_database(folder / "postgres", world.address)))
            master = stack.enter_context(SparkMaster(world.address))
            credentials = {} if objects is None else objects.environment
            workers = [SparkWorker(world.machines[name], master.url, credentials, 1 + standby) for name in WORKERS]
            for worker in workers:
                stack.callback(worker.kill)
            list(starting.map(SparkWorker.start, workers))
        address, url = broker.result().address, database.result().url
        yield Scene(folder, world, address, url, master.url, workers, objects, standby)


def _objects(host: str, stack: ExitStack, report: Callable[[str], None]) -> ObjectServer | None:
    try:
        return stack.enter_context(ObjectServer(host))
    except InfrastructureError as error:
        report(f"snapshots stay on machines, and no changelog is trimmed: {error.message}")
        return None


@contextmanager
def _database(folder: Path, host: str) -> Iterator[PostgresServer]:
    folder.mkdir()
    server = PostgresServer(folder, host)
    server.start()
    yield server
    server.stop()


def run(plan: ClusterPlan, report: Callable[[str], None]) -> bool:
    """Run it in the world that this process is in; return whether the outputs are what was expected."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-cluster-"))
    ensure_java()
    folder.chmod(0o755)  # PostgreSQL may run as another user
    passed = False
    try:
        began = time.monotonic()
        with scene_in(folder, report, plan.standby) as scene:
            report(f"all servers run after {time.monotonic() - began:.1f} s")
            passed = _run(plan, scene, report)
    except HeadraceError as error:
        report(f"the app did not recover: {error}")
    finally:
        if passed or not plan.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            report(f"everything is kept in {folder}")
    return passed


def _run(plan: ClusterPlan, scene: Scene, report: Callable[[str], None]) -> bool:
    cluster_app.prepare(scene.brokers)
    load = Load(*cluster_app.writers(scene.brokers), plan.seed, plan.rate)
    rng = random.Random(plan.seed)
    chaos = ClusterChaos(
        scene.start, rng, has_executors=True, deployment=scene.start(), workers=scene.workers, move=scene.move
    )
    try:
        chaos.deployment.wait_running(START_S)
        report(f"every task runs after {time.monotonic() - chaos.began:.1f} s")
        chaos.began = time.monotonic()
        load.start()
        _inject_faults(plan, chaos, scene, report)
        written = load.finish()
        began = time.monotonic()
        due = expected(written)
        _wait_until_taken(chaos.deployment, scene.brokers, due)
        report(f"{written.orders.height:,} orders are taken {time.monotonic() - began:.1f} s after the last one")
        chaos.deployment.interrupt()
        code = chaos.deployment.wait(END_S)
        report(f"the driver ended with {code}")
        report(summary(chaos.faults))
        if code:
            report(chaos.deployment.errors())
        if scene.objects is not None:
            report(f"{cluster_app.trimmed(scene.brokers)}; {len(scene.objects.objects())} objects hold snapshots")
        comparisons = _compare(scene.brokers, due)
        for comparison in comparisons:
            report(comparison.describe())
        return code == 0 and all(comparison.equal for comparison in comparisons)
    finally:
        chaos.close()


def _inject_faults(plan: ClusterPlan, chaos: Chaos, scene: Scene, report: Callable[[str], None]) -> None:
    deadline = time.monotonic() + plan.seconds
    kinds = list(plan.kinds)
    while kinds or time.monotonic() < deadline:
        time.sleep(chaos.random.uniform(*PAUSE_S))
        fault = chaos.inject(kinds.pop(0)) if kinds else chaos.strike()
        seen = scene.status_from_elsewhere()
        report(
            f"{fault.at_s:6.1f} s  {fault.kind:<16}  {fault.detail}; recovered after {fault.recovery_s:.1f} s; "
            f"{seen} containers seen from {DESK}; {cluster_app.trimmed(scene.brokers)}"
        )
        if not seen:
            raise UnavailableError(f"headrace status on {DESK} sees no container")


def _compare(brokers: str, due: dict[str, pl.DataFrame]) -> list[Comparison]:
    found = [compare(stream, cluster_app.committed(brokers, stream), rows) for stream, rows in due.items()]
    totals = due["region-totals"]
    return [*found, compare(cluster_app.REPORT, cluster_app.reported(brokers, totals.schema), totals)]


def _wait_until_taken(deployment: Deployment, brokers: str, due: dict[str, pl.DataFrame]) -> None:
    """Topics have no end, so the app doesn't end by itself."""

    def taken() -> bool:
        if (code := deployment.exit_code()) is not None:
            raise UnavailableError(f"the driver ended with {code}", hint=deployment.errors()[-3000:])
        time.sleep(LOOK_AGAIN_S)
        try:
            return all(one.rows >= due_rows.height for one, due_rows in _with_due(brokers, due))
        except StreamNotFoundError:
            return False

    try:
        until(taken, "every order is taken", TAKEN_S)
    except UnavailableError as error:
        if deployment.exit_code() is None:
            error.hint = "\n".join([*(one.describe() for one in _compare(brokers, due)), deployment.errors()[-3000:]])
        raise


def _with_due(brokers: str, due: dict[str, pl.DataFrame]) -> Iterator[tuple[Comparison, pl.DataFrame]]:
    rows = [*due.values(), due["region-totals"]]
    return zip(_compare(brokers, due), rows, strict=True)


def _daemon(name: str, *options: str) -> list[str]:
    return [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *options]


def _spark_environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    return kept | {"SPARK_HOME": str(_SPARK), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _SMALL_JVM}
