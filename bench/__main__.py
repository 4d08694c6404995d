"""``python -m bench``: Headrace against others on this machine, and the costs of Headrace's own parts.

{parts}

The times of (a), (b), the running count, sessions and the join: all contestants are warm before, and read the same
Parquet files. For Structured Streaming the time is from building the query until it has ended and its results are
committed. For Headrace it is the whole of ``App.run`` in the same Spark session: planning, creating streams, starting
the coordinator, launching and registering containers, the work, the last checkpoint, and the end of the Spark job.
Contestants take turns, and medians count. Every result is compared with what Polars computes from the same files.

Each part has a share of what is left of ``--minutes``. If it takes longer it is cut short, and the report says so.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import traceback
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bench import nexmark, page
from bench.budget import GRACE, Budget, Deadline, interrupted_after
from bench.measure import CutShortError, WrongResultError, processor_clock
from bench.parts import PARTS, Bench
from bench.peer import peers
from bench.report import Report, machine


def main() -> int:
    """Run the chosen parts. Return 0 if none failed and all results were right."""
    options = _options()
    processor_clock()  # before any other process starts
    report = Report(Console(width=140), machine())
    failed = 0
    with TemporaryDirectory(prefix="headrace-bench-") as base, ExitStack() as stack:
        bench = Bench(Path(base), options, report, () if options.alone else stack.enter_context(peers()))
        stack.callback(bench.close)
        budget = Budget(options.minutes * 60, {part: PARTS[part].weight for part in options.only})
        for name in options.only:
            failed += _run(bench, name, budget)
    report.machine["peers"] = [peer.settings for peer in bench.peers if peer.settings]
    report.write(options.json)
    report.console.print(f"figures: {options.json}", highlight=False)
    if options.write:
        page.write(options.json, options.write)
    if bench.ratio is not None:
        print(f"ratio throughput(b) headrace/structured-streaming = {bench.ratio:.2f}")
    return 1 if failed else 0


def _run(bench: Bench, name: str, budget: Budget) -> bool:
    """Run a part within its share of the time. Return whether it failed or a result was wrong."""
    share_s = budget.share_s(name)
    with bench.report.part(name, PARTS[name].about) as part:
        bench.turns.deadline = Deadline(budget.now() + share_s, cut=part.notes)
        bench.turns.missing.clear()
        bench.part_s = share_s
        try:
            with interrupted_after(GRACE * share_s):
                PARTS[name].run(bench)
        except CutShortError as error:
            bench.stop()
            part.notes.append(f"{error}: figures that are missing were not measured")
        except Exception as error:  # noqa: BLE001 - other parts can still be measured
            bench.stop()
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
    parser.add_argument("--write", type=Path, metavar="PAGE.md", help="also write a page, with its plots in images")
    parser.add_argument("--minutes", type=float, default=55, help="the time of the whole run (default 55)")
    parser.add_argument("--alone", action="store_true", help="without the peers that have processes of their own")
    parser.add_argument("--large", action="store_true", help="growth at sizes that take hours")
    parser.add_argument("--messages", type=int, help="messages of (a) and (b) (default 10 million)")
    parser.add_argument("--repeats", type=int, help="counted runs of each contestant (default 5)")
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
