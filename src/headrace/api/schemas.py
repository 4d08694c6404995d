"""Compare schemas, and describe a schema in one line."""

from __future__ import annotations

from headrace.serdes.schema import Schema


def schema_difference(found: Schema, wanted: Schema) -> str:
    """Describe how two schemas differ, ignoring the order of columns; empty if they don't."""
    parts = [f"{name!r} is missing" for name in wanted.columns if name not in found.columns]
    parts += [f"{name!r} is not expected" for name in found.columns if name not in wanted.columns]
    parts += [
        f"{name!r} is {dtype}, not {wanted.columns[name]}"
        for name, dtype in found.columns.items()
        if name in wanted.columns and wanted.columns[name] != dtype
    ]
    return "; ".join(parts)


def describe(schema: Schema | None) -> str:
    """Return a schema in one line."""
    if schema is None:
        return "schema not known yet"
    return ", ".join(f"{name} {dtype}" for name, dtype in schema.columns.items())
