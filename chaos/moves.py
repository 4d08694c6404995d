"""Moves of a real app under load, while its processes are killed: rewind, upgrade, savepoints, restores, rescales.

Every move is a command, as the person on call gives it. Each has phases of the load to itself, so that its effect on
every order is known: ``moved_oracle`` says how often each one has to be in each output.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl
from typing_extensions import override

from chaos import moved_app
from chaos.committed import committed_rows
from chaos.deployment import Deployment, is_running, until
from chaos.moved_app import APP, DEALT, PHASE_MS, START_MS, PhasedLoad
from chaos.moved_oracle import Restored, Rewound, Story, judge, output_ends
from chaos.processes import send
from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, UnavailableError
from headrace.core.ids import SSP, StreamId
from headrace.systems.log.system import LogSystem

COMMAND_S = 120.0
RECOVERY_S = 240.0
KILL_PAUSE_S = (0.5, 4.0)
ATTEMPTS = 10
LIVE_S = 1.5
"""How long the app runs between a savepoint and its stop."""
BACK_MS = (500, 1200)
TURN = ("rewind", "upgrade", "restore silent", "rescale up", "rescale down")
KINDS = ("rewind", "upgrade", "restore silent", "restore again", "rescale up", "rescale down")
AT_RANDOM = tuple(kind for kind in KINDS if kind != "upgrade")

Outputs = Literal["again", "silent"]


@dataclass(frozen=True, kw_only=True)
class MovesPlan:
    """The settings of a run. After each move of ``TURN`` come random ones until ``seconds`` are over."""

    seed: int
    seconds: float = 0.0
    master: str = "local[2]"
    rate: int = 1000
    turn: tuple[str, ...] = TURN
    kill_driver: bool = True
    keep: bool = False


class Killer(threading.Thread):
    """Kills a random container now and then, as soon as all run."""

    def __init__(self, seed: int) -> None:
        """Nothing is killed before ``aim``."""
        super().__init__(name="chaos-killer", daemon=True)
        self.kills = 0
        self.error: BaseException | None = None
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._target: Deployment | None = None

    @override
    def run(self) -> None:
        while not self._over.wait(self._random.uniform(*KILL_PAUSE_S)):
            try:
                with self._lock:
                    self._strike()
            except Exception as error:  # noqa: BLE001 - ``close`` raises it again
                self.error = error
                return

    def aim(self, target: Deployment | None) -> None:
        """Kill containers of this deployment from now on; None: kill nothing."""
        with self._lock:
            self._target = target

    def close(self) -> None:
        """End the thread, and raise what has ended it before."""
        self._over.set()
        if self.is_alive():
            self.join()
        if self.error is not None:
            raise self.error

    def _strike(self) -> None:
        status = self._target.status() if self._target is not None else None
        if self._target is None or status is None or not is_running(status):
            return
        victims = [container.pid for container in self._target.containers() if container.pid is not None]
        if victims:
            send(signal.SIGKILL, [self._random.choice(victims)])
            self.kills += 1


def run(plan: MovesPlan, report: Callable[[str], None]) -> bool:
    """Run it, and return whether the outputs are exactly what the moves say."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-moves-"))
    passed = False
    moves = Moves(plan, folder, report)
    try:
        passed = moves.run()
    except HeadraceError as error:
        report(f"a move failed: {error}" + (f"\n{error.hint}" if error.hint else ""))
    finally:
        moves.close()
        if passed or not plan.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            report(f"everything is kept in {folder}")
    return passed


