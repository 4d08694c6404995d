"""CSV that isn't written as usual, and files behind a URI."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from files_harness import bad_of, read, rows_of, ssp

import headrace as hr
from headrace.core.errors import DeclarationError
from headrace.rows.text import CsvFormat
from headrace.systems.base import Edge, Rows
from headrace.systems.files.system import FilesSystem

COLUMNS = {"a": pl.Int64(), "b": pl.String()}


def system(path: Path, text: bytes, **options: Any) -> FilesSystem:
    path.write_bytes(text)
    return FilesSystem(str(path), columns=COLUMNS, csv=CsvFormat(**options))


@pytest.mark.parametrize(
    ("text", "options", "rows"),
    [
        (b"a;b\n1;x,y\n", {"separator": ";"}, [(1, "x,y")]),
        (b"a\tb\n1\tx\n", {"separator": "\t"}, [(1, "x")]),
        (b"1,x\n2,y\n", {"header": False}, [(1, "x"), (2, "y")]),
        (b"z,x,1\n", {"header": ["c", "b", "a"]}, [(1, "x")]),
        (b"a,b\n1,'x,\ny'\n", {"quote": "'"}, [(1, "x,\ny")]),
        (b'a,b\n1,"x\n2,y"\n', {"quote": None}, [(1, '"x'), (2, 'y"')]),
        (b"a,b\nNA,-\n,\n", {"null_values": ["NA", "-", ""]}, [(None, None), (None, None)]),
        (b"a,b\n1,\n", {"null_values": ["NA"]}, [(1, "")]),
        ("a,b\n1,Höhe\n".encode("latin-1"), {"encoding": "latin-1"}, [(1, "Höhe")]),
        ("a,b\n1,Höhe\n".encode("utf-16"), {"encoding": "utf-16"}, [(1, "Höhe")]),
        (b"made by: x\n\na,b\n1,x\n", {"skip_lines": 2}, [(1, "x")]),
        (b"made by: x\n1,x\n", {"skip_lines": 1, "header": False}, [(1, "x")]),
    ],
)
@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_options_of_csv(
    tmp_path: Path, text: bytes, options: dict[str, Any], rows: list[tuple[Any, ...]], max_bytes: int
) -> None:
    got, end = read(system(tmp_path / "a.csv", text, **options), max_bytes=max_bytes)
    assert rows_of(got) == rows
    assert bad_of(got) == []
    assert end == len(rows)


@pytest.mark.parametrize(
    ("text", "options", "lines"),
    [
        (b"a,b\n1,x\n2\n3,y,z\nx,y\n", {}, [3, 4, 5]),
        (b'a,b\n1,"two\nlines"\n2\n', {}, [4]),
        (b"a,b\n1,x\n2,\xff\n3,y\n", {}, [3]),
        (b"a,b\n1,x\n2,\xff\n3,y\n", {"encoding": "ascii"}, [3]),
        (b"note\na,b\n1\n", {"skip_lines": 1}, [3]),
    ],
)
@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_a_bad_row_names_its_line(
    tmp_path: Path, text: bytes, options: dict[str, Any], lines: list[int], max_bytes: int
) -> None:
    path = tmp_path / "a.csv"
    got, _ = read(system(path, text, **options), max_bytes=max_bytes)
    assert [record.reason.split(": ")[0] for record in bad_of(got)] == [f"{path}:{line}" for line in lines]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": ";;"}, "separator=';;' isn't a single ASCII character"),
        ({"separator": "\n"}, "isn't a single ASCII character"),
        ({"quote": ","}, "separator and quote are both ','"),
        ({"header": ["a", "a"]}, "header names a column twice"),
        ({"header": "a"}, "header='a' isn't a list of column names"),
        ({"encoding": "utf-99"}, "encoding='utf-99' isn't known"),
        ({"skip_lines": -1}, "skip_lines=-1 isn't a number of lines"),
        ({"null_values": [1]}, "expected a list of strings"),
    ],
)
def test_wrong_options_are_refused_where_they_are_declared(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=rf"csv: .*{message}[^@]*at {__file__}"):
        hr.io.csv(**options)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(DeclarationError, match="CSV has no option 'seperator'; it has separator, ") as error:
        CsvFormat.of({"seperator": ";"})
    assert error.value.hint == "did you mean 'separator'?"
    assert CsvFormat.of(CsvFormat(separator=";", quote=None).options()) == CsvFormat(separator=";", quote=None)


def test_numbers_that_are_declared_as_text_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n007,008\n")
    consumer = FilesSystem(str(tmp_path / "a.csv")).consumer({"b": pl.String()})
    consumer.register(ssp(), Edge.OLDEST)
    rows = [item.frame.rows() for item in consumer.poll() if isinstance(item, Rows) and item.frame.height]
    consumer.close()
    assert rows == [[("008",)]]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_files_behind_a_uri(tmp_path: Path, name: str) -> None:
    """Arrow's own file system of this machine stands in for an object store."""
    frame = pl.DataFrame({"a": range(1000), "b": [str(n) for n in range(1000)], "c": [0.5] * 1000})
    path = tmp_path / "in" / "x" / name
    path.parent.mkdir(parents=True)
    match path.suffix:
        case ".gz":
            path.write_bytes(gzip.compress(frame.write_ndjson().encode()))
        case ".parquet":
            frame.write_parquet(path, row_group_size=300)
        case _:
            frame.write_ndjson(path)
    (path.parent / f"_{name}").write_bytes(b"not yet")
    for pattern in ("in", "in/*/a.*", "in/**/a.*", f"in/x/{name}"):
        there = FilesSystem(f"file://{tmp_path}/{pattern}", columns=COLUMNS)
        for start in (0, 1, 299, 300, 999):
            got, end = read(there, start, max_bytes=2000)
            assert rows_of(got) == frame.select("a", "b").rows()[start:]
            assert end == 1000
    info = FilesSystem(f"file://{tmp_path}/in").admin().describe("x")
    assert info is not None
    assert info.columns == dict(frame.schema)


@pytest.mark.parametrize(
    "path",
    [
        "gs://key:word@bucket/x",
        "gs://key@bucket/x",
        "s3://bucket/x?secret_key=word",
        "abfs://container:word@host/x",
    ],
)
def test_credentials_in_a_path_are_refused_and_not_shown(path: str) -> None:
    for declare in (hr.io.files, FilesSystem):
        with pytest.raises(DeclarationError, match="contains credentials") as error:
            declare(path)
        assert "word" not in str(error.value)
    assert hr.io.files("abfs://container@host/x").path == "abfs://container@host/x"
