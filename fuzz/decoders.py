"""Everything that decodes bytes from outside, by name: what it is fed, and what is done with what it makes of it.

Whatever a decoder accepts is used as the next step would use it: bytes that pass and then end the process in the next
call are worse than bytes that are refused.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fuzz import samples, steps
from headrace.connectors.kafka.settings import StreamOrder, decode_order, encode_order
from headrace.connectors.kafka.writer_session import decode_progress
from headrace.connectors.kinesis.records import MAGIC, unpack
from headrace.coordinator import messages
from headrace.coordinator.messages import ErrorReport
from headrace.core.errors import DataError, HeadraceError, ProtocolError
from headrace.core.frame import Kind, body_of, decode_control, decode_header
from headrace.life.founding import Manifest
from headrace.protocol.record import Change, ReaderPosition, decode_abort, decode_commit
from headrace.rows.formats import Decoder as RecordDecoder
from headrace.rows.formats import FormatSpec, open_format
from headrace.rows.hashing import hash_rows, partition_of
from headrace.rows.ipc import decode_rows, decode_runs, encode_rows
from headrace.rows.pieces import RowsUnreadable
from headrace.rows.schema import Schema
from headrace.rows.text import JsonRows, encode_lines
from headrace.systems.log.segment import decode_file_header, diagnose, scan, seed_of
from headrace.task.event_time import decode_times

_NO_KEYS = (pl.List, pl.Array, pl.Struct, pl.Null)

REFUSALS: tuple[type[Exception], ...] = (DataError, ProtocolError, RowsUnreadable)
"""What most decoders may raise."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """A decoder under test: good inputs, and the call."""

    samples: Sequence[bytes]
    run: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = REFUSALS
    """What it may raise."""
    repaired: Callable[[bytes], bytes] = bytes
    """Puts a checksum in order, so that the damage behind it is looked at, too."""


def decodings() -> dict[str, Decoding]:
    """Return all of them by name."""
    frames, chunks, objects = samples.frames(), samples.log_chunks(), samples.json_objects()
    status = messages.encode(messages.Refusal(error=ErrorReport(type="FencedError", message="m", hint="h")))
    register = b'{"version":%d,"container":0,"attempt":1,"host":"h","pid":1,"incarnation":"i"}' % messages.FORMAT
    progress = b'{"format":1,"version":1,"rows":"x","by":"y"}'
    order = encode_order(StreamOrder("create", "orders", 4, {"n": "Int64", "list": {"List": "Int64"}}))
    rows = JsonRows(samples.JSON_COLUMNS, drop_unknown=True)
    return {
        "frame": Decoding(frames, _frame),
        "arrow": Decoding(samples.bodies(), _arrow),
        "arrow-runs": Decoding(samples.bodies(), lambda data: decode_runs([data, data])),
        "position": Decoding(samples.reader_positions(), ReaderPosition.decode),
        "times": Decoding([bytes(samples.commit().bookkeeping)], decode_times),
        "log": Decoding(chunks, _log),
        "message": Decoding([status, register], _message),
        "manifest": Decoding([samples.manifest()], lambda data: Manifest.decode(data, "there")),
        "kafka-progress": Decoding([progress], lambda data: decode_progress(data, "one")),
        "kafka-order": Decoding([order], lambda data: decode_order(data, "there")),
        "kpl": Decoding(samples.aggregates(), lambda data: unpack(data, 0, 2**128 - 1), repaired=_with_digest),
        "json-rows": Decoding([objects[0], b"\n".join([objects[0]] * 2)], rows.parse),
        **_formats(objects),
        "steps": Decoding(steps.samples(), steps.Steps().run, refusals=()),
    }


def _frame(data: bytes) -> None:
    header, body = decode_header(data), body_of(data)
    match header.kind:
        case Kind.USER:
            _use(decode_rows(body))
        case Kind.CHANGE:
            Change.decode(body)
        case Kind.COMMIT:
            decode_times(decode_commit(body).bookkeeping)
        case Kind.ABORT:
            decode_abort(body)
        case kind:
            decode_control(kind, body)


def _arrow(data: bytes) -> None:
    _use(decode_rows(data))


def _use(rows: pl.DataFrame) -> None:
    """Do with rows what the steps of an app do. Columns that a stream can't hold are refused before, by its schema."""
    names = [name for name, dtype in samples.ROWS.schema.items() if rows.schema.get(name) == dtype]
    if not names:
        return
    schema = Schema({name: samples.ROWS.schema[name] for name in names})
    fitting, mismatch = schema.conform(rows)
    if mismatch is not None:
        mismatch.error()
    schema.to_records(fitting)
    encode_rows(fitting)
    encode_lines(fitting)
    fitting.filter(pl.col(names[0]).is_not_null()).sort(pl.int_range(pl.len()) % 3)
    hashable = [
        name for name in names if not isinstance(fitting.schema[name], pl.List | pl.Array | pl.Struct | pl.Null)
    ]
    if hashable:
        hash_rows(fitting, hashable)
        partition_of(fitting, hashable[:1], 4)


