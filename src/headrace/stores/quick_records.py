"""Functions that get and put records of one store in a dict, compiled for its columns.

A general function would look up the names of columns and their types for each record, which takes several times as
long.

Pure; nothing blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from headrace.serdes.plain_values import NAMES, fits, kind_of
from headrace.serdes.schema import Schema

Row = tuple[Any, ...]
"""The values of a record, in the order of its columns."""

_SOURCE = """
def get(key):
    if {of_kind} and (row := found(key)) is not None:
        return {record}
    return otherwise_get(key)

def put(key, record):
    if type(record) is kind:
        try:
            {values}
        except (KeyError, AttributeError, OverflowError):
            pass  # otherwise_put says what is wrong
        else:
            if {key_fits} and {values_fit}{none_other}:
                top[key] = ({variables},)
                return
    otherwise_put(key, record)

def is_quick(key):
    return {key_fits}
"""


@dataclass(frozen=True, slots=True)
class QuickRecords:
    """``get`` and ``put`` of records that surely fit. ``is_quick`` says for which keys these are.

    Each key has only one value that is quick, so that of two equal quick keys both have the same bytes.
    """

    get: Callable[[Any], Any]
    put: Callable[[Any, Any], None]
    is_quick: Callable[[Any], bool]


def quick_records(
    key: Mapping[str, pl.DataType],
    value: Schema,
    top: dict[Any, Row | None],
    get: Callable[[Any], Any],
    put: Callable[[Any, Any], None],
) -> QuickRecords | None:
    """Return functions for records in ``top``; ``get`` and ``put`` do what they can't. None: not for these columns.

    An int in a column of floats becomes a float. Floats can't be in the key, as NaN isn't equal to itself.
    """
    if not all(map(kind_of, [*key.values(), *value.columns.values()])) or float in map(kind_of, key.values()):
        return None
    several = len(key) > 1
    parts = {f"key[{at}]" if several else "key": dtype for at, dtype in enumerate(key.values())}
    whole = [f"type(key) is tuple and len(key) == {len(key)}"] if several else []
    kinds = [f"type({part}) is {kind.__name__}" for part, dtype in parts.items() if (kind := kind_of(dtype))]
    variables = {f"v{at}": column for at, column in enumerate(value.columns.items())}
    read = "record[{0!r}]" if value.record is None else "record.{0}"
    values = [f"{v} = {read.format(name)}" for v, (name, _) in variables.items()]
    values += [f"if type({v}) is int: {v} = float({v})" for v, (_, dtype) in variables.items() if dtype.is_float()]
    pairs = ", ".join(f"{name!r}: row[{at}]" for at, name in enumerate(value.columns))
    # Source text is compiled, as for dataclasses; only repr() of names enters it, and names of fields.
    source = _SOURCE.format(
        of_kind=" and ".join(whole + kinds),
        key_fits=" and ".join([*whole, *(fits(dtype, part) for part, dtype in parts.items())]),
        record=f"{{{pairs}}}" if value.record is None else "make(*row)",
        values="\n            ".join(values),
        values_fit=" and ".join(f"({v} is None or {fits(dtype, v)})" for v, (_, dtype) in variables.items()),
        variables=", ".join(variables),
        none_other="" if value.record else f" and len(record) == {len(variables)}",
    )
    known: dict[str, Any] = {
        "__name__": __name__, **NAMES, "top": top, "found": top.get, "kind": value.record or dict, "make": value.make,
        "otherwise_get": get, "otherwise_put": put,
    }  # fmt: skip
    exec(compile(source, __file__, "exec"), known)  # noqa: S102 - of our own text
    return QuickRecords(known["get"], known["put"], known["is_quick"])
