"""Fails if Headrace has become slower against others than recorded: ``python -m bench.guard``, or ``make bench-guard``.

It repeats the parts whose results are in ``bench/recorded``, and compares ratios with those. One has fallen if it is
more than 15 % lower than recorded. On a machine with another processor, or where the ratios of single turns differ
widely, or where other programs take many cores, that means nothing, and it can't be judged. The exit code is 1 if a
ratio has fallen, otherwise 3 if one that is lower can't be judged, otherwise 0. To record other figures, write results
there: ``python -m bench --quick --repeats 5 --alone --only b,running,guarantee --json bench/recorded/NAME.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.measure import CORES, OTHERS_MAX, SPREAD_MAX, median, spread
from bench.report import machine

RECORDED = Path(__file__).parent / "recorded"
FALL_MAX = 0.15
TURNS_MIN = 3
MINUTES, LIMIT_S = 8, 600.0
RATIOS = {
    "b": ("structured-streaming", ("headrace", "headrace from its log")),
    "running": ("structured-streaming", ("headrace",)),
    "guarantee": ("at_least_once", ("exactly_once",)),
}
"""The parts that it can compare: whose time is divided, and by whose."""
TIMES = {"runs_wall_s": "time", "runs_cpu_s": "processor time"}


class Verdict(IntEnum):
    """What is known of a ratio; its value is the exit code."""

    FINE = 0
    FELL = 1
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Compared:
    """A ratio now and as recorded."""

    name: str
    turns: Sequence[float]
    others: Sequence[float]
    recorded: float
    elsewhere: str = ""
    """The other processor that the recorded ratio is from."""

    def verdict(self, cores: int = CORES) -> Verdict:
        """Judge it."""
        if median(self.turns) >= (1 - FALL_MAX) * self.recorded:
            return Verdict.FINE
        return Verdict.UNKNOWN if self.noise(cores) else Verdict.FELL

    def noise(self, cores: int = CORES) -> str:
        """Say why it can't be judged; empty if it can."""
        if self.elsewhere:
            return f"recorded on another processor, {self.elsewhere}"
        if len(self.turns) < TURNS_MIN:
            return f"only {len(self.turns)} turns"
        if spread(self.turns) > SPREAD_MAX:
            return f"turns differ by {spread(self.turns):.0%}"
        if self.others and median(self.others) > OTHERS_MAX * cores:
            return f"others took {median(self.others):.1f} of {cores} cores"
        return ""


def turns_of(part: Mapping[str, Any], peer: str, ours: str, times: str) -> list[float]:
    """How many times as fast as the peer a contestant was, turn by turn."""
    return [theirs / own for theirs, own in zip(part[peer][times], part[ours][times], strict=False)]


def of_this_processor(recorded: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return all results of this processor if there are any, otherwise those of others."""
    here, found = machine()["processor"], dict[str, Any]()
    for one in [one for one in recorded if one["machine"]["processor"] == here] or recorded:
        found |= one
    return found


def compared(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[Compared]:
    """Compare all ratios that both results have."""
    found = []
    here, there = (results.get("machine", {}).get("processor", "") for results in (now, recorded))
    elsewhere = there if there != here else ""
    for part, (peer, names) in RATIOS.items():
        for ours in names:
            for times, what in TIMES.items():
                if all(name in results.get(part, {}) for results in (recorded, now) for name in (peer, ours)):
                    others = now[part][ours].get("others", [])
                    then = median(turns_of(recorded[part], peer, ours, times))
                    turns = turns_of(now[part], peer, ours, times)
                    found.append(Compared(f"{part}: {ours}, {what}", turns, others, then, elsewhere))
    return found


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """What all of them mean: a fall that is certain counts most, then one that isn't."""
    return next((one for one in (Verdict.FELL, Verdict.UNKNOWN) if one in verdicts), Verdict.FINE)


def main() -> int:
    """Measure, compare, and say what was found."""
    recorded = of_this_processor(
        [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDED.glob("*.json"))]
    )
    parts = ",".join(part for part in RATIOS if part in recorded)
    with TemporaryDirectory(prefix="headrace-guard-") as folder:
        results = Path(folder, "results.json")
        command = [sys.executable, "-m", "bench", "--quick", "--repeats", "5", "--alone", "--only", parts]
        try:
            subprocess.run([*command, "--minutes", str(MINUTES), "--json", results], check=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            print(f"it can't be judged: the benchmark didn't end within {LIMIT_S:.0f} s")
            return Verdict.UNKNOWN
        found = compared(recorded, json.loads(results.read_text(encoding="utf-8")))
    for one in found:
        verdict = one.verdict()
        said = {Verdict.FINE: "fine", Verdict.FELL: "fell", Verdict.UNKNOWN: f"can't be judged: {one.noise()}"}[verdict]
        print(f"{one.name}: {median(one.turns):.2f}, recorded {one.recorded:.2f}: {said}")
    if not found:
        print("it can't be judged: nothing was measured that is recorded")
    return overall([one.verdict() for one in found] or [Verdict.UNKNOWN])


if __name__ == "__main__":
    sys.exit(main())
