"""Rows survive the conversion to bytes and back, and bytes that are no rows are refused."""

from __future__ import annotations

import io
import random
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError, FrameError
from headrace.rows.ipc import decode_rows, decode_runs, encode_rows, encode_rows_into

EVERYTHING = pl.DataFrame(
    {
        "text": ["short", None, "a string that is too long to lie in its view"],
        "number": [1, None, -3],
        "real": [0.5, None, float("inf")],
        "flag": [True, None, False],
        "raw": [b"x", None, b"y" * 40],
        "list": [[1, 2], None, []],
        "struct": [{"a": "x", "b": [1.0]}, None, {"a": None, "b": None}],
        "decimal": [Decimal("1.50"), None, Decimal("-2.25")],
        "date": [date(2024, 2, 29), None, date(1970, 1, 1)],
        "time": [time(1, 2, 3), None, time(0)],
        "span": [timedelta(days=1), None, timedelta(0)],
        "nothing": [None, None, None],
        "when": pl.Series([datetime(2024, 1, 1), None, datetime(1969, 1, 1)], dtype=pl.Datetime("ns", "UTC")),
        "category": pl.Series(["a", None, "b"], dtype=pl.Categorical),
        "choice": pl.Series(["a", None, "b"], dtype=pl.Enum(["a", "b"])),
        "array": pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int16, 2)),
        "small": pl.Series([1, None, 255], dtype=pl.UInt8),
    }
)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("rows", [3, 0])
def test_every_type_survives(rows: int, checked: bool) -> None:
    df = EVERYTHING.head(rows)
    back = decode_rows(encode_rows(df), checked=checked)
    assert back.schema == df.schema
    assert back.equals(df)


def test_a_table_without_columns_survives() -> None:
    assert decode_rows(encode_rows(pl.DataFrame())).shape == (0, 0)


def test_the_bytes_of_the_first_release_can_be_read() -> None:
    df = decode_rows((Path(__file__).parent / "rows-v1.arrow").read_bytes())
    assert df.to_dict(as_series=False) == {
        "member": ["user-1", None, "a member with quite a long name"],
        "ts": [1, None, 3],
        "v": [0.5, None, -1.0],
        "ok": [True, None, False],
        "raw": [b"x", None, b""],
        "at": [datetime(2024, 1, 2, 3, 4, 5), None, datetime(1970, 1, 1)],
        "tags": [["a"], None, []],
    }


def test_a_body_is_read_in_place_after_a_header_of_any_length() -> None:
    df = pl.DataFrame({"a": range(1000), "b": ["a string of more than twelve bytes"] * 1000})
    for size in range(30):
        whole = encode_rows_into(io.BytesIO(b"h" * size), df)
        assert whole[:size] == b"h" * size
        assert decode_rows(memoryview(whole)[size:]).equals(df)


def test_a_slice_of_a_big_frame_takes_no_more_than_its_rows() -> None:
    big = pl.DataFrame({"url": [f"https://example.com/a/path/that/is/long/{i}" for i in range(100_000)]})
    few = big.slice(50_000, 10)
    assert len(encode_rows(few)) < 2000
    assert len(encode_rows(big.filter(pl.int_range(pl.len()) % 10_000 == 0))) < 2000


def test_several_batches_in_one_stream_are_one_table() -> None:
    parts = [pl.DataFrame({"a": [n], "s": ["x" * 20]}) for n in range(5)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, parts[0].to_arrow().schema) as writer:
        for part in parts:
            writer.write_table(part.to_arrow())
    assert decode_rows(sink.getvalue().to_pybytes()).equals(pl.concat(parts))


@pytest.mark.parametrize("extra", [b"\0", b"garbage", b"\xff\xff\xff\xff\0\0\0\0"])
def test_what_follows_the_batch_is_an_error(extra: bytes) -> None:
    body = encode_rows(EVERYTHING)
    with pytest.raises(FrameError, match=f"batch of {len(body)} bytes is followed by {len(extra)} more"):
        decode_rows(body + extra)


def test_a_stream_that_stops_between_batches_is_an_error() -> None:
    body = encode_rows(pl.DataFrame({"a": [1]}))
    with pytest.raises(FrameError, match="without its end"):
        decode_rows(body[:-8])


@pytest.mark.parametrize("body", [b"", b"{}", b"hello, this is no Arrow at all", bytes(100), b"\xff" * 64])
def test_other_bytes_are_refused_and_shown(body: bytes) -> None:
    with pytest.raises(FrameError, match=f"a body of {len(body)} bytes"):
        decode_rows(body)


