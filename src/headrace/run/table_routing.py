"""Which tasks have which rows of a table, and their answers combined. Pure.

If a key is known to have one owner, only that task is asked. Every task has all rows of a global table, so keys are
distributed among the tasks. Otherwise all tasks are asked. A scan goes through the tasks in order and asks one of them,
then two, then four: so many tasks need few rounds, and a page that the first task fills costs the others nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import polars as pl

from headrace.coordinator.messages import LIMIT_MAX, TASKS_MAX, Answers, Ask, TableFacts, TableList, TaskAnswer
from headrace.core.clock import moment_ms
from headrace.core.errors import UsageError
from headrace.plan.chain_plan import owned_by
from headrace.plan.model import Plan
from headrace.plan.passes import queryable_in, unreadable
from headrace.rows.dtypes import columns_from_json, columns_to_json
from headrace.rows.hashing import partition_of
from headrace.rows.ipc import decode_rows
from headrace.rows.values import column
from headrace.stores.encoding import KeyEncoding
from headrace.stores.keyvalue import after_prefix
from headrace.stores.table import ROWS_END


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Rows of one task, as of the commit of this version (None: it has no commit yet)."""

    task: str
    version: int | None
    rows: pl.DataFrame


class TableColumns:
    """The columns of a table with their types; encodes keys as bytes."""

    def __init__(self, facts: TableFacts) -> None:
        self.id = facts.id
        self.key = columns_from_json(facts.key)
        self.values = columns_from_json(facts.values)

    @property
    def schema(self) -> dict[str, pl.DataType]:
        return {**self.key, **self.values}

    def keys(self, rows: Sequence[Sequence[Any]]) -> pl.DataFrame:
        wanted = f"the key of table {self.id!r} is {_shown(self.key)}"
        for row in rows:
            if len(row) != len(self.key):
                raise UsageError(
                    f"{wanted}; {len(row)} values were given", hint="give one value for each of its columns"
                )
        return self._typed([[row[place] for row in rows] for place in range(len(self.key))])

    def encode(self, keys: pl.DataFrame) -> list[bytes]:
        return KeyEncoding(self.key).encode(keys)

    def range(
        self, first: Sequence[Any], *, prefix: str | bytes | None = None, start: Any = None, stop: Any = None
    ) -> tuple[bytes, bytes]:
        """Return the bounds of rows whose first columns are ``first``; the other arguments concern the next column."""
        names = list(self.key)
        bounded = prefix is not None or start is not None or stop is not None
        if len(first) + bounded > len(names):
            what = "a bound after " if bounded else ""
            raise UsageError(
                f"the key of table {self.id!r} is {_shown(self.key)}; {what}{len(first)} values were given",
                hint="give values of its first columns; prefix, from and to concern the column after them",
            )
        low = self._bound(first) if first else b""
        high = low + ROWS_END
        if prefix is not None:
            dtype = self.key[names[len(first)]]
            if dtype not in (pl.String, pl.Binary):
                raise UsageError(
                    f"column {names[len(first)]!r} of table {self.id!r} is {dtype}: only text and binary have prefixes",
                    hint="use from and to",
                )
            begin = self._bound([*first, prefix])[:-1]  # without the 0 that terminates a string
            low, high = max(low, begin), min(high, after_prefix(begin) or high)
        if start is not None:
            low = max(low, self._bound([*first, start]))
        if stop is not None:
            high = min(high, self._bound([*first, stop]))
        return low, high

    def _bound(self, values: Sequence[Any]) -> bytes:
        columns = dict(list(self.key.items())[: len(values)])
        return KeyEncoding(columns).encode(self._typed([[value] for value in values]))[0]

    def _typed(self, columns: Sequence[Sequence[Any]]) -> pl.DataFrame:
        of_key = zip(self.key.items(), columns, strict=False)
        return pl.DataFrame([self._series(name, dtype, values) for (name, dtype), values in of_key])

    def _series(self, name: str, dtype: pl.DataType, values: Sequence[Any]) -> pl.Series:
        try:
            # Polars would accept True as 1, and a number as a decimal, a date or a time.
            if dtype != pl.Boolean and any(isinstance(value, bool) for value in values):
                raise TypeError("a bool")
            series = (
                pl.Series(name, values, dtype=dtype, strict=False) if dtype.is_float() else column(name, values, dtype)
            )
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                f"{', '.join(map(repr, values[:3]))} can't be a value of column {name!r} of table {self.id!r},"
                f" which is {dtype}"
            ) from error
        if series.null_count():
            raise UsageError(f"column {name!r} of table {self.id!r} is part of the key, so it can't be null")
        return series


def owners(facts: TableFacts, columns: TableColumns, keys: pl.DataFrame) -> tuple[str, ...]:
    tasks = facts.tasks
    if facts.kind != "global" and facts.owned_by is None:
        return tuple(tasks)
    names = facts.owned_by or list(columns.key)
    return tuple(tasks[number] for number in sorted(set(partition_of(keys, names, len(tasks)).tolist())))


def time_ms(facts: TableFacts, at: int | datetime | None) -> int | None:
    """Return ``at`` in ms; naive datetimes are UTC."""
    if at is None:
        return None
    if facts.versions_ms is None:
        raise UsageError(
            f"table {facts.id!r} keeps no versions, only its present rows",
            hint="leave out the time; a table keeps earlier rows if it is declared with versions=",
        )
    if isinstance(at, datetime):
        return moment_ms(at)
    if isinstance(at, bool) or not isinstance(at, int) or not -(2**63) <= at < 2**63:
        raise UsageError(f"{at!r} isn't a time", hint="give a datetime, or milliseconds since the epoch")
    return at


