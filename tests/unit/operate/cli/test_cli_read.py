from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.core.clock import ManualClock
from headrace.core.frame import END_VERSION, Checkpoint, Header, Kind, Restore, Watermark, encode, encode_control
from headrace.rows.ipc import encode_rows
from headrace.systems.log.producer import LogProducer
from headrace.systems.log.system import LogSystem

Cli = Callable[..., Any]


@pytest.fixture
def log(home: Path) -> LogSystem:
    system = LogSystem(home / "streams")
    system.admin().create("numbers", 2, {"n": pl.Int64()})
    return system


def rows(*numbers: int) -> bytes:
    return encode(Header(Kind.USER)) + encode_rows(pl.DataFrame({"n": numbers}))


def append(log: LogSystem, *payloads: bytes, partition: int = 0) -> list[int]:
    """Append frames one by one, and return their offsets."""
    producer = log.producer()
    offsets = []
    for payload in payloads:
        offsets.append(log.admin().extents("numbers")[partition].upcoming)
        producer.send("numbers", partition, payload)
        producer.flush()
    producer.close()
    return offsets


def numbers(outcome: Any) -> list[int]:
    assert outcome.code == 0, outcome.err
    return [line["n"] for line in outcome.lines()]


def test_from_positions(cli: Cli, log: LogSystem) -> None:
    first, second = append(log, rows(1, 2), rows(3))
    append(log, rows(10), partition=1)
    assert sorted(numbers(cli("stream", "read", "numbers"))) == [1, 2, 3, 10]
    assert sorted(numbers(cli("stream", "read", "numbers", "--from", "oldest"))) == [1, 2, 3, 10]
    assert numbers(cli("stream", "read", "numbers", "--from", "upcoming")) == []
    assert sorted(numbers(cli("stream", "read", "numbers", "--from", f"0:{second}"))) == [3, 10]
    assert numbers(cli("stream", "read", "numbers", "--from", second, "--partition", 0)) == [3]
    assert numbers(cli("stream", "read", "numbers", "--from", "upcoming", "--from", f"0:{first}")) == [1, 2, 3]


def test_from_a_time(cli: Cli, log: LogSystem) -> None:
    clock = ManualClock(1_700_000_000_000)
    for number in range(5):
        producer = LogProducer(log.root, clock=clock)
        producer.send("numbers", number % 2, rows(number))
        producer.close()
        clock.advance(60_000)
    assert sorted(numbers(cli("stream", "read", "numbers", "--time", 1_700_000_000_000))) == [0, 1, 2, 3, 4]
    late = cli("stream", "read", "numbers", "--time", "2023-11-14T22:15:20")
    assert sorted(numbers(late)) == [2, 3, 4]
    assert "names no zone, so it is read as UTC: 2023-11-14 22:15:20Z" in late.err
    zoned = "2023-11-14T23:17:00+01:00"
    assert numbers(cli("stream", "read", "numbers", "--time", zoned, "--partition", 0)) == [4]
    assert numbers(cli("stream", "read", "numbers", "--ago", "1h")) == []
    append(log, rows(9))
    assert numbers(cli("stream", "read", "numbers", "--ago", "1h")) == [9]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--time", "noon"), "'noon' isn't a time"),
        (("--time", "2999-01-01"), "is in the future"),
        (("--ago", "3"), "--ago: '3' isn't a duration"),
        (("--ago", "1h", "--from", "oldest"), "--from and --ago both give a position"),
        (("--ago", "1h", "--time", "2023-11-14"), "--time and --ago both give a position"),
    ],
)
@pytest.mark.usefixtures("log")
def test_times_that_make_no_sense(cli: Cli, words: tuple[str, ...], message: str) -> None:
    refused = cli("stream", "read", "numbers", *words)
    assert refused.code == 2
    assert message in refused.err


def test_limit_counts_lines(cli: Cli, log: LogSystem) -> None:
    append(log, rows(1, 2), rows(3, 4))
    assert numbers(cli("stream", "read", "numbers", "--limit", 3)) == [1, 2, 3]
    assert numbers(cli("stream", "read", "numbers", "-n", 2)) == [1, 2]


