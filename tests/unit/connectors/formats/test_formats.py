from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError, DeclarationError
from headrace.rows.formats import FormatSpec, open_format

VIEWS = {"member": pl.String(), "n": pl.Int64()}


def decode(format: str, payloads: list[bytes], columns: Mapping[str, pl.DataType]) -> tuple[list[Any], list[Any]]:
    """The rows and the bad payloads."""
    decoded = open_format(FormatSpec(format)).decoder(columns).decode(payloads)
    assert dict(decoded.frame.schema) == dict(columns)
    assert decoded.frame.height + len(decoded.bad) == len(payloads)
    return decoded.frame.rows(), list(decoded.bad)


def test_json_reads_one_object_of_each_payload() -> None:
    payloads = [b'{"member": "eve", "n": 1}', b'{\n  "n": 2,\r\n  "other": [1]\n}\n', b'{"member": null}']
    assert decode("json", payloads, VIEWS) == ([("eve", 1), (None, 2), (None, None)], [])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "empty"),
        (b" \n ", "empty"),
        (b"null", "a JSON null, not an object"),
        (b"[1]", "a JSON array, not an object"),
        (b"5.5", "a JSON number, not an object"),
        (b"true", "a JSON boolean, not an object"),
        (b'"eve"', "a JSON text, not an object"),
        (b'{"n": 1', "not JSON (input data was truncated)"),
        (b'{"n": 1}{"n": 2}', "not JSON (trailing characters (byte 9))"),
        (b'{"n": 1}\n{"n": 2}', "not JSON (trailing characters (byte 10))"),
        (b'{"n": 1},{"n": 2}', "not JSON (trailing characters (byte 9))"),
        (b'{"member": "\xff"}', "not UTF-8"),
        (b'{"member": "a\nb"}', "not JSON (invalid character (byte 13))"),
        (b'{"n": "many"}', "field 'n': cannot parse 'many' (string) as Int64"),
        (b'{"n": 1.5}', "field 'n': cannot parse '1.5' (f64) as Int64"),
        (b'{"n": 99999999999999999999}', "field 'n': cannot parse '99999999999999999999' (u128) as Int64"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_json_says_what_is_wrong_with_a_payload(payload: bytes, reason: str) -> None:
    good = b'{"member": "eve", "n": 1}'
    assert decode("json", [good, payload, good], VIEWS) == ([("eve", 1)] * 2, [(1, reason)])


def test_json_reads_the_types_that_it_lacks_from_text() -> None:
    columns = {"at": pl.Datetime("ms"), "small": pl.Int8(), "data": pl.Binary(), "tags": pl.List(pl.Int16())}
    rows = [{"at": "2026-01-02T03:04:05", "small": 7, "data": "aGk=", "tags": [1, None]}, {"small": 300}]
    good, bad = decode("json", [json.dumps(row).encode() for row in rows], columns)
    assert good == [(dt.datetime(2026, 1, 2, 3, 4, 5), 7, b"hi", [1, None])]
    assert [index for index, _ in bad] == [1]
    assert "field 'small'" in bad[0][1]


@pytest.mark.parametrize("of", [lambda dtype: dtype, pl.List, lambda dtype: pl.Struct({"x": dtype})])
def test_json_rounds_no_decimal(of: Any) -> None:
    def payload(text: str) -> bytes:
        value = {pl.List: f"[{text}]", pl.Struct: f'{{"x": {text}}}'}.get(type(dtype), text)
        return f'{{"price": {value}}}'.encode()

    dtype = of(pl.Decimal(5, 2))
    texts = ["1.5", '"1.500"', "125e-2", "1.239", '"1.239"', '"1239e-3"', "1000", "0e-9", '"many"', "null"]
    good, bad = decode("json", [payload(text) for text in texts], {"price": dtype})
    assert len(good) == 5
    assert [index for index, _ in bad] == [3, 4, 5, 6, 8]
    assert all("too many digits after the point" in reason for index, reason in bad if index < 6)


NUMBERS = st.integers(-(2**63), 2**63 - 1)
ROWS = st.fixed_dictionaries({"member": st.none() | st.text(), "n": st.none() | NUMBERS})
GOOD = st.builds(lambda row, indent: (row, json.dumps(row, indent=indent)), ROWS, st.sampled_from([None, 2]))
BAD = st.sampled_from(["", "\n", "{", "[]", '{"n": "x"}', '{"n": 1}{"n": 2}', '{"n": 1}\n{"n": 2}']).map(
    lambda text: (None, text)
)


@given(st.lists(GOOD | BAD, max_size=20))
def test_json_tells_good_payloads_from_bad_ones(drawn: list[tuple[dict[str, Any] | None, str]]) -> None:
    rows, bad = decode("json", [text.encode() for _, text in drawn], VIEWS)
    assert rows == [(row["member"], row["n"]) for row, _ in drawn if row is not None]
    assert [index for index, _ in bad] == [index for index, (row, _) in enumerate(drawn) if row is None]


@given(st.lists(ROWS, max_size=10))
def test_json_reads_what_it_writes(rows: list[dict[str, Any]]) -> None:
    frame = pl.DataFrame(rows, schema=VIEWS)
    payloads = open_format(FormatSpec("json")).encode(frame)
    assert [json.loads(payload) for payload in payloads] == rows
    assert decode("json", payloads, VIEWS) == (frame.rows(), [])


def test_text_is_a_column_of_any_name() -> None:
    payloads = [b"a", b"", "ü\n".encode(), b"\xff"]
    assert decode("text", payloads, {"line": pl.String()}) == ([("a",), ("",), ("ü\n",)], [(3, "not UTF-8")])
    assert decode("text", [], {"line": pl.String()}) == ([], [])
    assert open_format(FormatSpec("text")).encode(pl.DataFrame({"line": ["a", "ü"]})) == [b"a", "ü".encode()]


def test_bytes_are_as_they_are() -> None:
    payloads = [b"\x00\xff", b""]
    assert decode("bytes", payloads, {"data": pl.Binary()}) == ([(b"\x00\xff",), (b"",)], [])
    assert open_format(FormatSpec("bytes")).encode(pl.DataFrame({"data": payloads})) == payloads


def test_text_and_bytes_name_their_column_themselves() -> None:
    assert open_format(FormatSpec("text")).columns() == {"value": pl.String()}
    assert open_format(FormatSpec("bytes")).columns() == {"value": pl.Binary()}
    assert open_format(FormatSpec("json")).columns() is None


def test_text_has_no_other_columns() -> None:
    with pytest.raises(DeclarationError, match='format="text" have one column of type str; the schema has member: str'):
        open_format(FormatSpec("text")).decoder(VIEWS)
    with pytest.raises(DataError, match="the rows have n: i64"):
        open_format(FormatSpec("text")).encode(pl.DataFrame({"n": [1]}))


def test_text_cannot_be_null() -> None:
    with pytest.raises(DataError, match="column 'line': a value is null"):
        open_format(FormatSpec("text")).encode(pl.DataFrame({"line": ["a", None]}))


def test_a_format_that_nobody_knows_is_refused() -> None:
    with pytest.raises(DeclarationError, match="unknown format 'xml' of records"):
        open_format(FormatSpec("xml"))


def test_a_spec_is_made_of_its_options() -> None:
    for spec in (FormatSpec("text"), FormatSpec("avro", {"type": "record"})):
        assert FormatSpec(**spec.options()) == spec