@dataclass(slots=True)
class Moves:
    """One run."""

    plan: MovesPlan
    folder: Path
    report: Callable[[str], None]
    version: int = 1
    partitions: int = moved_app.PARTITIONS
    story: Story = field(default_factory=Story)
    began: float = field(default_factory=time.monotonic)
    _drivers: list[Deployment] = field(default_factory=list)
    _savepoints: int = 0
    _random: random.Random = field(init=False)
    _killer: Killer = field(init=False)
    _load: PhasedLoad = field(init=False)

    def __post_init__(self) -> None:
        """Create the inputs."""
        self._random = random.Random(self.plan.seed)
        self._killer = Killer(self.plan.seed)
        moved_app.prepare(self.home)
        self._load = PhasedLoad(self.home, self.plan.seed, self.plan.rate)

    @property
    def home(self) -> Path:
        """The home folder of the app."""
        return self.folder / "home"

    def run(self) -> bool:
        """Make all moves, end the input, and judge."""
        self._start()
        self._names_are_known()
        self._killer.start()
        self._load.start()
        turn = list(self.plan.turn)
        deadline = time.monotonic() + self.plan.seconds
        while turn or time.monotonic() < deadline:
            kind = turn.pop(0) if turn else self._random.choice(AT_RANDOM)
            detail = self._move(kind)
            self.report(f"{time.monotonic() - self.began:6.1f} s  {kind:<14}  {detail}")
        self._next_phase()
        self._killer.aim(None)
        written = self._load.finish()
        code = self._driver.wait(RECOVERY_S)
        self.report(f"{written.height:,} orders, {self._killer.kills} kills; the last driver ended with {code}")
        if code:
            self.report(self._driver.errors())
        return self._judge(written) and code == 0

    def close(self) -> None:
        """End everything."""
        try:
            self._killer.close()
        finally:
            for driver in self._drivers:
                driver.close()

    # -- the moves

    def _move(self, kind: str) -> str:
        match kind:
            case "rewind":
                return self._rewind()
            case "upgrade":
                return self._upgrade()
            case "restore silent":
                return self._restore("silent", self.partitions)
            case "restore again":
                return self._restore("again", self.partitions)
            case "rescale up":
                return self._restore(self._any_outputs(), self.partitions * 2)
            case _:
                return self._restore(self._any_outputs(), max(1, self.partitions // 2))

    def _any_outputs(self) -> Outputs:
        return self._random.choice(("again", "silent"))

    def _rewind(self) -> str:
        """Read again what came in the last second; nothing before this phase."""
        began_ms = self._next_phase()
        time.sleep(LIVE_S)
        written_ms = WallClock().now_ms()
        self._all_is_taken()  # else a task whose container was killed has nothing to read again
        time_ms = max(began_ms, written_ms - self._random.randint(*BACK_MS))
        answer = self._command("startpoint", "set", APP, "orders", "--time", str(time_ms), "--apply")
        wanted = {one["startpoint"]["id"] for one in answer["written"]}
        states: list[Any] = []

        def released() -> bool:
            states[:] = [
                one
                for one in self._command("startpoint", "list", APP, "orders", "--done")
                if one["startpoint"]["id"] in wanted
            ]
            return all(one["state"] == "released" for one in states)

        until(released, "the startpoints are released", RECOVERY_S)
        offsets = {one["partition"]: one["offset"] for one in states}
        admin = LogSystem(self.home / "streams").admin()
        due = {p: admin.offset_at(SSP(StreamId("log", "orders"), p), time_ms) for p in range(moved_app.PARTITIONS)}
        if offsets != due:
            raise UnavailableError(f"the startpoints were applied at {offsets} instead of {due}")
        self.story.rewound.append(Rewound(self._load.phase, offsets))
        return f"to {offsets}"

    def _upgrade(self) -> str:
        """Drain the first version, and start the second."""
        self._next_phase()
        time.sleep(LIVE_S)
        self._drain()
        self.story.upgraded = self._load.phase
        self.version = 2
        self._start()
        self._all_is_taken()
        return "to version 2"

    def _restore(self, outputs: Outputs, partitions: int) -> str:
        """Take a savepoint, go on, stop, and go back to it, perhaps with another number of partitions."""
        self._next_phase()
        phase = self._load.phase
        self._windows_close(phase - 1)
        self._savepoints += 1
        name = f"s{self._savepoints}"
        tries = self._take(name)
        self._next_phase()
        time.sleep(LIVE_S)
        how = self._stop(drain=outputs == "silent")
        ends = output_ends(self.home)
        arguments = ["--outputs", outputs]
        if partitions != self.partitions:
            arguments += [argument for stream in DEALT for argument in ("--partitions", f"{stream}={partitions}")]
            self.partitions = partitions
        answer = self._command("savepoint", "restore", APP, name, "--quiet", *arguments)
        rewinds = [one for one in answer["rewinds"] if one["stream"] == "log.orders"]
        if outputs == "again":
            to, was = ({one["partition"]: one[key] for one in rewinds} for key in ("to", "before"))
            self.story.restored.append(Restored(phase, to, was, ends))
        self._start()
        self._all_is_taken()
        return f"{outputs}, {partitions} partitions, savepoint at attempt {tries}, stopped by {how}"

    def _take(self, name: str) -> int:
        """Take a savepoint; return how many attempts it took. One fails while a task that was killed isn't back."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._command("savepoint", "create", APP, name, "--quiet", "--timeout", "20")
            except UnavailableError as error:
                if attempt == ATTEMPTS or "took no savepoint" not in (error.hint or ""):
                    raise
            else:
                return attempt
        raise AssertionError("unreachable")

    # -- starting, stopping, waiting

    @property
    def _driver(self) -> Deployment:
        return self._drivers[-1]

    def _start(self) -> None:
        command = [sys.executable, "-m", moved_app.__name__, str(self.home), self.plan.master, str(self.version)]
        self._drivers.append(Deployment(command, self.home, APP, self.folder / f"driver-{len(self._drivers)}"))
        self._driver.wait_running(RECOVERY_S)
        self._killer.aim(self._driver)

    def _stop(self, *, drain: bool) -> str:
        if not drain and self.plan.kill_driver and self._random.random() < 0.5:
            self._killer.aim(None)
            self._driver.kill()
            self._gone()
            return "SIGKILL"
        self._drain()
        return "a drain"

    def _drain(self) -> None:
        self._killer.aim(None)
        self._driver.wait_running(RECOVERY_S)
        self._driver.interrupt()
        code = self._driver.wait(RECOVERY_S)
        if code:
            raise UnavailableError(f"the drained driver ended with {code}", hint=self._driver.errors()[-3000:])
        self._gone()

    def _gone(self) -> None:
        old = self._driver
        until(
            lambda: not [process for process in old.processes() if process.is_python_side],
            "the containers of the driver have ended",
            RECOVERY_S,
        )

    def _next_phase(self) -> int:
        self._check()
        return self._load.next_phase()

    def _check(self) -> None:
        for thread in (self._load, self._killer):
            if thread.error is not None:
                raise UnavailableError(f"{thread.name} has failed") from thread.error

    def _names_are_known(self) -> None:
        """Every name is in the table before the first order, because a join looks at what is there."""

        def committed() -> bool:
            found = self._command("offsets", APP)
            return all(one["committed"] is not None and not one["lag"] for one in found if one["input"] == "names")

        until(committed, "the names are read", RECOVERY_S)
        self._driver.wait_for(
            "the names are in the table",
            lambda status: all(
                task.state != "starting" and not task.lag for task in status.tasks if task.name.startswith("names")
            ),
            RECOVERY_S,
        )
        time.sleep(LIVE_S)

    def _windows_close(self, phase: int) -> None:
        """Wait until all windows of a phase are committed."""
        rows = self._load.rows().filter(pl.col("phase") == phase)
        due = rows["member"].n_unique()
        start = START_MS + phase * PHASE_MS

        def closed() -> bool:
            self._check()
            self._check_driver()
            totals = committed_rows(self.home, "totals")[0]
            return totals.filter(pl.col("window_start") == start)["member"].n_unique() >= due

        until(closed, f"the windows of phase {phase} are closed", RECOVERY_S)

    def _all_is_taken(self) -> None:
        """Wait until the present orders of all partitions are taken."""
        newest = self._load.rows()["order"].tail(moved_app.PARTITIONS * moved_app.BATCH)

        def taken() -> bool:
            self._check()
            self._check_driver()
            found = committed_rows(self.home, "taken")[0]
            return found.width > 0 and bool(newest.is_in(found["order"].implode()).all())

        until(taken, f"the app has come to order {newest[-1]}", RECOVERY_S)

    def _check_driver(self) -> None:
        if (code := self._driver.exit_code()) is not None:
            raise UnavailableError(f"the driver has ended with {code}", hint=self._driver.errors()[-3000:])

    def _command(self, *arguments: str) -> Any:
        """Run a command of Headrace, and return its JSON."""
        command = [sys.executable, "-m", "headrace.operate.cli.main", *arguments, "--home", str(self.home), "--json"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S * 2, check=False)
        if ran.returncode:
            raise UnavailableError(
                f"headrace {' '.join(arguments)} ended with {ran.returncode}", hint=ran.stderr + ran.stdout
            )
        return json.loads(ran.stdout)

    def _judge(self, written: pl.DataFrame) -> bool:
        right = True
        for found in judge(self.home, written, self.story):
            self.report(found if isinstance(found, str) else found.describe())
            right = right and not isinstance(found, str) and found.equal
        return right