def _log(data: bytes) -> None:
    try:
        decode_file_header(data)
    except HeadraceError as error:
        if not isinstance(error, DataError):
            raise
    seed = seed_of(samples.SALT)
    scan(data, 0, seed)
    diagnose(data, seed)


_MESSAGES: Sequence[type[messages.Message]] = (
    messages.Refusal,
    messages.Register,
    messages.Heartbeat,
    messages.AppStatus,
)


def _message(data: bytes) -> None:
    kinds: Sequence[type[messages.Message]] = (
        messages.Refusal,
        messages.Register,
        messages.Heartbeat,
        messages.AppStatus,
    )
    refused = 0
    for kind in kinds:
        try:
            messages.decode(kind, data)
        except ProtocolError:
            refused += 1
    if refused == len(_MESSAGES):
        raise ProtocolError("none of the kinds")


def _with_digest(data: bytes) -> bytes:
    return samples.with_digest(data[len(MAGIC) : -16])


def _formats(objects: Sequence[bytes]) -> dict[str, Decoding]:
    avro = open_format(FormatSpec("avro", samples.AVRO_SCHEMA))
    columns = avro.columns() or {}
    orders = pl.DataFrame(
        {
            "id": [1, -5],
            "text": ["a", None],
            "raw": [b"\x00", b""],
            "real": [1.5, 0.0],
            "kind": ["A", "B"],
            "fixed": [b"1234", b"abcd"],
            "list": [[1, 2], []],
            "at": [samples.MOMENT] * 2,
            "day": [samples.MOMENT.date()] * 2,
            "price": ["1.25", "0.00"],
            "inner": [{"a": "x"}, {"a": ""}],
        }
    ).cast(pl.Schema(columns))
    encoded = [bytes(payload or b"") for payload in avro.encode(orders)]
    changes = [b'{"payload":{"before":null,"after":%b,"op":"c","source":{},"ts_ms":1}}' % one for one in objects]
    return {
        "json": _records(FormatSpec("json"), samples.JSON_COLUMNS, objects),
        "text": _records(FormatSpec("text"), {"value": pl.String()}, [b"text \xc3\xbc", b""]),
        "avro": _records(FormatSpec("avro", samples.AVRO_SCHEMA), columns, encoded),
        "debezium": _records(_debezium(), {**samples.JSON_COLUMNS, "deleted": pl.Boolean()}, changes),
        **_protobuf(),
    }


def _debezium() -> FormatSpec:
    inner: dict[str, Any] = {"name": "json", "schema": None, "settings": {}}
    return FormatSpec("debezium", settings={"format": inner, "deleted": "deleted", "about": {}})


def _protobuf() -> dict[str, Decoding]:

    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet()
    made = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    order = made.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind, label) in enumerate(
        (
            ("id", kinds.TYPE_SINT64, kinds.LABEL_OPTIONAL),
            ("text", kinds.TYPE_STRING, kinds.LABEL_OPTIONAL),
            ("raw", kinds.TYPE_BYTES, kinds.LABEL_OPTIONAL),
            ("numbers", kinds.TYPE_INT32, kinds.LABEL_REPEATED),
            ("real", kinds.TYPE_DOUBLE, kinds.LABEL_OPTIONAL),
        ),
        start=1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label)
    files.file.append(made)
    message = "shop.Order"
    good = b"\x08\x03\x12\x03ann\x1a\x02\x00\xff\x22\x03\x01\x02\x03\x29" + b"\x00" * 8
    spec = FormatSpec(
        "protobuf", settings={"message": message, "descriptors": b64encode(files.SerializeToString()).decode()}
    )
    return {"protobuf": _records(spec, open_format(spec).columns() or {}, [good, b""])}


def _records(spec: FormatSpec, columns: Mapping[str, pl.DataType], good: Sequence[bytes]) -> Decoding:
    known = dict(columns)
    decoder: RecordDecoder = open_format(spec).decoder(known)
    schema = Schema(known)

    def run(data: bytes) -> None:
        """Decode it between good ones: those must come out, whatever is in it."""
        decoded = decoder.decode([good[0], data, good[0]])
        bad = {index for index, _ in decoded.bad}
        if not bad <= {1} or decoded.frame.height + len(bad) + len(decoded.skipped) != 3:
            raise AssertionError(f"good records were refused: {decoded.bad}")
        fitting, _ = schema.conform(decoded.frame.select(list(known)))
        schema.to_records(fitting)
        encode_rows(fitting)

    return Decoding(good, run)


def replay(path: Path) -> tuple[str, bytes]:
    """The decoder and the input of a saved finding: its file name begins with the decoder's."""
    return path.name.partition("_")[0], path.read_bytes()
