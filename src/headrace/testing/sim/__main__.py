"""``python -m headrace.testing.sim --seeds N [--seed S] [--stages shuffle,join]``."""

from __future__ import annotations

import argparse
import sys
import time

from headrace.testing.sim.run import Outcome, simulate
from headrace.testing.sim.shapes import SHAPES


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; 1 when one fails. A single seed is told as a story."""
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.sim", description="Simulate the protocol.")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone, and tell its story")
    parser.add_argument("--stages", default="", help=f"shapes to choose from: {', '.join(SHAPES)}")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, also after a failure")
    options = parser.parse_args(arguments)
    shapes = tuple(name for name in options.stages.split(",") if name)
    unknown = set(shapes) - SHAPES.keys()
    if unknown:
        parser.error(f"no such stages: {', '.join(sorted(unknown))} (there are {', '.join(SHAPES)})")
    if options.seed is not None:
        return _tell(options.seed, shapes)
    return _run(range(options.start, options.start + options.seeds), shapes, options.keep_going)


def _tell(seed: int, shapes: tuple[str, ...]) -> int:
    story: list[str] = []
    outcome = simulate(seed, shapes, story=story)
    sys.stdout.write("\n".join([*story, _line(outcome), ""]))
    return 1 if outcome.failure else 0


def _run(seeds: range, shapes: tuple[str, ...], keep_going: bool) -> int:
    began, passed, failed, steps, commits, rollbacks = time.monotonic(), 0, 0, 0, 0, 0
    for seed in seeds:
        outcome = simulate(seed, shapes)
        steps += outcome.steps
        commits += outcome.commits
        rollbacks += outcome.rollbacks
        if outcome.failure is None:
            passed += 1
            continue
        failed += 1
        sys.stdout.write(_line(outcome) + "\n")
        if not keep_going:
            _tell(seed, shapes)
            break
    seconds = time.monotonic() - began
    rate = (passed + failed) / seconds
    sys.stdout.write(f"{steps} steps, {commits} commits, {rollbacks} rollbacks, {rate:.1f} seeds/s\n")
    sys.stdout.write(f"{passed} passed, {failed} failed\n")
    return 1 if failed else 0


def _line(outcome: Outcome) -> str:
    verdict = outcome.failure or "passed"
    return f"seed {outcome.seed} ({outcome.shape}, {outcome.ended_at_ms:.0f} ms, {outcome.steps} steps): {verdict}"


if __name__ == "__main__":
    sys.exit(main())
