"""The copy of a DataFrame: made once, whole or not at all, and never changed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from headrace.core.errors import DataError, DeploymentError, UnavailableError
from headrace.rows.dtypes import Columns
from headrace.run.spark.dataframes import RECORD, CopyRecord, DataFrameCopy, Wanted

COLUMNS: Columns = {"member": pl.String(), "ts": pl.Datetime("us", "UTC")}


def copy_in(home: Path) -> DataFrameCopy:
    return DataFrameCopy(home / "shop/orders", home / "shop/orders.jsonl", "input 'orders'")


def make(copy: DataFrameCopy, files: Collection[int] = (0, 1), **wanted: Any) -> CopyRecord:
    """Make it as Spark would, with files of these numbers: with marks and checksums beside the files."""
    with copy.locked(), copy.staged() as staging:
        staging.mkdir()
        for number in files:
            frame = pl.DataFrame({"member": ["ann"] * (number + 1), "ts": [None] * (number + 1)}, schema=dict(COLUMNS))
            frame.write_parquet(staging / f"part-{number:05}-x.parquet")
            (staging / f".part-{number:05}-x.parquet.crc").touch()
        (staging / "_SUCCESS").touch()
        (staging / "_temporary").mkdir()
        return copy.publish(staging, Wanted(**{"columns": COLUMNS, **wanted}))


def test_a_copy_is_made_and_found(tmp_path: Path) -> None:
    assert copy_in(tmp_path).record() is None
    made = make(copy_in(tmp_path), ordered_by="ts")
    assert (made.rows, made.files, made.ordered_by) == (3, 2, "ts")
    assert copy_in(tmp_path).record() == made
    names = sorted(path.name for path in (tmp_path / "shop/orders").iterdir())
    assert names == [RECORD, "part-00000-x.parquet", "part-00001-x.parquet"]


def test_the_bytes_of_a_record(tmp_path: Path) -> None:
    make(copy_in(tmp_path), ordered_by="ts", key=("member",), partitions=2)
    assert (tmp_path / "shop/orders" / RECORD).read_bytes() == (
        b'{"format":1,"columns":{"member":"String","ts":{"Datetime":{"unit":"us","zone":"UTC"}}},'
        b'"orderedBy":"ts","key":["member"],"rows":3,"files":2}'
    )


def test_a_record_of_another_format_is_refused(tmp_path: Path) -> None:
    make(copy_in(tmp_path))
    record = tmp_path / "shop/orders" / RECORD
    record.write_bytes(record.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(DataError, match=r"_copy\.json is of format 2; this version of Headrace reads 1"):
        copy_in(tmp_path).record()


def test_no_rows_are_a_file_without_rows(tmp_path: Path) -> None:
    assert make(copy_in(tmp_path), files=()).rows == 0
    assert pl.read_parquet(tmp_path / "shop/orders/*.parquet").schema == pl.Schema(COLUMNS)


def test_what_a_dead_driver_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "shop/.orders-copy-abc"
    (left / "_temporary").mkdir(parents=True)
    others = tmp_path / "shop/.orders-v2-copy-abc"
    others.mkdir()
    make(copy_in(tmp_path))
    assert not left.exists()
    assert others.exists()


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    copy = copy_in(tmp_path)
    with pytest.raises(ZeroDivisionError), copy.locked(), copy.staged() as staging:
        staging.mkdir()
        raise ZeroDivisionError
    assert [path.name for path in (tmp_path / "shop").iterdir()] == [".orders.lock"]
    assert copy.record() is None


def test_two_starts_do_not_copy_at_once(tmp_path: Path) -> None:
    with (
        copy_in(tmp_path).locked(),
        pytest.raises(UnavailableError, match="another start of the app is copying the DataFrame of input 'orders'"),
        copy_in(tmp_path).locked(),
    ):
        pass
    with copy_in(tmp_path).locked():
        pass


def test_other_columns_are_refused_by_name(tmp_path: Path) -> None:
    copy = copy_in(tmp_path)
    record = make(copy)
    copy.check(record, Wanted(columns={"member": pl.String()}))
    with pytest.raises(
        DeploymentError, match=r"'ts' was datetime\[us,UTC\] and is i64; 'euros' \(f64\) is new"
    ) as caught:
        copy.check(record, Wanted(columns={"member": pl.String(), "ts": pl.Int64(), "euros": pl.Float64()}))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"ordered_by": "n"}, "has the event time 'n' now, but the copy .* is in the order of 'ts'"),
        ({"key": ("ts",), "partitions": 3}, "has key=ts now, but the copy .* is by member"),
        ({"key": ("member",), "partitions": 4}, "has 4 partitions now, but the copy .* is for 3"),
    ],
)
def test_another_order_is_refused(tmp_path: Path, now: dict[str, Any], message: str) -> None:
    copy = copy_in(tmp_path)
    placed: dict[str, Any] = {"ordered_by": "ts", "key": ("member",), "partitions": 3}
    record = make(copy, **placed)
    copy.check(record, Wanted(columns=COLUMNS, **placed))
    copy.check(record, Wanted(columns=COLUMNS))
    with pytest.raises(DeploymentError, match=message) as caught:
        copy.check(record, Wanted(columns=COLUMNS, **now))
    assert caught.value.hint


def test_with_a_key_each_partition_has_one_file(tmp_path: Path) -> None:
    made = make(copy_in(tmp_path), files=[1, 3], key=("member",), partitions=5)
    assert (made.rows, made.files) == (6, 5)
    files = sorted((tmp_path / "shop/orders").glob("*.parquet"))
    assert [pl.read_parquet(file).height for file in files] == [0, 2, 0, 4, 0]


@pytest.mark.parametrize("files", [[0, 5], [0, 1, 2, 3, 4, 5]])
def test_with_a_key_other_files_are_refused(tmp_path: Path, files: list[int]) -> None:
    with pytest.raises(DataError, match=rf"Spark has written {len(files)} files for 5 partitions"):
        make(copy_in(tmp_path), files=files, key=("member",), partitions=5)


def test_a_copy_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """Tasks have positions in the old one."""
    copy = copy_in(tmp_path)
    make(copy)
    (tmp_path / "shop/orders" / RECORD).unlink()
    with pytest.raises(DeploymentError, match="is gone or incomplete"):
        copy.record()
    for path in (tmp_path / "shop/orders").iterdir():
        path.unlink()
    (tmp_path / "shop/orders").rmdir()
    assert copy.record() is None
    (tmp_path / "shop/orders.jsonl").touch()
    with pytest.raises(DeploymentError, match="is gone or incomplete"):
        copy.record()


def test_files_of_other_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Spark has written column 'member' as String, not as Int64"):
        make(copy_in(tmp_path), columns={"member": pl.Int64()})
    assert copy_in(tmp_path).record() is None
