"""Whole processes: pipes, following, Ctrl-C, a reader that closes the pipe."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.core.files import readable
from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Edge, Records
from headrace.systems.log.system import LogSystem

Process = subprocess.Popen[bytes]
Spawn = Callable[..., Process]
PATIENCE_S = 120


@pytest.fixture
def log(home: Path) -> LogSystem:
    system = LogSystem(home / "streams")
    system.admin().create("views", 1)
    return system


def ended(process: Process) -> tuple[int, str]:
    """The process's exit code, and what it printed on stderr."""
    code = process.wait(PATIENCE_S)
    assert process.stderr is not None
    return code, process.stderr.read().decode()


def put(process: Process, text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text.encode())
    process.stdin.flush()


def next_line(process: Process) -> Any:
    assert process.stdout is not None
    assert readable(process.stdout.fileno(), 1000 * PATIENCE_S), "nothing arrived"
    return json.loads(process.stdout.readline())


def wait_for_rows(log: LogSystem, partition: int = 0) -> None:
    """Wait until the partition has grown."""
    consumer = log.consumer()
    consumer.register(SSP(StreamId("log", "views"), partition), Edge.OLDEST)
    fd = consumer.fileno()
    deadline = time.monotonic() + PATIENCE_S
    while not any(isinstance(item, Records) for item in consumer.poll()):
        assert time.monotonic() < deadline, "nothing was written"
        readable(fd, 500)
    consumer.close()


def test_a_pipe_is_written_before_it_ends(spawn: Spawn, log: LogSystem) -> None:
    writer = spawn("stream", "write", "views", "--schema", "n:i64")
    put(writer, '{"n":1}\n{"n":')
    wait_for_rows(log)
    put(writer, "2}")
    assert writer.stdin is not None
    writer.stdin.close()
    assert ended(writer) == (0, "wrote 2 rows to log.views\n")
    reader = spawn("stream", "read", "views")
    assert [next_line(reader), next_line(reader)] == [{"n": 1}, {"n": 2}]
    assert ended(reader) == (0, "")


def test_rows_pass_from_a_writer_to_a_follower_promptly(spawn: Spawn, log: LogSystem) -> None:
    follower = spawn("stream", "read", "views", "--follow")
    writer = spawn("stream", "write", "views", "--schema", "n:i64")
    put(writer, '{"n":0}\n')
    assert next_line(follower) == {"n": 0}
    waits = []
    for number in range(1, 41):
        began = time.monotonic()
        put(writer, json.dumps({"n": number}) + "\n")
        assert next_line(follower) == {"n": number}
        waits.append(time.monotonic() - began)
    # A few are enough, as the machine may be busy. With polls every 500 ms, one in 25 would be as fast.
    assert sorted(waits)[5] < 0.02
    log.admin().seal("views")
    assert ended(follower) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("log")
def test_ctrl_c_ends_following_well(spawn: Spawn, number: signal.Signals) -> None:
    writer = spawn("stream", "write", "views", "--schema", "n:i64")
    put(writer, '{"n":1}\n')
    follower = spawn("stream", "read", "views", "--follow")
    assert next_line(follower) == {"n": 1}
    follower.send_signal(number)
    assert ended(follower) == (0, "")


def test_ctrl_c_ends_a_writer_from_a_pipe_well(spawn: Spawn, log: LogSystem) -> None:
    writer = spawn("stream", "write", "views", "--schema", "n:i64")
    put(writer, '{"n":1}\n')
    wait_for_rows(log)
    put(writer, '{"n":')
    writer.send_signal(signal.SIGINT)
    assert ended(writer) == (0, "wrote 1 row to log.views\n")


def test_ctrl_c_in_the_middle_of_a_file_says_that_it_is_half_done(spawn: Spawn, log: LogSystem, tmp_path: Path) -> None:
    big = tmp_path / "big.jsonl"
    big.write_text('{"n":1}\n' * 8_000_000)
    writer = spawn("stream", "write", "views", big, "--schema", "n:i64")
    wait_for_rows(log)
    writer.send_signal(signal.SIGINT)
    code, said = ended(writer)
    assert code == 130
    resumed = re.search(
        rf"interrupted in the middle of {big}: repeat the command with --id (\w+) to write the rest", said
    )
    assert resumed is not None
    big.write_text('{"n":1}\n' * 100_000)  # less of the same, to be quick
    said = ended(spawn("stream", "write", "views", big, "--schema", "n:i64", "--id", resumed[1]))[1]
    assert "the stream already had" in said


@pytest.mark.usefixtures("log")
def test_a_reader_that_has_had_enough_ends_it_quietly(spawn: Spawn) -> None:
    writer = spawn("stream", "write", "views", "--schema", "n:i64")
    put(writer, '{"n":1}\n' * 200_000)
    assert writer.stdin is not None
    writer.stdin.close()
    assert ended(writer)[0] == 0
    reader = spawn("stream", "read", "views")
    assert next_line(reader) == {"n": 1}
    assert reader.stdout is not None
    reader.stdout.close()
    assert ended(reader) == (0, "")


@pytest.mark.usefixtures("log")
def test_a_follower_notices_that_its_reader_is_gone(spawn: Spawn) -> None:
    writer = spawn("stream", "write", "views", "--schema", "n:i64")
    put(writer, '{"n":1}\n')
    follower = spawn("stream", "read", "views", "--follow")
    assert next_line(follower) == {"n": 1}
    assert follower.stdout is not None
    follower.stdout.close()
    assert ended(follower) == (0, "")


@pytest.mark.usefixtures("log")
def test_a_bad_line_from_a_pipe_names_stdin_and_its_line(spawn: Spawn) -> None:
    writer = spawn("stream", "write", "views", "--schema", "n:i64")
    put(writer, '{"n":1}\n\nnonsense\n{"n":2}\n')
    code, said = ended(writer)
    assert code == 1
    assert "error: stdin:3: not JSON (invalid character" in said
    assert "written before that: 1 row" in said
    assert "Traceback" not in said


def test_inference_waits_for_a_few_rows(spawn: Spawn, home: Path) -> None:
    writer = spawn("stream", "write", "views", "--create", "--partitions", "1")
    put(writer, '{"n":1}\n')
    time.sleep(0.1)
    put(writer, '{"n":1.5}\n')
    assert writer.stdin is not None
    writer.stdin.close()
    assert ended(writer) == (0, "wrote 2 rows to log.views\n")
