"""``python -m chaos``: see the package."""

from __future__ import annotations

import argparse
import random
import sys

from chaos.faults import KINDS
from chaos.run import ChaosPlan, run


def say(line: str) -> None:
    """Tell whoever watches, at once."""
    print(line, flush=True)


def main() -> int:
    """Run it once; 0 when nothing was lost and nothing doubled, 1 with the differences."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long things go wrong (default 60)")
    parser.add_argument("--seed", type=int, help="of messages and faults; drawn and printed by default")
    parser.add_argument("--master", default=ChaosPlan.master, help=f"Spark master (default {ChaosPlan.master})")
    parser.add_argument("--rate", type=int, default=ChaosPlan.rate, help=f"orders a second (default {ChaosPlan.rate})")
    parser.add_argument(
        "--fault", action="append", choices=KINDS, default=[], help="do just this, in the order given; may be repeated"
    )
    parser.add_argument("--keep", action="store_true", help="keep streams, state and logs when it fails")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    plan = ChaosPlan(
        seed=seed,
        seconds=given.seconds,
        master=given.master,
        rate=given.rate,
        kinds=tuple(given.fault),
        keep=given.keep,
    )
    say(f"chaos on {plan.master} for {plan.seconds:g} s, seed {seed}")
    good = run(plan, say)
    say(f"{'nothing lost, nothing doubled' if good else 'FAILED'}, seed {seed}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
