"""``python -m chaos``: run an app under load and faults, and check that its output is exactly-once."""

from __future__ import annotations

import argparse
import random
import sys

from chaos.faults import KINDS
from chaos.run import ChaosPlan, run


def say(line: str) -> None:
    """Print a line immediately, even if the output is redirected."""
    print(line, flush=True)


def main() -> int:
    """Run once. Return 0 if no row is missing or duplicated, else print the differences and return 1."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to inject faults (default 60)")
    parser.add_argument("--seed", type=int, help="seed of messages and faults (default: random, and printed)")
    parser.add_argument("--master", default=ChaosPlan.master, help=f"Spark master (default {ChaosPlan.master})")
    parser.add_argument("--rate", type=int, default=ChaosPlan.rate, help=f"orders a second (default {ChaosPlan.rate})")
    parser.add_argument(
        "--fault", action="append", choices=KINDS, default=[], help="inject only this fault; repeat for a sequence"
    )
    parser.add_argument("--keep", action="store_true", help="keep streams, state and logs if the run fails")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    plan = ChaosPlan(
        seed=seed,
        seconds=options.seconds,
        master=options.master,
        rate=options.rate,
        kinds=tuple(options.fault),
        keep=options.keep,
    )
    say(f"chaos on {plan.master} for {plan.seconds:g} s, seed {seed}")
    passed = run(plan, say)
    say(f"{'nothing lost, nothing doubled' if passed else 'FAILED'}, seed {seed}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
