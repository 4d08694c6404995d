"""``python -m chaos``: run an app under load and faults, and check that its output is exactly-once."""

from __future__ import annotations

import argparse
import random
import sys

from chaos import cluster, kinesis, moves, world
from chaos.run import ChaosPlan, run
from headrace.core.errors import InfrastructureError

NOT_HERE = 3
_IN_WORLD = "--in-world"


def say(line: str) -> None:
    """Print a line immediately, even if the output is redirected."""
    print(line, flush=True)


def main() -> int:
    """Run once. Return 0 if no row is missing or duplicated, else print the differences and return 1.

    Return 3, and say why, if a cluster can't be made here.
    """
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, help="how long to inject faults (default 60)")
    parser.add_argument("--seed", type=int, help="seed of messages and faults (default: random, and printed)")
    parser.add_argument("--master", help=f"Spark master (default {ChaosPlan.master})")
    parser.add_argument("--rate", type=int, help=f"orders a second (default {ChaosPlan.rate})")
    parser.add_argument(
        "--fault",
        action="append",
        choices=cluster.KINDS,
        default=[],
        help="inject only this fault; repeat for a sequence",
    )
    parser.add_argument("--keep", action="store_true", help="keep streams, state and logs if the run fails")
    parser.add_argument(
        "--moves",
        action="store_true",
        help="rewind, upgrade, restore and rescale an app by commands while its containers are killed: each once, then "
        "at random for the seconds that are left (default 0)",
    )
    parser.add_argument(
        "--move", action="append", choices=moves.KINDS, default=[], help="make only these moves, in this sequence"
    )
    parser.add_argument(
        "--kinesis",
        action="store_true",
        help="read and write streams of a server that stands in for Kinesis, while shards split and merge",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="run a standalone Spark whose machines share no folder, in namespaces; kill, wipe and cut off machines",
    )
    parser.add_argument(
        "--standby",
        type=int,
        default=0,
        metavar="N",
        help="with --cluster: how many standbys each task has (default 0)",
    )
    parser.add_argument(_IN_WORLD, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    if options.moves or options.move:
        return _moves(options, seed)
    if options.kinesis:
        return _kinesis(options, seed)
    if options.cluster:
        return _cluster(options, seed)
    plan = ChaosPlan(
        seed=seed,
        seconds=60.0 if options.seconds is None else options.seconds,
        master=options.master or ChaosPlan.master,
        rate=options.rate or ChaosPlan.rate,
        kinds=tuple(options.fault),
        keep=options.keep,
    )
    say(f"chaos on {plan.master} for {plan.seconds:g} s, seed {seed}")
    passed = run(plan, say)
    say(f"{'nothing lost, nothing doubled' if passed else 'FAILED'}, seed {seed}")
    return 0 if passed else 1


def _kinesis(options: argparse.Namespace, seed: int) -> int:
    plan = kinesis.KinesisPlan(
        seed=seed,
        seconds=60.0 if options.seconds is None else options.seconds,
        master=options.master or kinesis.KinesisPlan.master,
        rate=options.rate or kinesis.KinesisPlan.rate,
        kinds=tuple(options.fault),
        keep=options.keep,
    )
    say(f"Kinesis on {plan.master} for {plan.seconds:g} s, seed {seed}")
    passed = kinesis.run(plan, say)
    say(f"{'nothing lost, nothing doubled, nothing out of order' if passed else 'FAILED'}, seed {seed}")
    return 0 if passed else 1


def _cluster(options: argparse.Namespace, seed: int) -> int:
    if not options.in_world:
        try:
            world.enter("chaos", [*sys.argv[1:], _IN_WORLD])
        except InfrastructureError as error:
            say(f"{error.message}; {error.hint}")
            return NOT_HERE
    plan = cluster.ClusterPlan(
        seed=seed,
        seconds=60.0 if options.seconds is None else options.seconds,
        rate=options.rate or cluster.ClusterPlan.rate,
        kinds=tuple(options.fault) or cluster.FIRST,
        keep=options.keep,
        standby=options.standby,
    )
    say(f"a cluster for {plan.seconds:g} s, seed {seed}")
    passed = cluster.run(plan, say)
    say(f"{'nothing lost, nothing doubled' if passed else 'FAILED'}, seed {seed}")
    return 0 if passed else 1


def _moves(options: argparse.Namespace, seed: int) -> int:
    plan = moves.MovesPlan(
        seed=seed,
        seconds=options.seconds or 0,
        master=options.master or moves.MovesPlan.master,
        rate=options.rate or moves.MovesPlan.rate,
        turn=tuple(options.move) or moves.TURN,
        keep=options.keep,
    )
    say(f"moves on {plan.master}, seed {seed}")
    passed = moves.run(plan, say)
    say(f"{'every order is where it has to be' if passed else 'FAILED'}, seed {seed}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
