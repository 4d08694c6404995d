from __future__ import annotations

import datetime as dt
import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import DataError, DeclarationError
from headrace.rows.formats import Decoded, FormatSpec, open_format

MEMBER = {"id": pl.Int64(), "country": pl.String()}
CHANGED = {**MEMBER, "deleted": pl.Boolean()}
CHANGELOG = FormatSpec("changelog", settings={"format": {"name": "json"}, "deleted": "deleted"})
DEBEZIUM = FormatSpec("debezium", settings={"format": {"name": "json"}, "deleted": "deleted"})


def decode(spec: FormatSpec, payloads: list[Any], columns: dict[str, Any] = CHANGED) -> Decoded:
    """What becomes of payloads, which may be given as JSON types."""
    data = [one if one is None or isinstance(one, bytes) else json.dumps(one).encode() for one in payloads]
    decoded = open_format(spec).decoder(columns).decode(data)
    assert dict(decoded.frame.schema) == columns
    assert decoded.frame.height + len(decoded.bad) + len(decoded.skipped) == len(payloads)
    return decoded


@pytest.mark.parametrize("spec", [FormatSpec("json"), FormatSpec("text"), FormatSpec("bytes")])
def test_a_payload_without_a_value_is_bad_unless_a_format_knows_it(spec: FormatSpec) -> None:
    format = open_format(spec)
    decoded = format.decoder(format.columns() or {"id": pl.Int64()}).decode([b'{"id": 1}', None, b'{"id": 2}', None])
    assert decoded.frame.height == 2
    assert [index for index, _ in decoded.bad] == [1, 3]
    assert "hr.io.changelog" in decoded.bad[0][1]
    assert not format.deletes


ROW = st.fixed_dictionaries({"id": st.integers(0, 9), "country": st.none() | st.text(max_size=3)})
PAYLOAD = st.none() | ROW | st.sampled_from([b"", b"[1]", b"{"])


@given(st.lists(PAYLOAD, max_size=20))
def test_a_changelog_has_a_row_for_each_deletion(drawn: list[Any]) -> None:
    decoded = decode(CHANGELOG, drawn)
    expected = []
    for one in drawn:
        if one is None:
            expected.append({"id": None, "country": None, "deleted": True})
        elif isinstance(one, dict):
            expected.append({**one, "deleted": False})
    assert decoded.frame.rows(named=True) == expected
    assert [index for index, _ in decoded.bad] == [i for i, one in enumerate(drawn) if isinstance(one, bytes)]


@given(st.lists(st.tuples(st.booleans(), ROW), max_size=10))
def test_a_changelog_reads_what_it_writes(drawn: list[tuple[bool, dict[str, Any]]]) -> None:
    frame = pl.DataFrame([{**row, "deleted": gone} for gone, row in drawn], schema=CHANGED)
    payloads = open_format(CHANGELOG).encode(frame)
    assert [payload is None for payload in payloads] == [gone for gone, _ in drawn]
    assert decode(CHANGELOG, list(payloads)).frame.filter(~pl.col("deleted")).equals(frame.filter(~pl.col("deleted")))


def test_a_changelog_names_the_column_that_is_missing() -> None:
    format = open_format(CHANGELOG)
    assert format.deletes
    with pytest.raises(DeclarationError, match=r"the column 'deleted', .* is missing in the schema"):
        format.decoder(MEMBER)
    with pytest.raises(DeclarationError, match="is of type str in the schema, not bool"):
        format.decoder({**MEMBER, "deleted": pl.String()})
    with pytest.raises(DataError, match="no Boolean column 'deleted'"):
        format.encode(pl.DataFrame({"id": [1]}))


def test_a_changelog_of_texts_has_columns_of_its_own() -> None:
    format = open_format(FormatSpec("changelog", settings={"format": {"name": "text"}, "deleted": "gone"}))
    columns = format.columns()
    assert columns == {"value": pl.String(), "gone": pl.Boolean()}
    assert format.decoder(columns).decode([b"a", None]).frame.rows() == [("a", False), (None, True)]
    taken = FormatSpec("changelog", settings={"format": {"name": "text"}, "deleted": "value"})
    with pytest.raises(DeclarationError, match="already has a column 'value'"):
        open_format(taken).columns()


def change(op: str | None, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "source": {"ts_ms": 5, "db": "shop"}, "ts_ms": 7, **more}


ANN, EVE = {"id": 1, "country": "AT"}, {"id": 2, "country": None}
CHANGES: list[Any] = [
    change("r", after=ANN),
    change("c", after=EVE),
    change("u", before=ANN, after={**ANN, "country": "DE"}),
    change("d", before={"id": 1}),
    None,
    change("c", after={**ANN, "more": [1, 2]}),
]
ROWS = [(1, "AT", False), (2, None, False), (1, "DE", False), (1, None, True), (1, "AT", False)]


def test_rows_are_as_they_are_after_a_change_and_deleted_ones_as_before() -> None:
    decoded = decode(DEBEZIUM, CHANGES)
    assert decoded.frame.rows() == ROWS
    assert decoded.skipped == [4]
    assert not decoded.bad


def test_an_envelope_may_be_within_its_schema() -> None:
    schema = {"type": "struct", "fields": [{"type": "struct", "field": "before"}], "name": "Envelope"}
    wrapped = [one and {"schema": schema, "payload": one} for one in CHANGES]
    assert decode(DEBEZIUM, wrapped).frame.rows() == ROWS
    mixed = [two if n % 2 else one for n, (one, two) in enumerate(zip(CHANGES, wrapped, strict=True))]
    assert decode(DEBEZIUM, mixed).frame.rows() == ROWS


