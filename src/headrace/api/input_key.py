"""The key by which the writers of an input choose the partition of a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from headrace.api.dataframe import DataFrameInput
from headrace.api.keys import key_columns, key_parts
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema
from headrace.systems.registry import SystemSpec, keeps_rows


def input_key(key: str | Iterable[str], schema: Schema, system: SystemSpec) -> tuple[str, ...]:
    """Return the columns by which an input is partitioned, or raise if its system doesn't keep such a key together."""
    held = system.held.key if isinstance(system.held, DataFrameInput) else ()
    if not key_parts(key):
        return held
    names = key_columns(key, schema, "input")
    if isinstance(system.held, DataFrameInput):
        if names != held:
            raise DeclarationError(
                f"key={list(names)} isn't how the rows of the DataFrame are placed",
                hint=f"write hr.io.dataframe(df, key={list(names)}), which places them",
            )
        return held
    if system.kind == "kafka":
        _check_record_key(names, schema, system.options)
    elif keeps_rows(system):
        raise DeclarationError(
            f"key={list(names)}: rows of one key may be in any partition of an input of {system.kind}",
            hint=f"leave it out, and put partition_by({', '.join(map(repr, names))}, id=...) before steps that need it",
        )
    return names


def _check_record_key(names: tuple[str, ...], schema: Schema, options: Mapping[str, Any]) -> None:
    """Raise unless the column has the bytes that Kafka hashes."""
    about = options.get("record_columns") or {}
    plain = schema.columns[names[0]] in (pl.String, pl.Binary)
    if len(names) > 1 or about.get(names[0]) != "key" or not plain:
        raise DeclarationError(
            f"key={list(names)}: a topic is partitioned by the bytes of its records' keys",
            hint=f'take the column from there: hr.io.kafka(..., record_columns={{"{names[0]}": "key"}}, '
            'key_format="text") (or "bytes"); or leave out key=, and use partition_by',
        )
