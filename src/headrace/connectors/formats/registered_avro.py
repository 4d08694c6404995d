"""Avro with a schema registry: each record names the schema that it was written with.

Records of one schema are read at once, and become the reader's columns (``avro``). Those whose schema the
registry doesn't have, or whose schema disagrees with the columns, are bad.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import polars as pl
from typing_extensions import override

from headrace.connectors.formats import avro, registry
from headrace.connectors.formats.avro import AvroFormat, DatumReader, ReadSchema, SchemasDisagree
from headrace.connectors.formats.avro_rows import RowReader
from headrace.connectors.formats.registry import Fetched, Registered, SchemaSource, SubjectWriter
from headrace.core.errors import DeclarationError
from headrace.core.log import logger
from headrace.rows import formats
from headrace.rows.dtypes import Columns
from headrace.rows.formats import Decoded, Decoder, Format, FormatSpec, Payload

_log = logger(__name__)
_Reader = DatumReader | RowReader


class RegisteredAvroFormat(Format):
    """Records with ids of schemas. ``schema`` is the reader's, or the writer's; None reads whatever was declared."""

    def __init__(self, schema: object | None, source: SchemaSource, writer: SubjectWriter | None) -> None:
        self._source = source
        self._plain = None if schema is None else AvroFormat(schema)
        self._writer = writer

    @override
    def columns(self) -> Columns | None:
        return None if self._plain is None else self._plain.columns()

    @override
    def decoder(self, columns: Columns) -> Decoder:
        if self._plain is not None:
            self._plain.made(columns)  # refuses columns that the reader's schema can't have
        return _RegisteredAvroDecoder(self._source, columns, None if self._plain is None else self._plain.schema)

    @override
    def encode(self, rows: pl.DataFrame) -> list[bytes]:
        if self._plain is None or self._writer is None:
            hint = "write hr.io.avro(schema, registry=..., subject=...)"
            raise DeclarationError("writing Avro needs a schema", hint=hint)
        header = self._writer.header()
        return [header + datum for datum in self._plain.encode(rows)]


def avro_to_register(schema: object) -> Registered:
    return Registered(json.dumps(avro.schema_types(schema)))


class _RegisteredAvroDecoder(Decoder):
    def __init__(self, source: SchemaSource, columns: Columns, reader: ReadSchema | None) -> None:
        self._source = source
        self._columns = columns
        self._reader = reader
        self._readers: OrderedDict[int, _Reader | str] = OrderedDict()  # by schema: its reader, or why there is none

    @override
    def decode(self, payloads: Sequence[Payload]) -> Decoded:
        if not formats.all_values(payloads):
            return formats.without_nulls(payloads, self.decode)
        if not payloads:
            return Decoded(pl.DataFrame(schema=self._columns))
        ids = registry.ids_in(payloads)
        readers = self._for_ids({id for id in ids.values() if id is not None})

        def decode(id: int | None, part: Sequence[bytes]) -> Decoded:
            if id is None:
                return registry.without_header(part, self._columns)
            reader = readers[id]
            if isinstance(reader, str):
                return Decoded(pl.DataFrame(schema=self._columns), [(index, reader) for index in range(len(part))])
            return formats.decode_halving(part, self._columns, reader.read, lambda _, reason: f"{reason} (schema {id})")

        return registry.decode_by_id(payloads, ids, decode)

    def _for_ids(self, ids: set[int]) -> Mapping[int, _Reader | str]:
        missing = ids - self._readers.keys()
        if missing:
            for id, fetched in self._source.schemas(sorted(missing)).items():
                self._readers[id] = "" if fetched is None else self._made(id, fetched)
        readers = {id: self._readers[id] or f"the registry has no schema {id}" for id in ids}
        for id in missing:
            if self._readers[id] == "":
                del self._readers[id]  # the registry may have it some time
        while len(self._readers) > registry.KEPT_MAX:
            self._readers.popitem(last=False)
        return readers

    def _made(self, id: int, fetched: Fetched) -> _Reader | str:
        if fetched.problem:
            return f"its schema {id} is incomplete: {fetched.problem}"
        if fetched.schema.type != "AVRO":
            return f"its schema {id} is of type {fetched.schema.type}, not AVRO"
        try:
            text, needed = fetched.schema.text, [one.text for one in fetched.needed]
            writer = avro.read_schema(text, needed, partly=True)
            notes = {} if self._reader is None else self._reader.notes
            aliases = [alias for name in self._columns if name in notes for alias in notes[name].aliases]
            if {*self._columns, *aliases} & set(writer.left_out):
                avro.read_schema(text, needed)  # says why it can't be read
            made = avro.resolve(writer, self._columns, self._reader)
            if writer.left_out:
                _log.info("reading the records of a schema one by one", id=id, unions=", ".join(writer.left_out))
                return RowReader(text, needed, writer, made, registry.HEADER_BYTES)
            return DatumReader(writer, made, registry.HEADER_BYTES)
        except DeclarationError as error:
            return f"its schema {id} can't be read: {error.message}"
        except SchemasDisagree as error:
            return f"its schema {id} can't be read as the columns of the input: {error}"


def open_avro(spec: FormatSpec) -> Format:
    if "registry" not in spec.settings:
        return AvroFormat(spec.schema)
    writer = None if spec.schema is None else registry.writer_of(spec, avro_to_register(spec.schema))
    return RegisteredAvroFormat(spec.schema, SchemaSource(registry.client_of(spec)), writer)
