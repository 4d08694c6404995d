from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError
from headrace.operate.cli.stream_rows import infer_columns
from headrace.rows.pieces import last_row_ends, parse_rows
from headrace.rows.text import JsonRows, encode_lines, shown

VIEWS = {"member": pl.String(), "ts": pl.Int64()}


@dataclass(frozen=True)
class BadLine:
    """A line that can't become a row: its index among the given lines, the number of rows before it, and why."""

    index: int
    rows_before: int
    reason: str


def decode(
    columns: Mapping[str, pl.DataType], data: bytes, *, drop_unknown: bool = False
) -> tuple[pl.DataFrame, list[BadLine]]:
    """The rows of whole lines, and the lines that aren't rows."""
    decoder = JsonRows(columns, drop_unknown=drop_unknown)
    frames, bad = [decoder.parse(b"")], []
    line = rows = 0
    for piece in parse_rows(data, last_row_ends(data, quote=None), decoder.parse):
        line += piece.skipped
        for before, one in enumerate(piece.bad):
            bad.append(BadLine(line + one.index, rows + one.index - before, f"{one.reason}: {shown(one.raw)}"))
        frames += [piece.frame] if piece.span else []
        line += piece.span
        rows += piece.frame.height
    return pl.concat(frames), bad


def test_lines_become_rows_in_order() -> None:
    frame, bad = decode(VIEWS, b'{"member":"a","ts":1}\n\n{"ts":2,"member":"b"}\r\n')
    assert bad == []
    assert frame.equals(pl.DataFrame({"member": ["a", "b"], "ts": [1, 2]}))


def test_a_missing_field_is_null() -> None:
    frame, bad = decode(VIEWS, b'{"ts":1}')
    assert bad == []
    assert frame.rows() == [(None, 1)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hello", "not JSON (invalid character (byte 0)): hello"),
        (b'{"member":"a"', 'not JSON (input data was truncated): {"member":"a"'),
        (b"[1]", "Expected object, got array: [1]"),
        (b'{"ts":"1"}', 'Expected int, got str, in the field ts: {"ts":"1"}'),
        (b'{"ts":1.5}', 'Expected int, got float, in the field ts: {"ts":1.5}'),
        (b'{"ts":9223372036854775808}', "Expected int <= 9223372036854775807, in the field ts"),
        (b'{"membr":"a"}', 'Object contains unknown field membr (did you mean member?): {"membr":"a"}'),
        (b'{"ts":1}{"ts":2}', "not JSON (trailing characters (byte"),
    ],
)
def test_a_bad_line_is_named_with_its_reason(line: bytes, reason: str) -> None:
    frame, bad = decode(VIEWS, b'{"ts":1}\n\n' + line + b'\n{"ts":3}\n')
    assert frame.get_column("ts").to_list() == [1, 3]
    assert [(one.index, one.rows_before) for one in bad] == [(2, 1)]
    assert bad[0].reason.startswith(reason)


def test_a_value_over_several_lines_is_refused() -> None:
    frame, bad = decode(VIEWS, b'{"ts":\n1}\n{"ts":2}\n')
    assert frame.height == 1
    assert [one.index for one in bad] == [0, 1]


def test_unknown_fields_can_be_dropped() -> None:
    frame, bad = decode(VIEWS, b'{"ts":1,"more":[1,2]}', drop_unknown=True)
    assert (frame.rows(), bad) == ([(None, 1)], [])


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (pl.UInt8(), "256"),
        (pl.UInt64(), "18446744073709551616"),
        (pl.Datetime("us"), '"2024-01-01T00:00:00Z"'),
        (pl.Datetime("us", "UTC"), '"2024-01-01T00:00:00"'),
        (pl.Enum(["a", "b"]), '"c"'),
        (pl.Array(pl.Int64, 2), "[1]"),
        (pl.Binary(), '"!"'),
    ],
)
def test_what_a_type_has_no_room_for_is_a_bad_line(dtype: pl.DataType, text: str) -> None:
    frame, bad = decode({"x": dtype}, b'{"x":' + text.encode() + b"}\n{}\n")
    assert frame.rows() == [(None,)]
    assert [one.index for one in bad] == [0]


EVERYTHING = pl.DataFrame(
    {
        "b": [b"\x00\xff", None],
        "moment": [dt.datetime(2024, 1, 1, 1, 2, 3, 4), None],
        "zoned": pl.Series([dt.datetime(2024, 1, 1), None]).dt.replace_time_zone("UTC"),
        "day": [dt.date(2024, 1, 1), None],
        "time": [dt.time(1, 2, 3), None],
        "span": [dt.timedelta(seconds=90), None],
        "money": pl.Series([Decimal("1.50"), None], dtype=pl.Decimal(10, 2)),
        "list": [[1, None], None],
        "nested": [{"b": [b"\x01"], "t": dt.datetime(2024, 1, 1)}, None],
        "kind": pl.Series(["a", None], dtype=pl.Enum(["a", "b"])),
        "big": pl.Series([2**64 - 1, None], dtype=pl.UInt64),
        "weird name": [True, None],
    }
)


@pytest.mark.parametrize("column", EVERYTHING.columns)
def test_every_type_survives_the_way_there_and_back(column: str) -> None:
    df = EVERYTHING.select(column)
    back, bad = decode(dict(df.schema), encode_lines(df))
    assert bad == []
    assert back.equals(df)
    assert back.schema == df.schema


@given(
    st.lists(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)))
)
def test_any_values_survive(rows: list[tuple[str, int, float]]) -> None:
    df = pl.DataFrame(rows, schema={"s": pl.String, "i": pl.Int64, "f": pl.Float64}, orient="row")
    back, bad = decode(dict(df.schema), encode_lines(df))
    assert bad == []
    assert back.equals(df)


def test_lines_are_json_as_everybody_reads_it() -> None:
    lines = encode_lines(pl.DataFrame({"a": ["x\ny", None], "f": [1.0, float("nan")]})).splitlines()
    assert [msgspec.json.decode(line) for line in lines] == [{"a": "x\ny", "f": 1.0}, {"a": None, "f": None}]


def test_columns_are_inferred_from_all_lines() -> None:
    columns, bad = infer_columns(b'{"a":1,"b":null,"c":[]}\n{"a":1.5,"b":"x","c":[{"d":true}],"e":{"f":1}}\nnonsense\n')
    assert columns == {
        "a": pl.Float64(),
        "b": pl.String(),
        "c": pl.List(pl.Struct({"d": pl.Boolean})),
        "e": pl.Struct({"f": pl.Int64}),
    }
    assert [one.index for one in bad] == [2]


def test_a_field_of_two_types_is_an_error_that_names_it() -> None:
    with pytest.raises(DataError, match=r"the field 'a\.b' is sometimes Int64, sometimes String"):
        infer_columns(b'{"a":{"b":1}}\n{"a":{"b":"x"}}')


def test_a_field_that_is_always_null_asks_for_a_schema() -> None:
    with pytest.raises(DataError, match="no value shows the type of a") as raised:
        infer_columns(b'{"a":null}')
    assert raised.value.hint is not None and '--schema "a:str,..."' in raised.value.hint


def test_lines_are_shown_without_what_steers_a_terminal() -> None:
    assert shown(b"\x1b[31mred\x07 \xff ok") == "\ufffd[31mred\ufffd \ufffd ok"