def test_offsets_lead_back_to_the_row(cli: Cli, log: LogSystem) -> None:
    _, second = append(log, rows(1), rows(2))
    line = cli("stream", "read", "numbers", "--offsets").lines()[1]
    assert line == {"@partition": 0, "@offset": second, "n": 2}
    again = cli("stream", "read", "numbers", "--from", f"{line['@partition']}:{line['@offset']}", "--partition", 0)
    assert numbers(again) == [2]


def test_control_frames_show_only_when_asked_for(cli: Cli, log: LogSystem) -> None:
    watermark = Watermark(task_name="a/0", task_count=2, timestamp=17)
    checkpoint = Checkpoint(task_name="a/0", task_count=2, next_version=END_VERSION)
    offsets = append(
        log,
        encode_control(Header(Kind.WATERMARK, 3, 1, seq=5), watermark),
        rows(1),
        encode_control(Header(Kind.CHECKPOINT, 3, 1, 8, 6), checkpoint),
        encode(Header(Kind.CHANGE, 3, 1, END_VERSION, 7), b"xyz"),
    )
    assert cli("stream", "read", "numbers").lines() == [{"n": 1}]
    shown = cli("stream", "read", "numbers", "--control").lines()
    assert shown[0] == {
        "@control": "watermark",
        "@partition": 0,
        "@offset": offsets[0],
        "producer": 3,
        "generation": 1,
        "version": None,
        "seq": 5,
        "message": {"version": 1, "taskName": "a/0", "taskCount": 2, "timestamp": 17},
    }
    assert shown[1] == {"n": 1}
    assert (shown[2]["@control"], shown[2]["version"], shown[2]["message"]["taskName"]) == ("checkpoint", 8, "a/0")
    assert (shown[3]["@control"], shown[3]["version"], shown[3]["bytes"]) == ("change", "end", 3)


def test_a_stream_without_rows_says_what_it_holds(cli: Cli, log: LogSystem) -> None:
    append(log, encode_control(Header(Kind.WATERMARK), Watermark(task_name="a/0", task_count=1, timestamp=1)))
    read = cli("stream", "read", "numbers")
    assert (read.code, read.out) == (0, "")
    assert "1 control frame: use --control to show them" in read.err


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"hello, I am no frame at all", "log.numbers[0], offset 32: unknown frame kind 104"),
        (b"short", "log.numbers[0], offset 32: a frame has at least 25 bytes"),
        (
            encode(Header(Kind.USER), b"no arrow"),
            "log.numbers[0], offset 32, in a frame of a writer outside of apps: a body of 8 bytes",
        ),
    ],
)
def test_what_is_no_frame_is_named_with_its_place(cli: Cli, log: LogSystem, payload: bytes, message: str) -> None:
    append(log, payload)
    failed = cli("stream", "read", "numbers")
    assert failed.code == 1
    assert message in failed.err
    assert "Traceback" not in failed.err


def undecodable() -> bytes:
    """Rows of which no reader can decode one: a sum of decimals in a group, which Polars doesn't check."""
    half = pl.Series("x", [Decimal(6 * 10**37)] * 2, dtype=pl.Decimal(38, 0))
    body = io.BytesIO()
    pl.DataFrame({"n": [1, 1], "x": half}).group_by("n").agg(pl.col("x").sum()).write_ipc_stream(body)
    return body.getvalue()


def test_records_that_cant_be_read_dont_hide_the_others(cli: Cli, log: LogSystem) -> None:
    _, second, _, fourth, fifth, _ = append(
        log,
        rows(1),
        encode(Header(Kind.USER, 3, 2, 5, 7), undecodable()),
        rows(2),
        b"no frame",
        encode(Header(Kind.USER, 3, 2, 5, 8), b"no arrow"),
        rows(3),
    )
    append(log, rows(10), partition=1)
    read = cli("stream", "read", "numbers")
    assert sorted(line["n"] for line in read.lines()) == [1, 2, 3, 10]
    assert read.code == 1
    app = "in a frame of a task of an app (producer 3, generation 2)"
    assert f"log.numbers[0], offset {second}, {app}: a body of" in read.err
    assert "has a value that can't be decoded" in read.err
    assert f"log.numbers[0], offset {fourth}: a frame has at least 25 bytes" in read.err
    assert f"log.numbers[0], offset {fifth}, {app}: a body of 8 bytes" in read.err
    assert "an app wrote the frame, so it was damaged later" in read.err
    assert "another program" not in read.err
    assert "3 records of log.numbers can't be read; the others are shown" in read.err
    strict = cli("stream", "read", "numbers", "--strict", "--partition", 0)
    assert strict.code == 1
    assert "the others are shown" not in strict.err
    assert strict.err.count("error:") == 1


