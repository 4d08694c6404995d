"""An app that reads and writes Kinesis, while shards split and merge, and its processes are killed and frozen.

At the end every order must be in each exactly-once output once, those of a member in their order, and in the stream
that was written, where some may be twice, each at least once, first in order.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from typing_extensions import override

from chaos import kinesis_app
from chaos.committed import committed_rows
from chaos.deployment import Deployment, until
from chaos.faults import Chaos
from chaos.kinesis_app import APP, ORDERS, SHIPPED, WINDOW_MS, KinesisLoad
from chaos.kinesis_server import CREDENTIALS, KinesisServer
from chaos.kinesis_stream import OwnedStream
from chaos.run import PAUSE_S, summary
from chaos.verdict import Comparison, compare
from headrace.coordinator.messages import AppStatus
from headrace.core.errors import HeadraceError, UnavailableError

SHARDS = 3
SHARDS_MIN, SHARDS_MAX = 2, 9
RESHARD_PAUSE_S = (0.5, 3.0)
FINISH_S, SHIPPED_S = 180.0, 600.0  # the server writes a few hundred records a second at most
TIME_PASSES_S = 2.0
FIRST = ("kill container", "kill driver")


@dataclass(frozen=True, kw_only=True)
class KinesisPlan:
    """The settings of a run. The faults of ``FIRST`` come first; then random ones until ``seconds`` are over."""

    seed: int
    seconds: float = 60.0
    master: str = "local[2]"
    rate: int = 100
    kinds: tuple[str, ...] = ()
    keep: bool = False


class Resharding(threading.Thread):
    """Splits and merges shards now and then, as a seed draws them."""

    def __init__(self, stream: OwnedStream, seed: int) -> None:
        super().__init__(name="chaos-resharding", daemon=True)
        self.made: Counter[str] = Counter()
        self._stream = stream
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.error: BaseException | None = None

    @override
    def run(self) -> None:
        try:
            while not self._over.wait(self._random.uniform(*RESHARD_PAUSE_S)):
                shards = self._stream.open_shards()
                kinds = ["split"] * (len(shards) < SHARDS_MAX) + ["merge"] * (len(shards) > SHARDS_MIN)
                if self._random.choice(kinds) == "split":
                    self._stream.split(self._random.choice(shards))
                    self.made["splits"] += 1
                else:
                    number = self._random.randrange(len(shards) - 1)
                    self._stream.merge(shards[number], shards[number + 1])
                    self.made["merges"] += 1
        except BaseException as error:  # noqa: BLE001 - ``finish`` raises it again
            self.error = error

    def finish(self) -> None:
        """End, and raise what has ended it before."""
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error


def run(plan: KinesisPlan, report: Callable[[str], None]) -> bool:
    """Run it, and return whether the outputs are what was expected."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-kinesis-"))
    passed = False
    try:
        with KinesisServer() as server:
            passed = _run(plan, server, folder, report)
    except HeadraceError as error:
        report(f"the app did not recover: {error}")
    finally:
        if passed or not plan.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            report(f"everything is kept in {folder}")
    return passed


def _run(plan: KinesisPlan, server: KinesisServer, folder: Path, report: Callable[[str], None]) -> bool:
    orders, shipped = OwnedStream(ORDERS, server.endpoint, SHARDS), OwnedStream(SHIPPED, server.endpoint, 2)
    home = folder / "home"
    drivers = 0

    def start() -> Deployment:
        nonlocal drivers
        drivers += 1
        command = [sys.executable, "-m", kinesis_app.__name__, str(home), plan.master, server.endpoint]
        return Deployment(command, home, APP, folder / f"driver-{drivers}", CREDENTIALS)

    load, resharding = KinesisLoad(orders, plan.seed, plan.rate), Resharding(orders, plan.seed)
    rng = random.Random(plan.seed)
    chaos = Chaos(start, rng, has_executors=False, deployment=start())
    try:
        chaos.deployment.wait_running()
        report(f"every task runs after {time.monotonic() - chaos.began:.1f} s")
        chaos.began = time.monotonic()
        load.start()
        resharding.start()
        _inject_faults(plan, chaos, rng, report)
        resharding.finish()
        written = load.finish()
        began = time.monotonic()
        _wait_until_taken(chaos.deployment, home, load, written)
        report(f"{written.height:,} orders are taken {time.monotonic() - began:.1f} s after the last one")
        chaos.deployment.wait_for("everything is shipped", _is_published, SHIPPED_S)
        report(f"and shipped after {time.monotonic() - began:.1f} s")
        chaos.deployment.interrupt()
        code = chaos.deployment.wait(FINISH_S)
        report(f"{dict(resharding.made)}, {load.repeated} records refused; the driver ended with {code}")
        report(summary(chaos.faults))
        if code:
            report(chaos.deployment.errors())
        return _judge(home, written, shipped, report) and code == 0
    finally:
        chaos.close()


