"""``python -m seams [--cases N] [--seed S] [--in-process] [--list] [--case CASE]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from seams.factors import FACTORS, IN_PROCESS, ON_SPARK, RULES, Case, Space, coverage, covering, read, written
from seams.modes import MASTER, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns 1 if any case came out wrong."""
    parser = argparse.ArgumentParser(prog="python -m seams", description="Run apps that cover each pair of values.")
    parser.add_argument("--cases", type=int, help="how many cases; by default as many as cover each pair")
    parser.add_argument("--seed", type=int, default=1, help="chooses the cases (default: 1)")
    parser.add_argument("--in-process", action="store_true", help="leave out modes that start other processes")
    parser.add_argument("--list", action="store_true", help="print factors, rules, the cases and what they cover")
    parser.add_argument("--case", action="append", help="run this case, as a failure prints it")
    options = parser.parse_args(arguments)
    if options.case is not None:
        return run([read(text) for text in options.case])
    space = Space(IN_PROCESS if options.in_process else None)
    cases = covering(space, options.seed, options.cases)
    if options.list:
        for name, values in FACTORS.items():
            print(f"{name}: {', '.join(values)}")
        for rule in RULES:
            print(f"{' x '.join(rule.factors)}: {rule.why}")
        print("\n".join(map(written, cases)))
        print(coverage(cases, Space()))
        return 0
    failed = run(cases)
    print(coverage(cases, Space()))
    return failed


def run(cases: Sequence[Case]) -> int:
    """Run cases one after the other and print what is wrong; returns 1 if anything is."""
    failures = 0
    context = None
    if any(case["mode"] in ON_SPARK for case in cases):
        from headrace.run.spark.session import open_context

        context = open_context("headrace seams", MASTER)
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="headrace-seams-") as folder:
            try:
                said = wrong(case, Path(folder))
            except Exception:
                said = traceback.format_exc()
        if said is not None:
            failures += 1
            print(f"{said}\n  python -m seams --case '{written(case)}'", flush=True)
    if context is not None:
        from headrace.run.spark.session import close_context

        close_context(context)
    print(f"{len(cases) - failures:,} cases passed, {failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
