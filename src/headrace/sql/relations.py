"""What the planner of queries knows of a flow: its columns under the names of the statement, and what stands open.

Something stands open until an outer query says what to do: a window function over a table is grouped by it, and a
``ROW_NUMBER()`` is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
from sqlglot import exp

from headrace.api.operators.spec import EventTime
from headrace.api.specs import Hopping, Session, Tumbling, WindowShape
from headrace.api.stream import Stream
from headrace.rows.changes import CHANGE
from headrace.sql.dialect import wrong
from headrace.sql.expressions import Function, Value

START, END = "window_start", "window_end"
OWN = "$own"
"""Ends the name of a copy of a key column, which is null where its side has no row."""


@dataclass(frozen=True, slots=True)
class Name:
    """A column under the name that a statement has for it. ``column`` is None: the time when a row is processed.

    ``twice``: of a join with USING, the side whose column only has a name with its table.
    """

    table: str
    name: str
    column: str | None
    twice: bool = False


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window function over a table, by whose windows the query around it groups."""

    shape: WindowShape
    by_clock: bool
    node: exp.Expr


@dataclass(frozen=True, slots=True)
class OfWindows:
    """Rows that are results of windows, with the columns that hold their bounds.

    Windows end ``every_ms`` apart, ``moved_ms`` after the epoch.
    """

    start: str
    end: str
    size_ms: int
    every_ms: int
    moved_ms: int


@dataclass(frozen=True, slots=True)
class OpenRank:
    """A ``ROW_NUMBER()`` that the query around it bounds."""

    name: str
    keys: tuple[str, ...]
    by: tuple[str, ...]
    descending: tuple[bool, ...]
    node: exp.Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A flow in a query: a ``Scope`` for expressions."""

    stream: Stream
    names_: tuple[Name, ...]
    functions: Mapping[str, Function] = field(default_factory=dict)
    window: OpenWindow | None = None
    of_windows: OfWindows | None = None
    rank: OpenRank | None = None

    @classmethod
    def of(cls, stream: Stream, table: str, functions: Mapping[str, Function], **more: Any) -> Relation:
        """A flow under its own names, without ``_change``."""
        names = tuple(Name(table, name, name) for name in stream.schema.columns if name != CHANGE)
        return cls(stream=stream, names_=names, functions=functions, **more)

    @property
    def columns(self) -> Mapping[str, pl.DataType]:
        """The columns of the flow."""
        return self.stream.schema.columns

    @property
    def time(self) -> EventTime | None:
        """The event time."""
        return self.stream.event_time

    def names(self) -> list[str]:
        """All names, for "did you mean"."""
        return list(dict.fromkeys(one.name for one in self.names_ if "$" not in one.name))

    def named(self, node: exp.Column) -> Name | None:
        """The name that a column of the statement means; raises if it may mean several."""
        found = self._found(node.table, node.name, str.__eq__)
        found = found or self._found(node.table, node.name, lambda one, two: one.casefold() == two.casefold())
        if len({one.column for one in found}) > 1:
            both = " and ".join(sorted({f"{one.table}.{one.name}" for one in found}))
            raise wrong(node, f"{node.name} may mean {both}", "write the table before it")
        return found[0] if found else None

    def _found(self, table: str, name: str, same: Any) -> list[Name]:
        mine = (one for one in self.names_ if (same(one.table, table) if table else not one.twice))
        return [one for one in mine if same(one.name, name)]

    def column(self, node: exp.Column) -> Value | None:
        """The column that a name means."""
        found = self.named(node)
        if found is None:
            return None
        if found.column is None:
            raise wrong(node, f"{node.name} is the time of processing, which only windows and look-ups can use")
        if found.column not in self.columns:  # a bound of windows by which nothing is grouped yet
            hint = (
                "group by window_start, window_end, and put conditions on them into HAVING or a query around this one"
            )
            raise wrong(node, f"{node.name} isn't known before rows are grouped into windows", hint)
        return Value(pl.col(found.column), self.columns[found.column])

    def has(self, node: exp.Expr) -> bool:
        """Whether all columns of an expression are here, as columns or fields of one."""
        return all(self._reaches(one) for one in node.find_all(exp.Column))

    def _reaches(self, node: exp.Column) -> bool:
        if self._known(node.table, node.name):
            return True
        parts = [part.name for part in node.parts]
        return any(self._known(parts[n - 2] if n > 1 else "", parts[n - 1]) for n in range(1, len(parts)))

    def _known(self, table: str, name: str) -> bool:
        return bool(self._found(table, name, lambda one, two: one.casefold() == two.casefold()))

    def aliased(self, alias: str) -> Relation:
        """The same under another table name."""
        return replace(self, names_=tuple(replace(one, table=alias) for one in self.names_)) if alias else self

    def on(self, stream: Stream, **changed: Any) -> Relation:
        """The same names over another flow."""
        return replace(self, stream=stream, **changed)

    def all_of(self, table: str) -> Iterator[Name]:
        """What ``*`` or ``table.*`` means."""
        seen = set[Name]()
        for one in self.names_:
            mine = one.table.casefold() == table.casefold() if table else not one.twice
            if mine and one.column is not None and one not in seen:
                seen.add(one)
                yield one


def of_shape(shape: WindowShape) -> OfWindows | None:
    """What is known of the results of windows; None if their sizes vary."""
    if not isinstance(shape, Hopping | Tumbling):
        return None
    every = shape.every_ms if isinstance(shape, Hopping) else shape.size_ms
    return OfWindows(START, END, shape.size_ms, every, (shape.offset_ms + shape.size_ms) % every)


def conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that are joined by AND, ``BETWEEN`` as two."""
    if node is None:
        return []
    if isinstance(node, exp.And):
        return [*conjuncts(node.this), *conjuncts(node.expression)]
    if isinstance(node, exp.Paren):
        return conjuncts(node.this)
    return [node]


def columns_named(names: Sequence[Name]) -> dict[str, str]:
    """The flow's columns by the names of a statement; the first of a name counts."""
    found: dict[str, str] = {}
    for one in names:
        if one.column is not None:
            found.setdefault(one.name, one.column)
    return found


__all__ = ["END", "OWN", "START", "Name", "OfWindows", "OpenRank", "OpenWindow", "Relation", "Session", "conjuncts"]
