"""What the benchmark measures is right: processor time, statistics, doubts, and medians of turns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import measure
from bench.measure import CutShortError, Taken, doubt, percentile, spread, timed, tree_clock
from bench.turns import Contestant, Throughput, Turns
from headrace.core.errors import InfrastructureError

BUSY = "import time\nwhile time.process_time() < 0.5: pass"
ORPHAN = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BUSY!r}]); sys.exit()"


@pytest.mark.parametrize("kind", ["proc", "cgroup"])
@pytest.mark.parametrize("script", [BUSY, ORPHAN], ids=["a child that ended", "an orphan that ended"])
def test_the_time_of_processes_that_have_ended_counts(kind: str, script: str) -> None:
    """In a process of its own, since a clock changes whose child an orphan becomes."""
    program = f"""
import subprocess, sys, time
from bench import measure
clock = measure.tree_clock() if {kind!r} == "proc" else measure.processor_clock()
before = clock()
subprocess.run([sys.executable, "-c", {script!r}])
end = time.monotonic() + 30
while clock() - before < 0.5 and time.monotonic() < end:
    time.sleep(0.05)
used = clock() - before
assert 0.5 <= used < 5, used
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_the_clock_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = iter([5.0, 5.0, 5.0, 1.0, 2.0, 9.0, 6.0, 7.0, 8.0])
    monkeypatch.setattr(measure, "_tree_s", lambda: next(sums))
    clock = tree_clock()
    assert [clock(), clock(), clock()] == [5.0, 5.0, 7.0]


def test_a_run_has_its_load() -> None:
    taken = timed(lambda: sum(range(1_000_000)))
    assert taken.cpu_s > 0
    assert taken.others >= 0
    assert taken.load >= 0


def test_percentiles_and_spread() -> None:
    assert [percentile(range(100), share) for share in (0, 0.5, 0.99, 1)] == [0, 50, 99, 99]
    assert spread([8, 10, 12]) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("values", "others", "said"),
    [
        ([1.0], [0.0], "measured once"),
        ([1.0, 1.1], [0.1, 0.1], ""),
        ([1.0, 2.0], [0.1, 0.1], "spread 67%"),
        ([1.0, 1.1], [1.0, 1.0], "others took 1.0 of 2 cores"),
        ([1.0, 2.0], [1.0, 1.0], "spread 67%, others took 1.0 of 2 cores"),
    ],
)
def test_what_can_not_be_trusted_says_so(values: list[float], others: list[float], said: str) -> None:
    assert doubt(values, others, cores=2) == said


def test_medians_of_turns() -> None:
    one = Throughput.of([Taken(2, 4), Taken(1, 2), Taken(4, 8)], 100)
    assert (one.messages_per_s, one.wall_s, one.cpu_s, one.cpu_us) == (50, 2, 4, 40_000)


def turns(base: Path, repeats: int = 2) -> Turns:
    return Turns(base, lambda line: None, repeats)


def test_contestants_take_turns_and_their_own_times_count(tmp_path: Path) -> None:
    order: list[str] = []

    def contestant(name: str) -> Contestant:
        def work(out: Path) -> Taken:
            order.append(name)
            return Taken(len(order), 1)

        return Contestant(name, work, lambda out: None, 10 if name == "b" else None)

    found = turns(tmp_path).alternate([contestant("a"), contestant("b")], 100, 1)
    assert order == ["a", "b"] * 3
    assert found["a"].runs_wall_s == [3, 5]
    assert (found["a"].messages, found["b"].messages) == (100, 10)


def test_a_contestant_that_is_missing_is_left_out(tmp_path: Path) -> None:
    def missing(out: Path) -> None:
        raise InfrastructureError("not installed")

    those = turns(tmp_path)
    there = Contestant("there", lambda out: None, lambda out: None)
    assert list(those.alternate([Contestant("gone", missing, missing), there], 1)) == ["there"]
    assert those.missing == {"gone": "not installed"}


def test_turns_before_an_interruption_count(tmp_path: Path) -> None:
    runs: list[int] = []

    def work(out: Path) -> None:
        runs.append(1)
        if len(runs) == 3:
            raise CutShortError("interrupted")

    those = turns(tmp_path, 5)
    found = those.alternate([Contestant("one", work, lambda out: None)], 1, 0)
    assert len(found["one"].runs_wall_s) == 2
    assert those.deadline.cut == ["interrupted"]
    with pytest.raises(CutShortError):
        runs.clear()
        turns(tmp_path).alternate([Contestant("one", work, lambda out: None)], 1, 3)


def test_a_contestant_begins_when_the_one_before_has_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "processor_clock", tree_clock)  # the other one moves this process to another cgroup
    busy = "import time; end = time.monotonic() + 2.0\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as process:
        measure.come_to_rest()
        ended = process.poll()
    assert ended == 0
