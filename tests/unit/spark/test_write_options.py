"""Options of writers: what is read from them, and what is refused with what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.spark.writing import WriteOptions


def test_options_are_read_whatever_their_case(tmp_path: Path) -> None:
    given = {"HOME": str(tmp_path), "path": "orders", "Key": "member, day", "PARTITIONS": "4"}
    read = WriteOptions.of(given, streaming=False, overwrite=False)
    assert read == WriteOptions(tmp_path, "orders", ("member", "day"), 4, None, None, None)
    named = {"topic": "orders", "writer": "daily", "version": "20260131", "key": '["a,b"]'}
    read = WriteOptions.of(named, streaming=False, overwrite=False)
    assert (read.stream, read.writer, read.version, read.keys) == ("orders", "daily", 20260131, ("a,b",))


def test_a_query_is_named_by_its_checkpoint_or_itself() -> None:
    sparks = {"path": "orders", "checkpointlocation": "/c", "queryname": "q"}
    assert WriteOptions.of(sparks, streaming=True, overwrite=False).checkpoint_location == "/c"
    assert WriteOptions.of({"path": "o", "writer": "w"}, streaming=True, overwrite=False).writer == "w"


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({}, False, r"no stream is named\n.*save\(.orders.\)"),
        ({"path": "a", "topic": "b"}, False, "not a, b"),
        ({"path": "a/b"}, False, "'a/b' is not a usable id"),
        ({"path": "a", "writr": "x"}, False, "'writr' is unknown\n.*did you mean writer"),
        ({"path": "a", "partitions": "0"}, False, "partitions must be a whole number of at least 1, not '0'"),
        ({"path": "a", "key": " "}, False, "key must be one or several columns"),
        ({"path": "a", "key": "[1"}, False, "key must be one or several columns"),
        ({"path": "a", "key": "[1]"}, False, "key must be one or several columns"),
        ({"path": "a", "writer": "w"}, False, "version is missing"),
        ({"path": "a", "version": "1"}, False, "writer is missing"),
        ({"path": "a", "writer": "w", "version": "-1"}, False, "version must be a whole number"),
        ({"path": "a", "writer": "w", "version": str(2**63)}, False, "version must be a whole number"),
        ({"path": "a", "writer": "batch/0", "version": "1"}, False, "'batch/0' is not a usable id"),
        ({"path": "a"}, True, "needs a name .*\n.*checkpointLocation"),
        ({"path": "a", "writer": "w", "version": "1"}, True, "can't be used with df.writeStream"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WriteOptions.of(given, streaming=streaming, overwrite=False)


def test_a_stream_is_not_overwritten() -> None:
    with pytest.raises(UsageError, match=r'mode\("append"\)'):
        WriteOptions.of({"path": "a"}, streaming=False, overwrite=True)
    with pytest.raises(UsageError, match=r'outputMode\("append"\)'):
        WriteOptions.of({"path": "a"}, streaming=True, overwrite=True)
