"""``python -m simulator [--seeds N] [--seed S] [--stages shuffle,join,app-counts]``, or ``--list``."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter

from simulator import changing_rows
from simulator.declared import CASES
from simulator.run import (
    ALONE_SHAPES,
    CUT_SHAPES,
    OBJECT_SHAPES,
    POWER_SHAPES,
    PROCESS_SHAPES,
    RESTORED_SHAPES,
    Outcome,
    simulate,
)
from simulator.shapes import MOVED, SHAPES

MOVED_APPS = tuple(name for name, case in CASES.items() if case.moved)
_CHANGING = {case.name for case in changing_rows.CASES}
_OF_APPS = *CASES, *CUT_SHAPES, *RESTORED_SHAPES, *OBJECT_SHAPES, *POWER_SHAPES, *PROCESS_SHAPES, *ALONE_SHAPES

_GROUPS = {
    "bare": tuple(SHAPES),
    "apps": tuple(CASES),
    "kinesis": tuple(name for name, case in CASES.items() if case.slotted),
    "moved": (*MOVED, *MOVED_APPS),
    "cuts": CUT_SHAPES,
    "restores": RESTORED_SHAPES,
    "objects": OBJECT_SHAPES,
    "power": POWER_SHAPES,
    "process": PROCESS_SHAPES,
    "alone": ALONE_SHAPES,
    "changing": tuple(shape for shape in _OF_APPS if shape.partition("+")[0] in _CHANGING),
}
"""Names for many shapes: without operators, apps with real ones, those that read Kinesis, those whose positions users
move, both with savepoints, apps that are restored, both with snapshots in an object store, both on a machine whose
power fails, apps there that don't wait for the disk, both in one container, and all of apps whose rows change."""

_YOUNG_MAX = 50_000
_FREEZES = 1, 100, 1000
"""At which seeds what there is (modules, plans) is taken for lasting: the collector needn't look through it."""

_NAMES = {*_GROUPS, *(shape for shapes in _GROUPS.values() for shape in shapes)}


def main(arguments: list[str] | None = None) -> int:
    """Run seeds; returns 1 when one fails. A seed named without ``--seeds`` is told as a story."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description="Simulate the protocol.")
    parser.add_argument("--seeds", type=int, help="how many seeds to run (default: 100, or the one of --seed)")
    parser.add_argument("--seed", type=int, help="the first seed (default: 1); without --seeds, tell its story")
    parser.add_argument(
        "--stages", default="", help=f"shapes to choose from, by name or all of {', '.join(_GROUPS)} (see --list)"
    )
    parser.add_argument("--list", action="store_true", help="list the shapes of each group instead")
    parser.add_argument("--keep-going", action="store_true", help="run all seeds, also after a failure")
    options = parser.parse_args(arguments)
    if options.list:
        sys.stdout.writelines(f"{name}: {', '.join(shapes)}\n" for name, shapes in _GROUPS.items())
        return 0
    names = [name for name in options.stages.split(",") if name]
    shapes = tuple(shape for name in names for shape in _GROUPS.get(name, (name,)))
    unknown = set(shapes) - _NAMES
    if unknown:
        parser.error(f"no such stages: {', '.join(sorted(unknown))} (--list names those there are)")
    if options.seeds is None and options.seed is not None:
        return _tell(options.seed, shapes)
    first, count = options.seed or 1, 100 if options.seeds is None else options.seeds
    return _run(range(first, first + count), shapes, options.keep_going)


def _tell(seed: int, shapes: tuple[str, ...]) -> int:
    story: list[str] = []
    outcome = simulate(seed, shapes, story=story)
    sys.stdout.write("\n".join([*story, _line(outcome), ""]))
    return 1 if outcome.failure else 0


def _run(seeds: range, shapes: tuple[str, ...], keep_going: bool) -> int:
    counts: Counter[str] = Counter()
    taken = dict.fromkeys(_GROUPS, 0.0)
    gc.set_threshold(_YOUNG_MAX, 20, 100)
    for number, seed in enumerate(seeds):
        if number in _FREEZES:
            gc.collect()
            gc.freeze()
        began = time.process_time()
        outcome = simulate(seed, shapes)
        group = next(name for name, shapes in _GROUPS.items() if outcome.shape in shapes)
        taken[group] += time.process_time() - began
        counts.update({group: 1, "steps": outcome.steps, "commits": outcome.commits, "rollbacks": outcome.rollbacks})
        if outcome.failure is None:
            counts["passed"] += 1
            continue
        counts["failed"] += 1
        sys.stdout.write(_line(outcome) + "\n")
        if not keep_going:
            _tell(seed, shapes)
            break
    rates = [f"{group} {counts[group] / seconds:.1f}" for group, seconds in taken.items() if seconds]
    rate = (counts["passed"] + counts["failed"]) / sum(taken.values())
    sys.stdout.write(f"{counts['steps']} steps, {counts['commits']} commits, {counts['rollbacks']} rollbacks, ")
    sys.stdout.write(f"{rate:.1f} seeds/s of processor time ({', '.join(rates)})\n")
    sys.stdout.write(f"{counts['passed']} passed, {counts['failed']} failed\n")
    return 1 if counts["failed"] else 0


def _line(outcome: Outcome) -> str:
    verdict = outcome.failure or "passed"
    return f"seed {outcome.seed} ({outcome.shape}, {outcome.ended_at_ms:.0f} ms, {outcome.steps} steps): {verdict}"


if __name__ == "__main__":
    sys.exit(main())