def test_damaged_bytes_never_end_the_process_nor_escape_the_error_tree() -> None:
    rng = random.Random(7)
    body = encode_rows(EVERYTHING)
    outcomes = {"refused": 0, "read": 0}
    for _ in range(3000):
        damaged = bytearray(body)
        for _ in range(rng.choice((1, 1, 5))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        damaged = damaged[: rng.randrange(len(damaged))] if rng.random() < 0.2 else damaged
        try:
            df = decode_rows(bytes(damaged))
        except FrameError:
            outcomes["refused"] += 1
        else:
            df.select(pl.all().is_null().sum())
            encode_rows(df)
            outcomes["read"] += 1
    assert outcomes["refused"] > 1000
    assert outcomes["read"] > 100  # the format doesn't detect a flipped bit in a number or in padding


@pytest.mark.parametrize("dtype", [pl.Int128, pl.Object])
def test_a_column_that_no_reader_could_read_is_refused_when_written(dtype: type[pl.DataType]) -> None:
    with pytest.raises(DataError, match=r"column 'big' of type \w+ can't be written"):
        encode_rows(pl.DataFrame({"big": pl.Series([1], dtype=dtype)}))


@pytest.mark.parametrize("rows", [1, 5000])
@pytest.mark.parametrize("checked", [True, False])
def test_few_and_many_rows_become_one_table_in_contiguous_memory(rows: int, checked: bool) -> None:
    table = pl.DataFrame(
        {"a": range(rows), "b": [f"text that is long, {n}" for n in range(rows)], "c": [[1, None]] * rows}
    )
    for columns in (["a", "b"], ["a", "b", "c"]):
        part = table.select(columns)
        ((together, heights),) = decode_runs([encode_rows(part)] * 3, checked=checked)
        assert (heights, together.n_chunks()) == ([rows] * 3, 1)
        assert together.equals(pl.concat([part] * 3))


def test_consecutive_streams_with_the_same_columns_are_one_table() -> None:
    small = pl.DataFrame({"a": [1], "b": ["x"]})
    tables = [
        small,
        small.clear(),
        pl.DataFrame({"a": [2, 3], "b": [None, "long " * 20]}),
        pl.DataFrame({"a": ["t"]}),
        small,
    ]
    runs = decode_runs([encode_rows(table) for table in tables])
    assert [heights for _, heights in runs] == [[1, 0, 2], [1], [1]]
    assert [rows.rows() for rows, _ in runs] == [pl.concat(tables[:3]).rows(), [("t",)], [(1, "x")]]
    assert decode_runs([]) == []


@pytest.mark.parametrize(
    ("first", "second"), [(pl.Enum(["x", "y"]), pl.Enum(["y", "x"])), (pl.Categorical(), pl.Categorical())]
)
def test_streams_with_other_categories_keep_theirs(first: pl.DataType, second: pl.DataType) -> None:
    tables = [
        pl.DataFrame({"a": ["x", "y"]}, schema={"a": first}),
        pl.DataFrame({"a": ["y", "x"]}, schema={"a": second}),
    ]
    runs = decode_runs([encode_rows(table) for table in tables])
    assert [value for rows, _ in runs for value in rows["a"]] == ["x", "y", "y", "x"]
    assert runs[-1][0].schema["a"] == second


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_stream_among_others_is_an_error(place: int) -> None:
    bodies = [encode_rows(pl.DataFrame({"a": [n, n]})) for n in range(3)]
    for broken in (
        bodies[place][:-3],
        bodies[place] + b"\0",
        b"hello",
        bodies[place].replace(b"\xff\xff\xff\xff", b"\0"),
    ):
        with pytest.raises(FrameError):
            decode_runs([*bodies[:place], broken, *bodies[place + 1 :]])


def test_text_that_is_no_utf8_is_found_among_others() -> None:
    good = encode_rows(pl.DataFrame({"a": ["text"]}))
    with pytest.raises(FrameError, match="UTF8"):
        decode_runs([good, good.replace(b"text", b"te\xff\xfe")])


def too_many_digits(scale: int, sign: int = 0) -> pl.Series:
    """A decimal of 39 digits, which no type has: Polars doesn't check the sums of groups."""
    most = Decimal((sign, (6,) + (0,) * 37, -scale))
    table = pl.DataFrame({"key": [1, 1], "x": pl.Series([most, most], dtype=pl.Decimal(38, scale))})
    return table.group_by("key").agg(pl.col("x").sum()).get_column("x")


@pytest.mark.parametrize("scale", [0, 2, 37, 38])
def test_a_decimal_that_no_reader_can_decode_is_refused(scale: int) -> None:
    wrong = too_many_digits(scale)
    inside = [
        wrong,
        too_many_digits(scale, sign=1),
        pl.concat([pl.Series("x", [None, Decimal(0)], dtype=wrong.dtype), wrong]),
        wrong.implode(),
        pl.DataFrame({"a": wrong}).to_struct("x"),
        pl.DataFrame({"a": wrong.implode()}).to_struct("x").implode(),
    ]
    shown = f"12{'0' * (37 - scale)}.{'0' * scale}" if scale < 38 else f"1.2{'0' * 37}"
    for column in inside:
        with pytest.raises(DataError, match=r"column 'x' holds .*, so no reader could decode it") as raised:
            encode_rows(pl.DataFrame({"y": [1] * column.len(), "x": column}))
        assert raised.value.hint is not None
        assert f"{shown.rstrip('.')}, which has more digits than" in raised.value.message or column.dtype.is_nested()


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_every_decimal_that_has_the_digits_of_its_type_survives(digits: int, scale: int) -> None:
    value = Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -scale))
    df = pl.DataFrame({"x": pl.Series([value, None, Decimal(0)], dtype=pl.Decimal(38, scale))})
    assert decode_rows(encode_rows(df)).equals(df)
