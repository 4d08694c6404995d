from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from files_harness import bad_of, placed, read, rows_of, ssp, table
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import DataError, DeclarationError, StreamNotFoundError, UsageError
from headrace.rows.pieces import row_ends
from headrace.rows.text import CsvFormat
from headrace.systems.base import Edge, Ended, Extent, Rows
from headrace.systems.files import rowfile as parquet
from headrace.systems.files.stock import offset_of
from headrace.systems.files.system import FilesSystem, open_files

FORMATS = ["parquet", "jsonl", "csv"]


def write(path: Path, frame: pl.DataFrame) -> Path:
    {".parquet": frame.write_parquet, ".jsonl": frame.write_ndjson, ".csv": frame.write_csv}[path.suffix](path)
    return path


@pytest.mark.parametrize("format", FORMATS)
def test_files_are_partitions_and_end(tmp_path: Path, format: str) -> None:
    for number, count in enumerate([5, 0, 1000]):
        if count or format != "jsonl":
            write(tmp_path / f"{number}.{format}", table(count))
    system = FilesSystem(str(tmp_path), columns={"member": pl.String, "ts": pl.Int64})  # type: ignore[dict-item]
    info = system.admin().describe("anything")
    assert info is not None
    assert info.bounded
    assert info.columns == {"member": pl.String(), "ts": pl.Int64()}
    last = info.partitions - 1
    got, end = read(system, partition=last, max_bytes=3000)
    assert rows_of(got) == table(1000).rows()
    assert end == 1000
    assert len(got) > 1
    assert system.admin().extents("anything")[last] == Extent(0, offset_of(1), sealed=True)
    assert rows_of(read(system, 990, last)[0]) == table(1000).rows()[990:]
    assert read(system, Edge.UPCOMING, last) == ([], 0)