def test_a_change_of_no_row_is_bad() -> None:
    payloads = [
        change("t"),
        change("u", before=ANN),
        change("d", after=ANN),
        change(None, after=ANN),
        {"id": 1},
        b"[]",
        change("c", after={"id": "x"}),
        change("c", after=EVE),
        None,
        {"schema": {}, "payload": None},
    ]
    decoded = decode(DEBEZIUM, payloads)
    assert decoded.frame.rows() == [(2, None, False)]
    assert decoded.skipped == [8]
    reasons = dict(decoded.bad)
    assert reasons == {
        0: "the change t isn't a change of one row",
        1: "the change u has no row: its 'after' is missing",
        2: "the change d has no row: its 'before' is missing",
        3: "not a Debezium envelope: it has no field 'op'",
        4: "not a Debezium envelope: it has no field 'op'",
        5: "a JSON array, not an object",
        6: reasons[6],
        9: "not a Debezium envelope: it has no field 'op'",
    }
    assert "field 'after'" in reasons[6]


def test_an_envelope_says_more_of_a_change() -> None:
    about = {"did": "op", "seen": "ts_ms", "made": "source_ts_ms"}
    spec = FormatSpec("debezium", settings={**DEBEZIUM.settings, "about": about})
    columns = {**CHANGED, "did": pl.String(), "seen": pl.Int64(), "made": pl.Int64()}
    payloads = [CHANGES[0], {"payload": CHANGES[3]}]
    assert decode(spec, payloads, columns).frame.rows() == [(1, "AT", False, "r", 7, 5), (1, None, True, "d", 7, 5)]
    assert decode(spec, payloads).frame.rows() == [(1, "AT", False), (1, None, True)]
    with pytest.raises(DeclarationError, match="column 'did' is the op of an envelope, of type str, not i64"):
        open_format(spec).decoder({**columns, "did": pl.Int64()})


def test_columns_inside_an_envelope_have_the_types_of_json() -> None:
    columns = {"at": pl.Datetime("ms"), "data": pl.Binary(), "tags": pl.List(pl.Int16()), "deleted": pl.Boolean()}
    payload = change("c", after={"at": "2026-01-02T03:04:05", "data": "aGk=", "tags": [1, None]})
    [row] = decode(DEBEZIUM, [payload], columns).frame.rows()
    assert row == (dt.datetime(2026, 1, 2, 3, 4, 5), b"hi", [1, None], False)


def test_envelopes_are_not_written() -> None:
    with pytest.raises(DataError, match="can be read, but not written"):
        open_format(DEBEZIUM).encode(pl.DataFrame({"id": [1]}))
    with pytest.raises(DeclarationError, match="the schema has no column of the row itself"):
        open_format(DEBEZIUM).decoder({"deleted": pl.Boolean()})


CHANGE = st.none() | st.tuples(st.sampled_from("crudt"), ROW, st.booleans()) | st.just(b"{")


@given(st.lists(CHANGE, max_size=15))
def test_a_table_of_changes_is_the_table_of_the_database(drawn: list[Any]) -> None:
    """What is left of each key when its last change is applied, told by the rows alone."""
    payloads: list[Any] = []
    database: dict[int, Any] = {}
    for one in drawn:
        if one is None or one == b"{":
            payloads.append(one)
            continue
        op, row, wrapped = one
        envelope = change(op, before=row) if op == "d" else change(op, after=row if op != "t" else None)
        payloads.append({"payload": envelope} if wrapped else envelope)
        if op == "d":
            database.pop(row["id"], None)
        elif op != "t":
            database[row["id"]] = row["country"]
    table: dict[int, Any] = {}
    decoded = decode(DEBEZIUM, payloads)
    for id, country, deleted in decoded.frame.rows():
        if deleted:
            table.pop(id, None)
        else:
            table[id] = country
    assert table == database
    assert list(decoded.skipped) == [i for i, one in enumerate(payloads) if one is None]


ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", {"type": "record", "name": "Value", "fields": [
            {"name": "id", "type": "long"}, {"name": "country", "type": ["null", "string"]}]}]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}},
        {"name": "op", "type": "string"},
    ],
}  # fmt: skip


def test_envelopes_in_avro() -> None:
    spec = FormatSpec(
        "debezium",
        settings={
            "format": {"name": "avro", "schema": ENVELOPE},
            "deleted": "gone",
            "about": {"made": "source_ts_ms"},
        },
    )
    format = open_format(spec)
    columns = format.columns()
    assert columns == {**MEMBER, "made": pl.Int64(), "gone": pl.Boolean()}
    inner = open_format(FormatSpec("avro", ENVELOPE))
    frame = pl.DataFrame(
        {"before": [None, ANN], "after": [EVE, None], "source": [{"ts_ms": 1}, {"ts_ms": 2}], "op": ["c", "d"]},
        schema=inner.columns(),
    )
    payloads = [*inner.encode(frame), None]
    decoded = format.decoder(columns).decode(payloads)
    assert decoded.frame.rows() == [(2, None, 1, False), (1, "AT", 2, True)]
    assert decoded.skipped == [2]
    fewer = {"country": pl.String(), "gone": pl.Boolean()}
    assert format.decoder(fewer).decode(payloads).frame.rows() == [(None, False), ("AT", True)]
    flat = FormatSpec("debezium", settings={"format": {"name": "text"}, "deleted": "gone"})
    with pytest.raises(DeclarationError, match="doesn't describe a Debezium envelope"):
        open_format(flat).columns()