def gets(
    facts: TableFacts, columns: TableColumns, keys: pl.DataFrame, limit_ms: int, *, at_ms: int | None = None
) -> list[Ask]:
    tasks = owners(facts, columns, keys)
    encoded = tuple(columns.encode(keys))
    return [
        Ask(table=facts.id, tasks=list(tasks[at : at + TASKS_MAX]), keys=encoded, limit_ms=limit_ms, at_ms=at_ms)
        for at in range(0, len(tasks), TASKS_MAX)
    ]


def found(columns: TableColumns, answers: Answers) -> list[TaskRows]:
    if any(one.more for one in answers.answers):
        raise UsageError(
            f"the rows of these keys of table {columns.id!r} are too large for one answer",
            hint="read fewer keys at once",
        )
    return [TaskRows(one.task, one.version, _rows(columns, one)) for one in answers.answers]


def _rows(columns: TableColumns, answer: TaskAnswer) -> pl.DataFrame:
    if answer.error is not None:
        raise answer.error.as_error()
    return decode_rows(answer.rows) if answer.rows else pl.DataFrame(schema=columns.schema)


class TableScan:
    """One page of a table, task by task. Call ``ask`` and ``take`` in turns until ``ask`` returns None."""

    def __init__(
        self,
        facts: TableFacts,
        columns: TableColumns,
        bounds: tuple[bytes, bytes],
        *,
        limit: int,
        limit_ms: int,
        partition: int | None = None,
        after: str | None = None,
        at_ms: int | None = None,
    ) -> None:
        """``partition`` limits the scan to one task. ``after`` is the ``after`` of an earlier page."""
        if not 1 <= limit <= LIMIT_MAX:
            raise UsageError(f"can't return {limit} rows at once", hint=f"a page has 1 to {LIMIT_MAX} rows")
        self.parts: list[TaskRows] = []
        self.after: str | None = None
        """Where the next page begins; None if this is the last one."""
        self._columns, self._limit, self._wave = columns, limit, 1
        self._low, high = bounds
        self._like = Ask(table=facts.id, tasks=[], high=high, limit_ms=limit_ms, at_ms=at_ms)
        self._left = _tasks(facts, partition)
        task, key = (None, None) if after is None else _parsed(after)
        if task is not None:
            if task not in self._left:
                raise UsageError(
                    f"{after!r} isn't the end of a page of table {facts.id!r}",
                    hint="use the place that the previous page gave",
                )
            self._left = self._left[self._left.index(task) :]
        self._from = self._low if key is None else max(self._low, key + b"\x00")
        """Where the first task that is asked begins."""

    @property
    def rows(self) -> int:
        return sum(part.rows.height for part in self.parts)

    def ask(self) -> Ask | None:
        if not self._left or self.after is not None:
            return None
        tasks, self._left = self._left[: self._wave], self._left[self._wave :]
        self._wave = min(self._wave * 2, TASKS_MAX)
        low, self._from = self._from, self._low
        return msgspec.structs.replace(self._like, tasks=tasks, low=low, rows=self._limit + 1 - self.rows)

    def take(self, answers: Answers) -> None:
        for answer in answers.answers:
            rows = _rows(self._columns, answer)
            room = self._limit - self.rows
            self.parts.append(TaskRows(answer.task, answer.version, rows.head(room)))
            if rows.height > room:
                last = next(part for part in reversed(self.parts) if part.rows.height)
                self.after = _place(last.task, self._columns.encode(last.rows.tail(1))[0])
                return
            if answer.more:
                self.after = _place(answer.task, answer.last)
                return


def _tasks(facts: TableFacts, partition: int | None) -> list[str]:
    if partition is not None and not 0 <= partition < len(facts.tasks):
        raise UsageError(
            f"table {facts.id!r} has no partition {partition}; its partitions are 0 to {len(facts.tasks) - 1}"
        )
    if partition is not None:
        return [facts.tasks[partition]]
    return facts.tasks[:1] if facts.kind == "global" else list(facts.tasks)


def _place(task: str, key: bytes) -> str:
    """The place after that key; without a key, the beginning of the task."""
    return f"{task}@{base64.urlsafe_b64encode(key).decode()}"


def _parsed(after: str) -> tuple[str, bytes | None]:
    task, at, text = after.rpartition("@")
    try:
        key = base64.b64decode(text.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(
            f"{after!r} isn't the end of a page", hint="use the place that the previous page gave"
        ) from error
    return task if at else after, key or None


def _shown(columns: Mapping[str, pl.DataType]) -> str:
    return ", ".join(f"{name} ({dtype})" for name, dtype in columns.items())


def catalogue(plan: Plan) -> TableList:
    """Return all tables and all stores of low-level tasks, sorted by name, for each stage that keeps one."""
    facts = []
    for stage in plan.stages:
        for held in queryable_in(plan, stage).values():
            # A task chooses the keys of its store freely, so which task has a key isn't known.
            owners = None if held.kind == "store" else owned_by(plan, stage, held.id)
            facts.append(
                TableFacts(
                    id=held.id,
                    kind=held.kind,
                    stage=stage.name,
                    key=columns_to_json({name: held.columns[name] for name in held.key}),
                    values=columns_to_json({name: t for name, t in held.columns.items() if name not in held.key}),
                    tasks=[str(task.name) for task in stage.tasks],
                    owned_by=None if owners is None else list(owners),
                    ttl_ms=held.ttl_ms,
                    storage=held.storage,
                    versions_ms=held.versions_ms,
                )
            )
    tables = tuple(sorted(facts, key=lambda one: (one.id, one.stage)))
    return TableList(app=plan.graph.app, tables=tables, others=unreadable(plan.graph))
