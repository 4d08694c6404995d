"""Nulls are filled, and a column without nulls stays the same object."""

from __future__ import annotations

import polars as pl

from headrace.rows.casting import filled


def test_nulls_are_filled():
    assert filled(pl.Series([1, None, 3]), 0).to_list() == [1, 0, 3]
    assert filled(pl.Series([None, True]), False).to_list() == [False, True]


def test_a_column_without_nulls_is_not_copied():
    whole = pl.Series([1, 2])
    assert filled(whole, 0) is whole
    assert filled(whole.clear(), 0).to_list() == []