@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None)
@given(at=st.integers(0, 300), max_bytes=st.integers(1, 3000))
def test_reading_resumes_at_any_row(
    tmp_path_factory: pytest.TempPathFactory, format: str, at: int, max_bytes: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"resume-{format}"
    if not folder.exists():
        folder.mkdir()
        for number in range(3):
            write(folder / f"{number}.{format}", table(300)[number * 100 : number * 100 + 100])
    system = FilesSystem(str(folder), partitions=1)
    place, row = min(at // 100, 2), at - 100 * min(at // 100, 2)
    got, end = read(system, offset_of(place, row), max_bytes=max_bytes)
    assert rows_of(got) == table(300).rows()[at:]
    assert end == 300 - 100 * place


def test_files_are_dealt_by_name(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.parquet", pl.DataFrame({"n": [number]}))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".half.parquet").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not data")
    system = FilesSystem(str(tmp_path), partitions=2)
    assert [rows_of(read(system, partition=n)[0]) for n in (0, 1)] == [[(0,), (2,), (4,)], [(1,), (3,)]]
    by_pattern = FilesSystem(str(tmp_path / "[34].parquet"))
    assert [rows_of(read(by_pattern, partition=n)[0]) for n in (0, 1)] == [[(3,)], [(4,)]]
    three = FilesSystem(str(tmp_path / "3.parquet"), partitions=3)
    assert read(three, partition=2) == ([], 0)


def test_an_offset_after_the_end_is_refused(tmp_path: Path) -> None:
    for format in FORMATS:
        consumer = FilesSystem(str(write(tmp_path / f"a.{format}", table(10)))).consumer()
        with pytest.raises(UsageError, match=r"offset 11 is after the end of .*, which has 10 rows"):
            consumer.register(ssp(), 11)
        with pytest.raises(StreamNotFoundError, match="partitions 0 to 0"):
            consumer.register(ssp(1), 0)
        with pytest.raises(StreamNotFoundError, match="not registered"):
            consumer.position(ssp())
        consumer.close()


def test_a_missing_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(StreamNotFoundError, match="no file or folder matches nowhere/at/all"):
        FilesSystem("nowhere/at/all").consumer()
    with pytest.raises(StreamNotFoundError, match="no files to read in the folder"):
        FilesSystem(str(tmp_path)).consumer()
    with pytest.raises(StreamNotFoundError, match="no files to read in the folder"):
        FilesSystem(str(tmp_path)).admin().describe("x")
    (tmp_path / "a.txt").write_text("{}")
    with pytest.raises(DeclarationError, match="isn't known from its name"):
        FilesSystem(str(tmp_path / "a.txt")).consumer()
    write(tmp_path / "a.csv", table(1))
    write(tmp_path / "a.parquet", table(1))
    with pytest.raises(DeclarationError, match="several formats in one input: csv, parquet"):
        FilesSystem(str(tmp_path)).consumer()
    with pytest.raises(DeclarationError, match="unknown format 'xml'"):
        FilesSystem("a", format="xml")


@pytest.mark.parametrize("format", FORMATS)
def test_lag_and_pausing(tmp_path: Path, format: str) -> None:
    for number in range(2):
        write(tmp_path / f"{number}.{format}", table(100))
    consumer = FilesSystem(str(tmp_path)).consumer()
    for number in range(2):
        consumer.register(ssp(number), Edge.OLDEST)
    assert consumer.lag(ssp()) is None
    assert len(consumer.poll(ssps=[ssp()], max_bytes=1)) == 1
    assert consumer.lag(ssp()) == (99 if format == "parquet" else None)
    assert consumer.lag(ssp(), 0) == (100 if format == "parquet" else None)
    assert {item.ssp for item in consumer.poll(ssps=[ssp(1)])} == {ssp(1)}
    while not all(isinstance(item, Ended) for item in consumer.poll()):
        pass
    assert consumer.lag(ssp(1)) == 0
    assert consumer.fileno() is None
    consumer.close()


# -- Parquet -------------------------------------------------------------------------------------------


def test_parquet_columns_are_chosen_and_cast(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", table(3))
    narrow = FilesSystem(str(path), columns={"ts": pl.Int8()})
    got, _ = read(narrow)
    assert got[0].frame.schema == {"ts": pl.Int8}
    with pytest.raises(DeclarationError, match="no column 'url'; it has member, ts"):
        read(FilesSystem(str(path), columns={"url": pl.String()}))
    wide = write(tmp_path / "b.parquet", pl.DataFrame({"ts": [1, 1000]}))
    with pytest.raises(DataError, match="from row 0 on"):
        read(FilesSystem(str(wide), columns={"ts": pl.Int8()}))


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 this is not Parquet PAR1")
    with pytest.raises(DataError, match=r"a\.parquet is not a readable Parquet file"):
        read(FilesSystem(str(path)))


@pytest.mark.parametrize("group_rows", [1, 7, 100, 1000])
def test_parquet_is_read_whole_whatever_its_row_groups(
    tmp_path: Path, group_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_BLOCK_BYTES", 64 * 16)  # 64 rows
    path = tmp_path / "a.parquet"
    table(500).write_parquet(path, row_group_size=group_rows)
    for start in (0, 1, 63, 64, 99, 100, 499):
        got, end = read(FilesSystem(str(path)), start)
        assert pl.concat(item.frame for item in got).equals(table(500)[start:])
        assert end == 500


def test_blocks_of_parquet_are_measured_by_the_columns_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"ts": range(1_000_000), "page": ["x" * 100] * 1_000_000}).write_parquet(path, row_group_size=100_000)
    got, _ = read(FilesSystem(str(path), columns={"ts": pl.Int64()}), max_bytes=1 << 30)
    assert [item.frame.height for item in got] == [1_000_000]


@pytest.mark.slow
def test_parquet_is_fast(tmp_path: Path) -> None:
    count = 4_000_000
    frame = pl.select(
        member=pl.int_range(count) % 10_000,
        url="/page/" + (pl.int_range(count) % 100).cast(pl.String),
        ts=pl.int_range(count),
    )
    frame.write_parquet(tmp_path / "a.parquet", row_group_size=500_000)
    whole, last = [], []
    for _ in range(3):  # the fastest: other programs on this machine slow some of them down
        start = time.process_time()
        got, end = read(FilesSystem(str(tmp_path)))
        whole.append(time.process_time() - start)
        assert end == count
        assert len(got) > 10
        start = time.process_time()
        assert len(rows_of(read(FilesSystem(str(tmp_path)), count - 5)[0])) == 5
        last.append(time.process_time() - start)
    rate = count / min(whole) / 1e6
    assert rate > 10, f"{rate:.1f} M rows a second of one core"
    assert min(last) < 0.2


# -- JSON lines ----------------------------------------------------------------------------------------

COLUMNS = {"a": pl.Int64(), "b": pl.String()}


def jsonl(tmp_path: Path, text: bytes, columns: dict[str, pl.DataType] | None = None) -> FilesSystem:
    path = tmp_path / "a.jsonl"
    path.write_bytes(text)
    return FilesSystem(str(path), columns=columns)


def test_bad_lines_are_handed_out_with_place_and_reason(tmp_path: Path) -> None:
    lines = [b'{"a": %d, "b": "x"}' % i for i in range(1000)]
    for i, text in {0: b"{bad", 500: b'{"a": "text"}', 501: b"[1]", 999: b'{"a": 1} {"a": 2}', 7: b'"\xff'}.items():
        lines[i] = text
    for max_bytes in (10, 1000, 1 << 20):
        got, end = read(jsonl(tmp_path, b"\n".join(lines), COLUMNS), max_bytes=max_bytes)
        assert end == 1000
        assert [record.offset for record in bad_of(got)] == [0, 7, 500, 501, 999]
        assert [record.raw for record in bad_of(got)] == [lines[i] for i in (0, 7, 500, 501, 999)]
        assert "text" in bad_of(got)[2].reason
        assert placed(got) == {i: (i, "x") for i in range(1000) if i not in (0, 7, 500, 501, 999)}


def test_blank_lines_have_numbers_but_no_rows(tmp_path: Path) -> None:
    text = b'\n{"a": 1}\n\n  \n{"a": 4}\r\n{"a": 5}\n{"a": oops}\n\n'
    for max_bytes in (1, 12, 1000):
        got, end = read(jsonl(tmp_path, text, {"a": pl.Int64()}), max_bytes=max_bytes)
        assert placed(got) == {1: (1,), 4: (4,), 5: (5,)}
        assert [record.offset for record in bad_of(got)] == [6]
        assert end == 8
    assert placed(read(jsonl(tmp_path, text, {"a": pl.Int64()}), 4)[0]) == {4: (4,), 5: (5,)}
    assert read(jsonl(tmp_path, b"\n\n\n", {"a": pl.Int64()})) == ([], 3)


@settings(deadline=None)
@given(st.data())
def test_json_lines_survive_any_mixture(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(["good", "bad", "blank", "null"]), max_size=60))
    text = {"good": '{{"a":{i}}}', "bad": "{{{i}", "blank": "", "null": '{{"a":null,"c":{i}}}'}
    lines = [text[kind].format(i=i) for i, kind in enumerate(kinds)]
    ending = data.draw(st.sampled_from(["\n", "\r\n"]))
    folder = tmp_path_factory.mktemp("mixture")
    content = ending.join(lines) + data.draw(st.sampled_from(["", ending]))
    got, _ = read(jsonl(folder, content.encode(), {"a": pl.Int64()}), max_bytes=data.draw(st.integers(1, 300)))
    expected = {i: (i,) if kind == "good" else (None,) for i, kind in enumerate(kinds) if kind in ("good", "null")}
    assert placed(got) == expected
    assert [record.offset for record in bad_of(got)] == [i for i, kind in enumerate(kinds) if kind == "bad"]


def test_types_of_json_lines(tmp_path: Path) -> None:
    columns = {
        "i8": pl.Int8(), "u16": pl.UInt16(), "f32": pl.Float32(), "ok": pl.Boolean(), "raw": pl.Binary(),
        "day": pl.Date(), "at": pl.Datetime("us"), "utc": pl.Datetime("ms", "UTC"), "clock": pl.Time(),
        "price": pl.Decimal(10, 2), "took": pl.Duration("ms"), "tags": pl.List(pl.Int16()),
        "color": pl.Enum(["red"]), "s": pl.Struct({"x": pl.UInt8()}),
    }  # fmt: skip
    line = (
        b'{"i8": -5, "u16": 65535, "f32": 1.5, "ok": true, "raw": "YWJj", "day": "2024-02-29", '
        b'"at": "2024-02-29T01:02:03", "utc": "2024-02-29T01:02:03+00:00", "clock": "01:02:03", "price": 1.25, '
        b'"took": 1500, "tags": [1, 2], "color": "red", "s": {"x": 7}}\n'
    )
    got, _ = read(jsonl(tmp_path, line + b'{"i8": 128}\n{"color": "blue"}\n{"u16": -1}\n', columns))
    assert rows_of(got) == [
        (-5, 65535, 1.5, True, b"abc", date(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3),
         datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC), (datetime(2024, 1, 1, 1, 2, 3)).time(), Decimal("1.25"),
         timedelta(seconds=1.5), [1, 2], "red", {"x": 7})
    ]  # fmt: skip
    assert got[0].frame.schema == columns
    assert [record.offset for record in bad_of(got)] == [1, 2, 3]


