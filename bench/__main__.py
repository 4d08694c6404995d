"""``python -m bench``: Headrace against others on this machine, and the costs of Headrace's own parts.

{parts}

The times of (a), (b), the running count, sessions and the join: all contestants are warm before, and read the same
Parquet files. For Structured Streaming the time is from building the query until it has ended and its results are
committed. For Headrace it is the whole of ``App.run`` in the same Spark session: planning, creating streams, starting
the coordinator, launching and registering containers, the work, the last checkpoint, and the end of the Spark job.
Contestants take turns, and medians count. Every result is compared with what Polars computes from the same files.

Each part has a process of its own and a share of what is left of ``--minutes``. If it takes longer it is cut short, and
the report says so. The figures are written after each part; ``--add`` measures more parts another time.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bench import nexmark, page
from bench.budget import GRACE, Deadline, interrupted_after
from bench.measure import CutShortError, WrongResultError, processor_clock
from bench.parts import PARTS, Bench
from bench.peer import peers
from bench.report import Report, machine
from bench.separately import Results, measure_separately


def main() -> int:
    """Run the chosen parts. Return 0 if none failed and all results were right."""
    options = _options()
    if len(options.only) == 1 and not options.add:
        failed = _measure(options)
    else:
        try:
            results = Results(options.json, machine(), options.add)
        except ValueError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
        try:
            failed = measure_separately(results, options)
        except KeyboardInterrupt:
            print(f"interrupted: figures of {', '.join(results.figures['parts']) or 'no part'} are in {options.json}")
            return 130
    if not options.of_several:
        print(f"figures: {options.json}")
    if options.write:
        page.write(options.json, options.write)
    return 1 if failed else 0


def _measure(options: argparse.Namespace) -> bool:
    """Measure one part in this process. Return whether it failed or a result was wrong."""
    processor_clock()  # before any other process starts
    report = Report(Console(width=140), machine())
    with TemporaryDirectory(prefix="headrace-bench-") as base, ExitStack() as stack:
        bench = Bench(Path(base), options, report, () if options.alone else stack.enter_context(peers()))
        (name,) = options.only
        failed = _run(bench, name, options.minutes * 60)
        report.machine["peers"] = [peer.settings for peer in bench.peers if peer.settings]
        report.write(options.json)
        bench.close()
    return failed


def _run(bench: Bench, name: str, share_s: float) -> bool:
    """Run a part within its share of the time. Return whether it failed or a result was wrong."""
    with bench.report.part(name, PARTS[name].about) as part:
        bench.turns.deadline = Deadline(time.monotonic() + share_s, cut=part.notes)
        bench.part_s = share_s
        try:
            with interrupted_after(GRACE * share_s):
                PARTS[name].run(bench)
        except CutShortError as error:
            bench.abandon()
            part.notes.append(f"{error}: figures that are missing were not measured")
        except Exception as error:  # noqa: BLE001 - what was measured before is kept
            bench.abandon()
            traceback.print_exc()
            what = "wrong results" if isinstance(error, WrongResultError) else "failed"
            part.notes.append(f"{what}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            return True
        finally:
            part.notes += [f"{peer}: {why}" for peer, why in bench.turns.missing.items()]
    return False


def _options() -> argparse.Namespace:
    parts = "\n".join(f"  {name:14} {part.about}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=(__doc__ or "").replace("{parts}", f"Parts, for ``--only``:\n{parts}"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    today = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d-%H%M")
    parser.add_argument("--quick", action="store_true", help="few messages and one repeat, to see that it works")
    parser.add_argument(
        "--only", type=_some_of(PARTS), default=tuple(PARTS), metavar="PART,...", help="run only these parts"
    )
    parser.add_argument(
        "--queries",
        type=_some_of(nexmark.READS),
        default=tuple(nexmark.READS),
        metavar="q0,...",
        help="run only these queries of nexmark",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("bench/results") / f"{today}.json",
        metavar="FILE",
        help="where to write the figures",
    )
    parser.add_argument("--add", action="store_true", help="keep what the file has of other parts")
    parser.add_argument("--write", type=Path, metavar="PAGE.md", help="also write a page, with its plots in images")
    parser.add_argument("--minutes", type=float, default=55, help="the time of the whole run (default 55)")
    parser.add_argument("--alone", action="store_true", help="without the peers that have processes of their own")
    parser.add_argument("--large", action="store_true", help="growth at sizes that take hours")
    parser.add_argument("--messages", type=int, help="messages of (a) and (b) (default 10 million)")
    parser.add_argument("--repeats", type=int, help="counted runs of each contestant (default 5)")
    parser.add_argument("--of-several", action="store_true", help=argparse.SUPPRESS)  # part of a run of several
    return parser.parse_args()


def _some_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    def chosen(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {', '.join(known)}")
        return names

    return chosen


if __name__ == "__main__":
    sys.exit(main())
