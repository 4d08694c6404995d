"""The approximate count: its error, that merging is exact, and that its codes never change."""

import numpy as np
import polars as pl
import pytest

from headrace.task.operators import aggregation as hyperloglog


def sketched(values: pl.Series) -> pl.Series:
    registers = hyperloglog.highest_codes(pl.col("code")).implode()
    return pl.DataFrame({"code": hyperloglog.register_codes(values)}).select(registers).to_series()


def test_small_counts_are_nearly_exact() -> None:
    for number in (0, 1, 2, 10, 50):
        found = hyperloglog.estimated_count(sketched(pl.Series("v", range(number), dtype=pl.Int64)))
        assert abs(found[0] - number) <= max(0.02 * number, 1)


@pytest.mark.parametrize("number", [1_000, 5_000, 10_000, 12_000, 20_000, 100_000, 500_000])
def test_the_error_is_as_stated(number: int) -> None:
    """The root of the mean square over 24 disjoint sets is near 1.6 %, and no set is off by five times that."""
    errors = []
    for seed in range(24):
        values = pl.Series("v", np.arange(number) + seed * 1_000_000)
        errors.append(hyperloglog.estimated_count(sketched(values))[0] / number - 1)
    assert np.sqrt(np.mean(np.square(errors))) < 0.022
    assert max(map(abs, errors)) < 0.08
    assert abs(np.mean(errors)) < 0.012


def test_merging_is_what_counting_together_is() -> None:
    left, right = pl.Series("v", range(6_000)), pl.Series("v", range(4_000, 9_000))
    parts = pl.DataFrame({"sketch": pl.concat([sketched(left), sketched(right)])})
    merged = parts.select(
        hyperloglog.highest_codes(pl.col("sketch").list.explode(keep_nulls=False)).implode()
    ).to_series()
    together = sketched(pl.concat([left, right]))
    assert merged.to_list() == together.to_list()


def test_a_sketch_stays_small() -> None:
    assert sketched(pl.Series("v", range(1_000_000))).list.len().item() <= 4096


def test_codes_never_change() -> None:
    """Changelogs contain these codes: changing any of them makes old counts wrong."""
    assert hyperloglog.register_codes(pl.Series("v", ["a", "b", None, ""])).to_list() == [205505, 66433, None, 53]
    assert hyperloglog.register_codes(pl.Series("v", [0, 1, -1, 2**40])).to_list() == [53, 160390, 216130, 31361]