def test_columns_of_json_lines_are_inferred(tmp_path: Path) -> None:
    system = jsonl(tmp_path, b'\xef\xbb\xbf{"a": 1, "b": null}\n{bad\n{"a": 2.5, "c": [true]}\n')
    info = system.admin().describe("x")
    assert info is not None
    assert info.columns == {"a": pl.Float64(), "b": pl.String(), "c": pl.List(pl.Boolean)}
    assert len(bad_of(read(system)[0])) == 1
    with pytest.raises(DataError, match="JSON object"):
        jsonl(tmp_path, b"a,b\n1,2\n").consumer()


# -- CSV -----------------------------------------------------------------------------------------------


def csv(tmp_path: Path, text: bytes, columns: dict[str, pl.DataType] | None = None) -> FilesSystem:
    path = tmp_path / "a.csv"
    path.write_bytes(text)
    return FilesSystem(str(path), columns=columns)


def test_csv_with_quotes_line_breaks_and_bad_rows(tmp_path: Path) -> None:
    text = (
        b'\xef\xbb\xbf"b",a,unused\r\n'
        b'"two\nlines, ""quoted""",0,x\n'
        b"short,1\n"
        b"long,2,x,y\n"
        b"text,three,x\n"
        b"\n"
        b",,\n"
        b'"",6,x\n'
        b"last,7,x"
    )
    for max_bytes in (1, 20, 1000):
        got, end = read(csv(tmp_path, text, COLUMNS), max_bytes=max_bytes)
        assert placed(got) == {
            0: (0, 'two\nlines, "quoted"'),
            5: (None, None),
            6: (6, ""),
            7: (7, "last"),
        }
        assert [record.offset for record in bad_of(got)] == [1, 2, 3]
        assert end == 8
    assert placed(read(csv(tmp_path, text, COLUMNS), 6)[0]) == {6: (6, ""), 7: (7, "last")}