def test_only_the_first_of_many_records_that_cant_be_read_are_named(cli: Cli, log: LogSystem) -> None:
    append(log, *[b"no frame"] * 12, rows(1))
    read = cli("stream", "read", "numbers", "--committed")
    assert (read.code, read.lines()) == (1, [{"n": 1}])
    assert read.err.count("a frame has at least") == 10
    assert "12 records of log.numbers can't be read" in read.err


def test_an_unreadable_control_message_is_named_with_its_place(cli: Cli, log: LogSystem) -> None:
    append(log, encode(Header(Kind.WATERMARK), b"{}"))
    assert cli("stream", "read", "numbers").code == 0
    failed = cli("stream", "read", "numbers", "--control")
    assert failed.code == 1
    assert "log.numbers[0], offset 32: unreadable WATERMARK message" in failed.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--from", "yesterday"), 2, "'yesterday' isn't a position"),
        (("--from", "32"), 2, "--from 0:32"),
        (("--from", "7:32"), 2, "has no partition 7"),
        (("--from", "x:32"), 2, "'x' isn't the number of a partition"),
        (("--from", "1:32", "--partition", "0"), 2, "--partition 0 excludes partition 1"),
        (("--from", "0:99999"), 2, "is after the end"),
        (("--partition", "2"), 2, "has no partition 2; its partitions are 0 to 1"),
        (("--limit", "0"), 2, "expected a number of at least 1"),
    ],
)
@pytest.mark.usefixtures("log")
def test_positions_that_make_no_sense(cli: Cli, words: tuple[str, ...], code: int, message: str) -> None:
    refused = cli("stream", "read", "numbers", *words)
    assert refused.code == code
    assert message in refused.err


def test_following_a_sealed_stream_ends(cli: Cli, log: LogSystem) -> None:
    append(log, rows(1))
    log.admin().seal("numbers")
    assert numbers(cli("stream", "read", "numbers", "--follow")) == [1]


def versioned(header: Header, *values: int) -> bytes:
    return encode(header) + encode_rows(pl.DataFrame({"n": values}))


def test_committed_shows_rows_once_their_checkpoint_is_there(cli: Cli, log: LogSystem) -> None:
    task = {"task_name": "a/0", "task_count": 1}
    append(
        log,
        encode_control(Header(Kind.RESTORE, 3, 1, -1, 1), Restore(**task, seq=0, next_version=5)),
        versioned(Header(Kind.USER, 3, 1, 5, 2), 1),
        encode_control(Header(Kind.CHECKPOINT, 3, 1, 5, 3), Checkpoint(**task, next_version=6)),
        versioned(Header(Kind.USER, 3, 1, 6, 4), 2),
        rows(100),
    )
    assert numbers(cli("stream", "read", "numbers")) == [1, 2, 100]
    early = cli("stream", "read", "numbers", "--committed")
    assert numbers(early) == [1, 100]
    assert "not committed yet: 1 frame" in early.err
    append(log, encode_control(Header(Kind.RESTORE, 3, 2, 5, 4), Restore(**task, seq=3, next_version=6)))
    assert numbers(cli("stream", "read", "numbers", "--committed")) == [1, 100]
    append(
        log,
        versioned(Header(Kind.USER, 3, 2, 6, 5), 20),
        encode_control(Header(Kind.CHECKPOINT, 3, 2, 6, 6), Checkpoint(**task, next_version=7)),
    )
    assert numbers(cli("stream", "read", "numbers", "--committed")) == [1, 100, 20]


def test_committed_names_the_place_of_a_broken_sequence(cli: Cli, log: LogSystem) -> None:
    checkpoint = Checkpoint(task_name="a/0", task_count=1, next_version=6)
    append(
        log,
        versioned(Header(Kind.USER, 3, 1, 5, 2), 1),
        versioned(Header(Kind.USER, 3, 1, 5, 9), 2),
        encode_control(Header(Kind.CHECKPOINT, 3, 1, 5, 10), checkpoint),
    )
    failed = cli("stream", "read", "numbers", "--committed")
    assert failed.code == 1
    assert "log.numbers[0]: producer 3: received CHECKPOINT (1, #10)" in failed.err
