from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kafka.rows import RecordMaker, Roles, identity
from headrace.core.errors import DataError, DeclarationError
from headrace.rows.formats import FormatSpec, open_format
from headrace.rows.given import HEADERS

DATA = {"key": pl.Binary, "value": pl.Binary}
Pairs = list[tuple[bytes | None, bytes | None]]
BYTES = st.none() | st.binary(max_size=5)


def records(pairs: Pairs) -> pl.DataFrame:
    return pl.DataFrame(pairs, schema=DATA, orient="row")


@given(st.lists(st.tuples(BYTES, BYTES), min_size=1), st.integers(1, 9))
def test_the_identity_of_rows_doesnt_hang_on_their_pieces(pairs: Pairs, size: int) -> None:
    whole = records(pairs)
    assert identity([whole]) == identity(list(whole.iter_slices(size)))


@pytest.mark.parametrize(
    "other", [[(b"k", b"a")], [(b"k", b"a"), (b"k", b"c")], [(b"j", b"a"), (b"k", b"b")], [(b"k", b"b"), (b"k", b"a")]]
)
def test_other_rows_have_another_identity(other: Pairs) -> None:
    assert identity([records([(b"k", b"a"), (b"k", b"b")])]) != identity([records(other)])


def test_the_identity_is_as_it_has_always_been() -> None:
    assert identity([records([(b"k", b"a"), (None, None)])]) == "2-e8b7be43-0862575d"


def made(rows: pl.DataFrame, roles: Roles, format: str = "json", key_format: str | None = None) -> pl.DataFrame:
    keys = None if key_format is None else open_format(FormatSpec(key_format))
    return RecordMaker("t", roles, open_format(FormatSpec(format)), keys).records(rows, 10_000)


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        (pl.Series(["a", "", None]), [b"a", b"", None]),
        (pl.Series([b"\xff", None]), [b"\xff", None]),
        (pl.Series([7, -1, None]), [b"7", b"-1", None]),
        (pl.Series(["a", None], dtype=pl.Categorical()), [b"a", None]),
    ],
)
def test_keys_are_what_plain_clients_would_write(column: pl.Series, keys: list[bytes | None]) -> None:
    assert made(column.to_frame("k"), Roles(key="k"))["key"].to_list() == keys


def test_a_key_format_says_how_keys_are_written_and_null_stays_null() -> None:
    rows = pl.DataFrame({"k": [1.5, None]})
    assert made(rows, Roles(key="k"), key_format="json")["key"].to_list() == [b'{"k":1.5}', None]
    with pytest.raises(DeclarationError, match="more than one possible text form"):
        made(rows, Roles(key="k"))


def test_what_isnt_asked_for_isnt_kept() -> None:
    assert made(pl.DataFrame({"n": [1]}), Roles()).to_dict(as_series=False) == {"key": [None], "value": [b'{"n":1}']}


def test_headers_count_towards_the_size() -> None:
    rows = pl.DataFrame({"n": [1], "h": [[{"name": "a", "value": b"x" * 9_900}]]}, schema_overrides={"h": HEADERS})
    with pytest.raises(DataError, match=r"becomes a record of about 10\d\d\d bytes"):
        made(rows, Roles(headers="h"))
