"""``python -m bench.record_formats``: how fast records of each format are read and written.

Each figure is in rows a second of CPU time, all threads together: the best of some rounds over the same 100,000 rows in
batches of 10,000. What is read is compared with what was written before it is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from google.protobuf import descriptor_pb2

import headrace as hr
from headrace.rows.formats import Decoder, FormatSpec, open_format
from tests.servers.schema_registry import schema_registry

ROWS, BATCH, ROUNDS = 100_000, 10_000, 5
_FIELDS = (
    ("id", "long", "int64"),
    ("member", "string", "string"),
    ("euros", ["null", "double"], "double"),
    ("at", "long", "int64"),
    ("country", "string", "string"),
    ("pieces", "int", "int32"),
    ("paid", "boolean", "bool"),
    ("note", ["null", "string"], "string"),
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": name, "type": type_} for name, type_, _ in _FIELDS],
}


def rows() -> pl.DataFrame:
    """Orders; about 140 bytes each in Avro."""
    rng = np.random.default_rng(1)
    ids = pl.Series(rng.integers(0, 1 << 40, ROWS))
    number = pl.int_range(ROWS, eager=True)
    return pl.DataFrame({"id": ids, "n": number}).select(
        "id",
        member=pl.format("member-{}", pl.col("id") % 10**8),
        euros=pl.when(pl.col("n") % 5 > 0).then(pl.Series(rng.random(ROWS))),
        at=1_767_225_600_000 + pl.col("n") * 7,
        country=pl.Series(np.array(["AT", "DE", "CH"])[rng.integers(0, 3, ROWS)]),
        pieces=(pl.col("n") % 100).cast(pl.Int32),
        paid=pl.col("n") % 2 == 0,
        note=pl.when(pl.col("n") % 3 > 0).then(pl.lit("x" * 140)),
    )


def protobuf() -> FormatSpec:
    """The same fields as a message."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, type_, kind) in enumerate(_FIELDS, 1):
        one = message.field.add(name=name, number=number, label=kinds.LABEL_OPTIONAL)
        one.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
        if isinstance(type_, list):
            one.proto3_optional = True
            one.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    return hr.io.protobuf("shop.Order", descriptors=files.SerializeToString())


def rate(work: Callable[[Any], object], batches: Sequence[Any]) -> float:
    """Rows a second of the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for batch in batches:
            work(batch)
        best = min(best, time.process_time() - begun)
    return ROWS / best


def cut(whole: Any) -> Iterator[Any]:
    """The batches of rows or of payloads."""
    return (whole[start : start + BATCH] for start in range(0, ROWS, BATCH))


def measure(name: str, spec: FormatSpec, data: pl.DataFrame) -> None:
    """Write and read the rows, and print how fast that was."""
    format = open_format(spec)
    payloads = list(format.encode(data))
    decoder: Decoder = format.decoder(dict(data.schema))
    assert decoder.decode(payloads).frame.equals(data)
    read, written = rate(decoder.decode, list(cut(payloads))), rate(format.encode, list(cut(data)))
    size = sum(len(payload or b"") for payload in payloads) / len(payloads)
    print(f"{name:24}{size:6.0f} bytes   read {read / 1000:6.0f} k/s   written {written / 1000:6.0f} k/s")


def main() -> None:
    """Measure all formats."""
    data = rows()
    with schema_registry() as server:
        registry = hr.io.registry(server.url)
        measure("json", FormatSpec("json"), data)
        measure("avro", hr.io.avro(AVRO), data)
        measure("avro with a registry", hr.io.avro(AVRO, registry=registry, subject="orders", register=True), data)
        measure("protobuf", protobuf(), data)


if __name__ == "__main__":
    main()
