"""What processes that end without a word leave behind: real processes, which end in real ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.coordinator.messages import LastWords
from headrace.run.last_words import Recorder, clear, forget, left_in
from headrace.task.scope import Work

PROGRAM = """
import ctypes, multiprocessing, os, signal, sys
from pathlib import Path
from headrace.run.last_words import Recorder
from headrace.task.scope import Work

recorder = Recorder(Path({folder!r}), 3, "one")
recorder.start()
recorder.keep(Work("cut/0", "earlier", "log.in[0], offset 6", 0.0))
recorder.keep(None)
recorder.keep(Work("cut/0", "cut", "log.in[0], offset 7", 0.0))

def function():
    {end}

function()
"""


def words_of(tmp_path: Path, end: str) -> tuple[LastWords, int]:
    script = tmp_path / "jobs.py"
    script.write_text(PROGRAM.format(folder=str(tmp_path / "at-work"), end=end))
    run = subprocess.run([sys.executable, str(script)], capture_output=True, timeout=60, check=False)
    left = left_in(tmp_path / "at-work", 3)
    assert left.keys() == {"one"}, run.stderr.decode()
    return left["one"], run.returncode


@pytest.mark.parametrize(
    ("end", "how", "code"),
    [
        ("os._exit(3)", "called os._exit(3) at {file}:14", 3),
        ("ctypes.string_at(0)", "was killed by SIGSEGV (Segmentation fault) at {file}:14", -signal.SIGSEGV),
        ("os.abort()", "was killed by SIGABRT (Aborted) at {file}:14", -signal.SIGABRT),
        ("os.kill(os.getpid(), signal.SIGKILL)", "", -signal.SIGKILL),
        ("os.fork() or os._exit(4); os.wait(); os.kill(os.getpid(), 9)", "", -signal.SIGKILL),
    ],
)
def test_the_function_at_work_and_how_it_ended_are_left_behind(tmp_path: Path, end: str, how: str, code: int) -> None:
    words, returned = words_of(tmp_path, end)
    told = how.format(file=tmp_path / "jobs.py")
    assert words == LastWords(task="cut/0", step="cut", place="log.in[0], offset 7", how=told, by_itself=bool(how))
    assert returned == code
    forget(tmp_path / "at-work", 3, "one")
    assert left_in(tmp_path / "at-work", 3) == {}


def test_an_orderly_end_leaves_nothing_behind(tmp_path: Path) -> None:
    before = os._exit
    recorder = Recorder(tmp_path, 3, "one")
    recorder.start()
    assert os._exit is not before
    recorder.keep(Work("cut/0", "cut", "", 0.0))
    recorder.close()
    assert os._exit is before
    assert list(tmp_path.iterdir()) == []


def test_between_calls_no_function_is_named(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 3, "one")
    recorder.keep(Work("cut/0", "cut", "", 0.0))
    recorder.keep(None)
    assert left_in(tmp_path, 3) == {"one": LastWords()}
    recorder.close()


def test_a_note_that_is_too_long_keeps_the_names(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 3, "one")
    recorder.keep(Work("cut/0", "cut", "x" * 10_000, 0.0))
    assert left_in(tmp_path, 3) == {"one": LastWords(task="cut/0", step="cut")}
    recorder.close()


def test_what_earlier_runs_left_is_deleted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 3, "one")
    clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    recorder.close()


def test_only_the_latest_are_told_and_kept(tmp_path: Path) -> None:
    for number in range(70):
        (tmp_path / f"3.{number}").write_bytes(b"")
        os.utime(tmp_path / f"3.{number}", (number, number))
    assert left_in(tmp_path, 3) == {str(number): LastWords() for number in range(6, 70)}
    assert len(list(tmp_path.iterdir())) == 64


def test_other_containers_never_cost_a_dead_one_its_words(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 3, "dead")
    recorder.keep(Work("cut/0", "cut", "", 0.0))
    others = [Recorder(tmp_path, number, f"u{number}") for number in range(4, 104)]
    for other in others:
        other.keep(Work("cut/1", "cut", "", 0.0))
    os.utime(tmp_path / "3.dead", (0, 0))
    assert all(left_in(tmp_path, number).keys() == {f"u{number}"} for number in range(4, 104))
    assert left_in(tmp_path, 3) == {"dead": LastWords(task="cut/0", step="cut")}
    for one in (recorder, *others):
        one.close()


def test_where_nothing_has_run(tmp_path: Path) -> None:
    assert left_in(tmp_path / "at-work", 3) == {}
    forget(tmp_path / "at-work", 3, "one")