def test_csv_headers_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="no column 'b'; it has a, c"):
        read(csv(tmp_path, b"a,c\n1,2\n", COLUMNS))
    with pytest.raises(DataError, match="names a column twice"):
        read(csv(tmp_path, b"a,a\n1,2\n", COLUMNS))
    assert read(csv(tmp_path, b"", COLUMNS)) == ([], 0)
    assert read(csv(tmp_path, b"a,b\n", COLUMNS)) == ([], 0)
    with pytest.raises(DeclarationError, match="CSV can't hold column 'a' of type List"):
        read(csv(tmp_path, b"a\n1\n", {"a": pl.List(pl.Int64)}))


def test_a_quote_that_is_never_closed_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.systems.files.rowfile.ROW_BYTES_MAX", 1000)
    with pytest.raises(DataError, match="a row of more than 1000 bytes"):
        read(csv(tmp_path, b'a,b\n1,"' + b"x\n" * 3000, COLUMNS), max_bytes=100)


def test_columns_of_csv_are_inferred(tmp_path: Path) -> None:
    system = csv(tmp_path, b"n,f,s,e\n1,2.5,x,\n2,3,y,\n")
    info = system.admin().describe("x")
    assert info is not None
    assert info.columns == {"n": pl.Int64(), "f": pl.Float64(), "s": pl.String(), "e": pl.String()}
    assert rows_of(read(system)[0]) == [(1, 2.5, "x", None), (2, 3.0, "y", None)]
    only_header = csv(tmp_path, b"n,f\n").admin().describe("x")
    assert only_header is not None
    assert only_header.columns == {"n": pl.String(), "f": pl.String()}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5) | st.none(), st.text(max_size=8).filter(lambda t: "\r" not in t))))
def test_csv_reads_what_polars_writes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int | None, str]]
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    frame = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    frame.write_csv(folder / "a.csv")
    got, end = read(FilesSystem(str(folder), columns=COLUMNS), max_bytes=30)
    assert rows_of(got) == frame.rows()
    assert end == len(rows)


def test_row_ends() -> None:
    assert row_ends(b'a,"\n"\nb\n', quote=b'"').tolist() == [6, 8]
    assert row_ends(b'a,"\n"\nb\n', quote=None).tolist() == [4, 6, 8]


def test_options_of_files(tmp_path: Path) -> None:
    options = {"path": "a", "format": "csv", "partitions": 2, "columns": {"a": "Int64"}}
    assert open_files("f", options) == FilesSystem("a", "csv", {"a": pl.Int64()}, 2)
    assert open_files("f", {"path": "a", "csv": {"separator": ";"}}) == FilesSystem("a", csv=CsvFormat(separator=";"))
    with pytest.raises(DeclarationError, match="no option 'path'"):
        open_files("f", {})
    with pytest.raises(DeclarationError, match=r"unknown options \['root'\]"):
        open_files("f", {"path": "a", "root": "b"})
    assert isinstance(read(FilesSystem(str(write(tmp_path / "a.csv", table(1)))))[0][0], Rows)
