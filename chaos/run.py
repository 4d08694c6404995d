"""One run of chaos: load, faults, end of input, verdict. Reports its progress."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos import workload
from chaos.deployment import Deployment
from chaos.faults import Chaos, Fault
from chaos.load import Load
from chaos.oracle import expected
from chaos.poison import PoisonedWriter, judge_letters
from chaos.power import Power
from chaos.verdict import judge, judge_database
from headrace.core.errors import HeadraceError
from headrace.run.spark.settings import is_local
from headrace.streams import StreamWriter

PAUSE_S = (0.5, 3.0)
FINISH_S = 300.0


@dataclass(frozen=True, kw_only=True)
class ChaosPlan:
    """The settings of a run. ``kinds`` is a fixed sequence of faults, instead of random ones for ``seconds``."""

    seed: int
    seconds: float
    master: str = "local-cluster[2,1,1024]"
    rate: int = 10_000
    kinds: tuple[str, ...] = ()
    keep: bool = False


def run(plan: ChaosPlan, report: Callable[[str], None]) -> bool:
    """Run it, and return whether the app's committed output is exactly what was expected."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    passed = False
    try:
        passed = _run(plan, folder, report)
    finally:
        if passed or not plan.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            report(f"everything is kept in {folder}")
    return passed


def _run(plan: ChaosPlan, folder: Path, report: Callable[[str], None]) -> bool:
    home = folder / "home"
    workload.prepare(home)
    power = Power(folder / "power")
    drivers = 0

    def start() -> Deployment:
        nonlocal drivers
        drivers += 1
        command = [sys.executable, "-m", workload.__name__, str(home), plan.master]
        scratch = folder / f"driver-{drivers}"
        return Deployment(command, home, workload.APP, scratch, import_first=(power.path,))

    orders = PoisonedWriter("orders", home, plan.seed)
    load = Load(orders, StreamWriter("payments", home=home), plan.seed, plan.rate)
    rng = random.Random(plan.seed)
    chaos = Chaos(
        start,
        rng,
        has_executors=not is_local(plan.master),
        deployment=start(),
        hang=home / workload.HANG,
        # Who writes the inputs is on another machine, and syncs what is written.
        lose_tails=lambda: power.cut(home, rng, safe=workload.INPUTS),
    )
    try:
        chaos.deployment.wait_running()
        report(f"every task runs after {time.monotonic() - chaos.began:.1f} s")
        chaos.began = time.monotonic()
        load.start()
        _inject_faults(plan, chaos, rng, report)
        written = load.finish()
        began = time.monotonic()
        code = chaos.deployment.wait(FINISH_S)
        report(
            f"sealed after {written.orders.height:,} orders; the driver ended with {code} after "
            f"{time.monotonic() - began:.1f} s"
        )
        report(summary(chaos.faults))
        outputs = expected(written)
        comparisons = judge(home, outputs)
        comparisons.append(judge_letters(home, orders.count))
        comparisons.append(judge_database(home / workload.DATABASE, "report", outputs["region-totals"]))
        for comparison in comparisons:
            report(comparison.describe())
        if code:
            report(chaos.deployment.errors())
        return code == 0 and all(comparison.equal for comparison in comparisons)
    except HeadraceError as error:
        report(f"the app did not recover: {error}")
        return False
    finally:
        chaos.close()


def _inject_faults(plan: ChaosPlan, chaos: Chaos, rng: random.Random, report: Callable[[str], None]) -> None:
    deadline = time.monotonic() + plan.seconds
    kinds = list(plan.kinds)
    while kinds if plan.kinds else time.monotonic() < deadline:
        time.sleep(rng.uniform(*PAUSE_S))
        fault = chaos.inject(kinds.pop(0)) if plan.kinds else chaos.strike()
        report(f"{fault.at_s:6.1f} s  {fault.kind:<16}  {fault.detail}; recovered after {fault.recovery_s:.1f} s")


def summary(faults: list[Fault]) -> str:
    """Return how often each fault happened, and how long recovery took."""
    lines = [f"{len(faults)} faults:"]
    for kind in sorted({fault.kind for fault in faults}):
        times = sorted(fault.recovery_s for fault in faults if fault.kind == kind)
        median, longest = times[len(times) // 2], times[-1]
        lines.append(f"  {len(times):3} x {kind:<16} recovery: median {median:.1f} s, at most {longest:.1f} s")
    return "\n".join(lines)
