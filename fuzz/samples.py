"""Good inputs, which are then damaged: a few for each decoder, with every feature of its format."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from hashlib import md5
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from headrace.connectors.kinesis.records import MAGIC
from headrace.core.frame import Checkpoint, EndOfStream, Header, Kind, Restore, Watermark, encode, encode_control
from headrace.life.founding import FileSum, Manifest, TaskCopy
from headrace.protocol.record import (
    AbortRecord,
    Change,
    CommitRecord,
    Covered,
    Detour,
    InputEntry,
    OutputSeq,
    ParentEntry,
    ReaderPosition,
    SourceEntry,
    encode_record,
)
from headrace.rows.ipc import encode_rows
from headrace.systems.log.segment import encode_file_header, encode_records, seal_record, seed_of
from headrace.task.event_time import PartitionCheckpoint, Progress, TimesCheckpoint

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 250_000)
SALT = 7

ROWS = pl.DataFrame(
    {
        "text": ["ann", None, "long enough that it is not kept in a view"],
        "n": [1, None, -(2**63)],
        "small": pl.Series([1, 2, None], dtype=pl.UInt8),
        "real": [1.5, float("nan"), None],
        "flag": [True, None, False],
        "raw": [b"\x00\xff", b"", None],
        "at": pl.Series([MOMENT, None, MOMENT], dtype=pl.Datetime("us")),
        "zoned": pl.Series([MOMENT, None, MOMENT], dtype=pl.Datetime("ms")).dt.replace_time_zone("Europe/Berlin"),
        "day": [date(2026, 1, 31), None, date(1, 1, 1)],
        "wait": [timedelta(seconds=1), None, timedelta(0)],
        "clock": pl.Series([0, None, 1], dtype=pl.Int64).cast(pl.Time),
        "price": pl.Series([Decimal("1.50"), None, Decimal(0)], dtype=pl.Decimal(10, 2)),
        "kind": pl.Series(["a", None, "b"], dtype=pl.Categorical),
        "level": pl.Series(["low", None, "high"], dtype=pl.Enum(["low", "high"])),
        "list": [[1, None], [], None],
        "texts": [["a", None], [], None],
        "fixed": pl.Series([[1, 2], None, [3, 4]], dtype=pl.Array(pl.Int32, 2)),
        "nested": [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}],
        "nothing": pl.Series([None] * 3, dtype=pl.Null),
    }
)


def bodies() -> list[bytes]:
    """Arrow bodies: of each column alone, of all, without rows, of many rows, and as other writers write them."""
    alone = [encode_rows(ROWS.select(name)) for name in ROWS.columns]
    table = ROWS.drop("nothing", "fixed").to_arrow(compat_level=pl.CompatLevel.oldest())
    codes = pa.table({"text": pa.array(["a", "b", None, "a"]).dictionary_encode()})
    compressed = pa.ipc.IpcWriteOptions(compression="lz4")
    many = ROWS.select("text", "n", "list").sample(1000, with_replacement=True, seed=1)
    return [
        *alone,
        encode_rows(ROWS),
        encode_rows(ROWS.clear()),
        encode_rows(many),
        _written(table),
        _written(codes),
        _written(table, compressed),
    ]


def _written(table: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def frames() -> list[bytes]:
    """Whole frames of each kind."""
    task: dict[str, Any] = {"task_name": "shop/0", "task_count": 2}
    controls = [
        encode_control(Header(Kind.WATERMARK, 1, 2, 3, 4), Watermark(timestamp=5, idle=True, **task)),
        encode_control(Header(Kind.END_OF_STREAM, 1, 2, 3, 4), EndOfStream(stream_id="orders", **task)),
        encode_control(Header(Kind.CHECKPOINT, 1, 2, 3, 4), Checkpoint(next_version=9, **task)),
        encode_control(Header(Kind.RESTORE, 1, 2, 3, 4), Restore(seq=3, next_version=9, committed_by=2, **task)),
    ]
    user = [encode(Header(Kind.USER, 1, 2, 3, 4), body) for body in bodies()[-6:]]
    return [*controls, *user, *changelog()]


def changelog() -> list[bytes]:
    """Frames of a changelog."""
    change = Change("totals", b"\x00\x01 any bytes").encode()
    abort = encode_record(AbortRecord(generation=3, writer="0" * 16))
    return [
        encode(Header(Kind.CHANGE, 1, 2, 3, 4), change),
        encode(Header(Kind.COMMIT, 1, 2, 3, 4), encode_record(commit())),
        encode(Header(Kind.ABORT, 1, 3, 3, 4), abort),
    ]


def commit() -> CommitRecord:
    """A commit record that has all fields."""
    parent = ParentEntry(producer=1, generation=2, version=3, seq=4, resume_offset=None)
    done = Progress(5, idle=False, ended=True)
    part = PartitionCheckpoint(
        stream_id="in", partition=0, progress=done, total_tasks={"a": 2}, tasks={"a/0": done}, shards={"s": done}
    )
    times = TimesCheckpoint(
        watermark=5, partitions=[part], streams={"in": 5}, operators={"count": 4}, ended_streams=["in"]
    )
    source = SourceEntry(
        stream="orders",
        partition=0,
        offset=7,
        whole=True,
        covered=(Covered(producer=1, generation=2, seq=3),),
        plain_before=9,
        startpoint="one",
        shards={"shard-0": "1:2"},
        since_ms=5,
        detour=Detour(until=9, offset=11, covered=(Covered(producer=1, generation=2, seq=3),), landmark="4:0000beef"),
    )
    return CommitRecord(
        generation=2,
        version=3,
        next_version=4,
        outputs=(OutputSeq(stream="out", partition=1, seq=2, generation=1),),
        inputs=(InputEntry(stream="in", partition=0, offset=None, parents=(parent,)),),
        sources=(source,),
        bookkeeping=msgspec.Raw(msgspec.json.encode(times)),
    )


def manifest() -> bytes:
    """The manifest of a savepoint."""
    files = {"db/000001.sst": FileSum(size=10, sha256="0" * 64)}
    task = TaskCopy(task="totals/0", files=files)
    return Manifest(app="shop", name="one", version=3, created_ms=4, system="log", stages=(), tasks=(task,)).encode()


def reader_positions() -> list[bytes]:
    """Positions of readers of committed frames."""
    covered = (Covered(producer=1, generation=2, seq=3),)
    return [ReaderPosition(offset=3).encode(), ReaderPosition(offset=None, whole=True, covered=covered).encode()]


def log_chunks() -> list[bytes]:
    """Stretches of a file of the log."""
    records = encode_records([b"one", b"", b"three" * 50], seed_of(SALT), 1_700_000_000_000)
    return [encode_file_header(SALT), b"".join(records), b"".join(records) + seal_record(seed_of(SALT), 0)]


JSON_COLUMNS: dict[str, pl.DataType] = {
    "text": pl.String(),
    "n": pl.Int64(),
    "small": pl.Int8(),
    "real": pl.Float64(),
    "flag": pl.Boolean(),
    "at": pl.Datetime("ms"),
    "day": pl.Date(),
    "price": pl.Decimal(10, 2),
    "level": pl.Enum(["low", "high"]),
    "list": pl.List(pl.Int64()),
    "nested": pl.Struct({"a": pl.Int64(), "b": pl.List(pl.String())}),
}


def json_objects() -> list[bytes]:
    """Objects with a value for each of ``JSON_COLUMNS``, or for a few."""
    whole = {
        "text": 'a \u00fc \U0001f600 \\ " \n',
        "n": -(2**63),
        "small": 127,
        "real": 1e-300,
        "flag": True,
        "at": MOMENT.isoformat(),
        "day": "2026-01-31",
        "price": "1.25",
        "level": "low",
        "list": [1, None, 3],
        "nested": {"a": 1, "b": ["x", None]},
    }
    return [msgspec.json.encode(whole), b'{"n": 1.0}', b"{}", b' {"text": null, "n": 2, "more": [1]} ']


AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "real", "type": "double"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "fixed", "type": {"type": "fixed", "name": "Four", "size": 4}},
        {"name": "list", "type": {"type": "array", "items": "long"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "string"}]}},
    ],
}


def aggregates() -> list[bytes]:
    """Records of Kinesis that the KPL has aggregated."""
    inner = b"\x08\x00\x1a\x05hello"
    message = b"\x0a\x03key" + b"\x1a" + bytes([len(inner)]) + inner + b"\x1a" + bytes([len(inner)]) + inner
    return [with_digest(message), MAGIC, b"plain"]


def with_digest(message: bytes) -> bytes:
    """A message of the KPL's with the digest that makes readers look into it."""
    return MAGIC + message + md5(message, usedforsecurity=False).digest()
