"""The options of a reader: read, and refused where they make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.spark.reading import LATEST, OLDEST, READING, Bound, ReadOptions


def of(options: dict[str, str], *, streaming: bool = False) -> ReadOptions:
    return ReadOptions.of({"path": "orders"} | options, "/home", streaming=streaming)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    batch, stream = of({}), of({}, streaming=True)
    assert (batch.start.everywhere, batch.end.everywhere) == (OLDEST, LATEST)
    assert stream.start.everywhere == LATEST
    assert (batch.stream, batch.home) == ("orders", Path("/home"))
    assert batch.committed
    assert batch.fails_on_loss
    assert not batch.with_position
    assert batch.rows_per_trigger is None


def test_names_are_read_in_any_case() -> None:
    found = of({"STARTINGOFFSETS": "Latest", "maxoffsetspertrigger": "10", "FailOnDataLoss": "FALSE"}, streaming=True)
    assert found.start.everywhere == LATEST
    assert found.rows_per_trigger == 10
    assert not found.fails_on_loss


@pytest.mark.parametrize("text", ['{"0": 4711, "1": -2}', '{"orders": {"0": 4711, "1": -2}}'])
def test_offsets_may_be_given_by_partition(text: str) -> None:
    assert of({"startingOffsets": text}).start == Bound("startingOffsets", offsets={0: 4711, 1: OLDEST})


def test_a_stream_is_named_by_path_or_by_option() -> None:
    assert ReadOptions.of({"subscribe": "orders"}, streaming=False).stream == "orders"
    assert of({"subscribe": "orders"}).stream == "orders"


def test_the_home_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    assert of({"home": "here"}).home == tmp_path / "here"
    assert ReadOptions.of({"path": "orders"}, streaming=False).home == tmp_path / ".headrace"
    monkeypatch.setenv("HEADRACE_HOME", "/data")
    assert ReadOptions.of({"path": "orders"}, streaming=False).home == Path("/data")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"startingOffset": "earliest"}, "option 'startingoffset' is unknown", "did you mean startingOffsets?"),
        ({"kafka.bootstrap.servers": "x"}, "'kafka.bootstrap.servers' is unknown", ", ".join(READING)),
        ({"subscribe": "views"}, "one stream can be read at a time, not orders, views", "union"),
        ({"path": "", "subscribe": ""}, "no stream is named", ".load("),
        ({"path": "orders,views"}, "one stream can be read at a time", "union"),
        ({"paths": '["orders"]'}, "several paths", "union"),
        ({"startingOffsets": "oldest"}, "earliest, latest or an offset for each partition, not 'oldest'", '"0": 4711'),
        ({"startingOffsets": '{"0": -3}'}, "earliest, latest or an offset", "-2 is the oldest"),
        ({"startingOffsets": '{"0": true}'}, "earliest, latest or an offset", "-2 is the oldest"),
        ({"startingOffsets": "{}"}, "earliest, latest or an offset", "-2 is the oldest"),
        ({"endingTimestamp": "2026-01-01"}, "a number of ms since the epoch, not '2026-01-01'", ""),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "contradict each other", "one of them"),
        ({"minPartitions": "0"}, "a whole number of at least 1, not '0'", ""),
        ({"committed": "yes"}, "option committed must be true or false, not 'yes'", ""),
        ({"maxOffsetsPerTrigger": "1"}, "can't be used with spark.read", "endingOffsets"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        of(options)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_streaming_query_has_no_end() -> None:
    with pytest.raises(UsageError, match=r"endingOffsets can't be used with spark\.readStream"):
        of({"endingOffsets": "latest"}, streaming=True)
