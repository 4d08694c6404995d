"""The base of ``Stream``, with which its methods check arguments and add nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import polars as pl
from typing_extensions import override

from headrace.api.composed import Composed
from headrace.api.draft import Draft
from headrace.api.event_time import Time, after_function, after_projection
from headrace.api.expressions import (
    as_expression,
    named_expression,
    projected,
    unchanged_columns,
)
from headrace.api.handles import (
    Output,
    Table,
    adopt_schema,
    check_target,
    target_keys,
)
from headrace.api.keys import key_name
from headrace.api.location import Location
from headrace.api.operators.columns import Project
from headrace.api.operators.functions import FAILED_COLUMNS, Fallible, RowFunction
from headrace.api.operators.spec import EventTime, OnError, OperatorSpec
from headrace.api.operators.streams import FAILED, Broadcast, PartitionBy, SendTo, SideOutput
from headrace.api.operators.table import SendToTable, deleting_columns, version_time
from headrace.api.policies import dead_letter_id
from headrace.api.rows import SchemaLike, check_function, output_schema
from headrace.api.schemas import describe
from headrace.api.specs import Role, StreamSpec
from headrace.api.table_checks import nulls_to_delete
from headrace.core.errors import DeclarationError, UsageError
from headrace.core.ids import StreamId
from headrace.serdes.given_rows import Rows
from headrace.serdes.schema import Schema


class Flow(Composed):
    """A point of the app where messages flow: a node of the draft, its schema and its event time."""

    __slots__ = ("_schema", "_time", "draft", "node")

    def __init__(self, draft: Draft, node: str, schema: Schema, time: Time) -> None:
        """Only ``app.input`` and the methods of this class call this."""
        self.draft = draft
        self.node = node
        self._schema = schema
        self._time = time

    @property
    @override
    def schema(self) -> Schema:
        """The columns at this point.

        >>> views.select("url").schema
        Schema(url: String)
        """
        return self._schema

    @property
    def event_time(self) -> EventTime | None:
        """The column that holds the event time, or None.

        >>> views.event_time.column
        'ts'
        """
        return self._time if isinstance(self._time, EventTime) else None

    @override
    def __repr__(self) -> str:
        time = f"; event time {self.event_time.column}" if self.event_time else ""
        return f"Stream({self.node!r}: {describe(self._schema)}{time})"

    @override
    def _head(self, n: int, sample: int | Mapping[str, Rows]) -> pl.DataFrame:
        if self.draft.preview is None:
            raise UsageError("these declarations can't be run", hint="declare streams on an hr.App")
        return self.draft.preview(self.draft, self.node, n, sample)

    # -- helpers of the methods ----------------------------------------------------------------------

    def _send(self, target: Output | Table, key: str | Sequence[str] | None, here: Location) -> None:
        check_target(target)
        self._check_owner(target.draft, target.id)
        keys = target_keys(target, key, self._schema)
        stream = self._ordered(adopt_schema(target, self._schema), here)
        step: SendTo | SendToTable = SendTo(target.id, keys)
        if isinstance(target, Table) and target.spec.remote is not None:
            step = SendTo(self.draft.written_table(target.spec))
        elif isinstance(target, Table):
            step = SendToTable(target.id, time=version_time(target.spec, self._schema, self._time))
        self.draft.add("send_to", step, (stream.node,), here)

    def _delete(self, table: Table, here: Location) -> None:
        if not isinstance(table, Table):
            raise DeclarationError(
                f"rows can be deleted from a table, not from {type(table).__name__} {table!s:.80}",
                hint='tables come from app.table("...", key=...)',
            )
        self._check_owner(table.draft, table.id)
        time = version_time(table.spec, self._schema, self._time)
        columns = deleting_columns(table.spec, self._schema, time)
        if table.spec.remote is not None:
            deleting = self._project("select", [*columns, *nulls_to_delete(table.spec)], {}, here, keep=False)
            stream = deleting._ordered(tuple(table.spec.schema.columns if table.spec.schema else ()), here)
            self.draft.add("delete_from", SendTo(self.draft.written_table(table.spec)), (stream.node,), here)
            return
        stream = self._project("select", columns, {}, here, keep=False)
        self.draft.add("delete_from", SendToTable(table.id, deletes=True, time=time), (stream.node,), here)

    def _then(
        self,
        kind: str,
        operator: OperatorSpec,
        here: Location,
        schema: Schema,
        time: Time,
        *,
        id_: str | None = None,
        others: Sequence[Flow] = (),
    ) -> Self:
        """Return the flow of a new node that takes this flow and ``others``."""
        inputs = (self.node, *(other.node for other in others))
        known = time if isinstance(time, EventTime) else None
        node = self.draft.add(kind, operator, inputs, here, id_=id_, schema=schema, event_time=known)
        return type(self)(self.draft, node.id, schema, time)

    def _by_rows(
        self,
        mode: Literal["map", "flat_map"],
        function: Callable[[Any], Any],
        schema: SchemaLike | None,
        here: Location,
        on_error: OnError,
        dead_letter: Output | None,
    ) -> Self:
        check_function(function, "its argument", may_yield=mode == "flat_map")
        after = output_schema(function, schema, many=mode == "flat_map")
        time = after_function(self._time, after, mode, here)
        step = RowFunction(mode, function, self._schema, after, on_error)
        return self._fallible(mode, step, here, after, time, dead_letter)

    def _fallible(
        self,
        kind: str,
        operator: Fallible,
        here: Location,
        schema: Schema,
        time: Time,
        dead_letter: Output | None,
        *,
        id_: str | None = None,
    ) -> Self:
        """Return the flow of a new step that calls a user's function."""
        letters = self._letters_to(operator.on_error, dead_letter)
        result = self._then(kind, operator, here, schema, time, id_=id_)
        self._send_letters(result.node, letters, here)
        return result

    def _letters_to(self, on_error: OnError, dead_letter: Output | None) -> str | None:
        """Return the output for dead letters, if there is one."""
        letters = dead_letter_id(on_error, dead_letter, "messages on which the function raises")
        if dead_letter is not None:
            self._check_owner(dead_letter.draft, dead_letter.id)
        return letters

    def _send_letters(self, node: str, letters: str | None, here: Location) -> None:
        """Send a step's dead letters to their stream."""
        if letters is not None:
            schema = Schema.of(dict(FAILED_COLUMNS))
            aside = self.draft.add(FAILED, SideOutput(FAILED), (node,), here, schema=schema)
            self.draft.add("send_to", SendTo(letters), (aside.id,), here)

    def _project(
        self, kind: str, exprs: Iterable[object], named: Mapping[str, object], here: Location, *, keep: bool
    ) -> Self:
        all_ = [as_expression(expr, "an argument") for expr in exprs]
        all_ += [named_expression(name, value) for name, value in named.items()]
        schema = Schema.of(projected(self._schema, all_, keep=keep))
        if schema == self._schema and keep and not all_:
            raise DeclarationError("with_columns() needs at least one column", hint="pass an expression")
        same = unchanged_columns(self._schema, all_, keep=keep)
        time = after_projection(self._time, same, schema, kind, here)
        return self._then(kind, Project(tuple(all_), keep), here, schema, time)

    def _ordered(self, names: tuple[str, ...], here: Location) -> Self:
        """Return this flow with its columns in the order of ``names``."""
        if tuple(self._schema.columns) == names:
            return self
        return self._project("select", names, {}, here, keep=False)

    def _with_keys(self, keys: tuple[str | pl.Expr, ...], here: Location) -> Self:
        """Return this flow with a column added for each key that is an expression."""
        computed = [key for key in keys if isinstance(key, pl.Expr) and not key.meta.is_column()]
        for key in computed:
            if key_name(key) in self._schema.columns:
                raise DeclarationError(
                    f"the key expression {key} would replace the column {key_name(key)!r}",
                    hint='give it a name of its own: .alias("key")',
                )
        return self._project("with_columns", computed, {}, here, keep=True) if computed else self

    def _through(
        self,
        id_: str,
        operator: PartitionBy | Broadcast,
        here: Location,
        *,
        partitions: int | None = None,
    ) -> Self:
        """Write an intermediate stream, and continue after it."""
        system = self.draft.default_system
        spec = StreamSpec(
            id=id_,
            role=Role.INTERMEDIATE,
            stream=StreamId(system.name, f"{self.draft.app}-{id_}"),
            system=system,
            location=here,
            schema=self._schema,
            partitions=partitions,
            event_time=self.event_time,
            broadcast=isinstance(operator, Broadcast),
        )
        self.draft.check_free(spec.stream)
        self.draft.add("step", operator, (self.node,), here, id_=id_)
        return type(self)(self.draft, self.draft.read(spec, here).id, self._schema, self._time)

    def _check_other(self, other: object) -> None:
        check_flow(other, "the other side", self.draft)

    def _check_owner(self, draft: Draft, name: str) -> None:
        _check_same_app(repr(name), draft, self.draft)


def check_flow(value: object, what: str, draft: Draft) -> Flow:
    """Return ``value`` if it is a flow of the app that ``draft`` belongs to; ``what`` names it in errors."""
    if not isinstance(value, Flow):
        raise DeclarationError(
            f"{what} must be a stream, not {type(value).__name__} {value!s:.80}",
            hint='streams come from app.input("...") and its methods',
        )
    _check_same_app(f"{what} ({value.node!r})", value.draft, draft)
    return value


def _check_same_app(what: str, theirs: Draft, ours: Draft) -> None:
    if theirs is not ours:
        raise DeclarationError(
            f"{what} belongs to the app {theirs.app!r}, and this flow to {ours.app!r}",
            hint="apps share data only through a stream that one writes and the other reads",
        )