def _inject_faults(plan: KinesisPlan, chaos: Chaos, rng: random.Random, report: Callable[[str], None]) -> None:
    deadline = time.monotonic() + plan.seconds
    kinds = list(plan.kinds or FIRST)
    while kinds or (not plan.kinds and time.monotonic() < deadline):
        time.sleep(rng.uniform(*PAUSE_S))
        fault = chaos.inject(kinds.pop(0)) if kinds else chaos.strike()
        report(f"{fault.at_s:6.1f} s  {fault.kind:<16}  {fault.detail}; recovered after {fault.recovery_s:.1f} s")


def _wait_until_taken(deployment: Deployment, home: Path, load: KinesisLoad, written: pl.DataFrame) -> None:
    """Kinesis has no end, so the app doesn't end by itself."""
    due = {"in-order": written.height, "seen": written.height, "sums": _sums(written).height}

    next_s = time.monotonic()

    def taken() -> bool:
        nonlocal next_s
        if time.monotonic() >= next_s:
            load.let_time_pass()
            next_s = time.monotonic() + TIME_PASSES_S
        if (code := deployment.exit_code()) is not None:
            raise UnavailableError(f"the driver ended with {code}", hint=deployment.errors()[-3000:])
        return all(committed_rows(home, stream)[0].height >= rows for stream, rows in due.items())

    try:
        until(taken, "every order is taken", FINISH_S)
    except UnavailableError as error:
        if deployment.exit_code() is not None:
            raise
        found = {stream: committed_rows(home, stream)[0].height for stream in due}
        raise UnavailableError(f"{error.message}: {found} of {due} rows", hint=deployment.errors()[-3000:]) from error


def _is_published(status: AppStatus) -> bool:
    return not any(output.waiting for task in status.tasks for output in task.outputs.values())


# -- the verdict -----------------------------------------------------------------------------------


def _sums(written: pl.DataFrame) -> pl.DataFrame:
    return written.group_by("member", window_start=pl.col("ts") // WINDOW_MS * WINDOW_MS).agg(
        orders=pl.len().cast(pl.Int64), amount=pl.col("amount").sum()
    )


def _judge(home: Path, written: pl.DataFrame, shipped: OwnedStream, report: Callable[[str], None]) -> bool:
    due = {"seen": written.select("order"), "in-order": written.select("order", "member"), "sums": _sums(written)}
    found = {stream: committed_rows(home, stream)[0] for stream in due}
    # Of each member there are no sums of the orders that let event time pass.
    found["sums"] = found["sums"].filter(pl.col("member") >= 0)
    comparisons = [compare(stream, found[stream], rows) for stream, rows in due.items()]
    wrong = out_of_order(found["in-order"])
    comparisons.append(_compare_shipped(shipped, written, report))
    for comparison in comparisons:
        report(comparison.describe())
    report(f"in-order: {len(wrong)} members whose orders came in another order {wrong[:10]}")
    return not wrong and all(comparison.equal for comparison in comparisons)


def _compare_shipped(shipped: OwnedStream, written: pl.DataFrame, report: Callable[[str], None]) -> Comparison:
    """Compare the first copies of what was shipped, in the order of each member."""
    rows = pl.DataFrame(
        [json.loads(record["Data"]) for record in shipped.read()], {"order": pl.Int64, "member": pl.Int64}
    )
    once = rows.unique("order", keep="first", maintain_order=True)
    wrong = out_of_order(once)
    report(f"shipped: {rows.height - once.height:,} records came again, {len(wrong)} members out of order {wrong[:10]}")
    # What is out of order counts as missing.
    right = once.filter(~pl.col("member").is_in(wrong))
    return compare("shipped", right, written.select("order", "member"))


def out_of_order(rows: pl.DataFrame) -> list[int]:
    """Return the members whose orders don't rise."""
    falls = rows.select("member", falls=(pl.col("order").diff() <= 0).over("member"))
    return sorted(falls.filter("falls")["member"].unique().to_list())
