"""The statements of an app: tables and views of its catalogue, queries, and what is written where.

``CREATE TABLE`` declares a stream with a connector, which becomes an input when it is read, an output when it is
written, and a table when it is looked up. ``CREATE VIEW`` names a query, which is planned once. ``INSERT INTO`` writes
a query.
"""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl
from sqlglot import exp

from headrace.api.app import Declarations
from headrace.api.checks import Declaring, Location, declared_at, here
from headrace.api.descriptors import SystemDescriptor, csv, files, log, memory, sql
from headrace.api.draft import Output, Table
from headrace.api.specs import Role, StreamSpec
from headrace.api.stream import Stream
from headrace.core.clock import Duration, to_ms
from headrace.core.errors import DeclarationError
from headrace.core.plug_ins import loaded, own_points, plug_in
from headrace.rows.changes import CHANGE
from headrace.rows.schema import Schema
from headrace.sql.dialect import parse, wrong
from headrace.sql.expressions import Function, data_type, duration_ms, translate
from headrace.sql.queries import Queries, Shared, is_clock
from headrace.sql.relations import Name, Relation
from headrace.systems.registry import keeps_rows

_INTERNAL = ("log", "default")
_GROUP, _FORMATS = "headrace.io", "headrace.formats"
_OWN: Mapping[str, Callable[..., Any]] = {"csv": csv, "files": files, "log": log, "memory": memory, "sql": sql}
_THROUGH_A_VIEW = "name the query by CREATE VIEW, and let both SELECT FROM it"
DELETED = "deleted"
"""The column that says in a place for new rows only that a row goes."""
PARTITIONS = "partitions"
"""The option that says how many partitions a stream gets, if it isn't there."""


@dataclass(slots=True)
class DeclaredTable:
    """A table of ``CREATE TABLE``."""

    name: str
    schema: Schema
    computed: dict[str, exp.Expr]
    key: tuple[str, ...]
    time: str | None
    lateness_ms: int
    options: dict[str, str]
    node: exp.Expr
    where: Location


@dataclass(slots=True)
class Catalogue:
    """What the SQL of one app has declared."""

    app: Declarations
    functions: dict[str, Function] = field(default_factory=dict)
    declared: dict[str, DeclaredTable] = field(default_factory=dict)
    views: dict[str, tuple[str, exp.Expr, Location]] = field(default_factory=dict)
    given: dict[str, Stream] = field(default_factory=dict)
    relations: dict[str, Relation] = field(default_factory=dict)
    written: dict[str, exp.Expr] = field(default_factory=dict)
    lookups: dict[str, Table] = field(default_factory=dict)
    shared: Shared = field(default_factory=Shared)
    ttl: Duration | Literal["never"] = "never"

    # -- statements ----------------------------------------------------------------------------------
    def run(self, text: str, name: str | None, file: str | None) -> Stream | None:
        """Carry out statements; return the flow of the last one, if it is a query. ``file``: where they are."""
        result: Stream | None = None
        caller = here()
        with declared_at(Location(file, 1)) if file is not None else nullcontext(), Declaring("sql"):
            statements = parse(text)
        for number, one in enumerate(statements):
            first, code = one.quoted.partition("\n")[0].rstrip(), one.quoted
            where = Location(caller.file, caller.line, first, code)
            if file is not None:
                where = Location(file, one.line, first, code)
            with declared_at(where), Declaring("sql"):
                result = self._statement(one.node, name or f"query{number or ''}")
        return result

    def _statement(self, node: exp.Expr, name: str) -> Stream | None:
        if isinstance(node, exp.Create):
            self._create(node)
            return None
        if isinstance(node, exp.Insert):
            self._insert(node)
            return None
        if isinstance(node, exp.Set):
            self._set(node)
            return None
        if isinstance(node, exp.Select | exp.SetOperation | exp.Subquery):
            return self._queries().planned(node, name).stream
        hint = "there are CREATE TABLE, CREATE VIEW, INSERT INTO, SELECT and SET"
        word = node.sql().split()[0]
        if word.upper() in ("SHOW", "DESCRIBE", "EXPLAIN"):
            hint = 'ask it of the prompt: headrace sql --execute "..."'
        raise wrong(node, f"{word.upper()} is no statement of an app", hint)

    def _queries(self) -> Queries:
        return Queries(self.table, self.shared, self.functions, self.lookup, self.columns_of, self.ttl)

    def _create(self, node: exp.Create) -> None:
        kind = (node.args.get("kind") or "").upper()
        if kind == "FUNCTION":
            made = node.this.find(exp.Identifier)
            name = made.name if made is not None else node.this.sql()
            if name.lower() not in self.functions:
                raise wrong(
                    node,
                    f"the function {name} isn't there",
                    f"give it: app.sql(..., functions={{{name!r}: my_function}})",
                )
            return
        if kind == "VIEW":
            self._new(node.this.name, node)
            self.views[node.this.name.casefold()] = node.this.name, node.expression, here()
            return
        if kind != "TABLE" or not isinstance(node.this, exp.Schema):
            raise wrong(
                node, f"CREATE {kind} isn't supported", "there are CREATE TABLE (columns) WITH (...) and CREATE VIEW"
            )
        table = _declared(node)
        self._new(table.name, node)
        self.declared[table.name.casefold()] = table

    def _new(self, name: str, node: exp.Expr) -> None:
        if name.casefold() in self.declared or name.casefold() in self.views:
            raise wrong(node, f"{name} is there already", "give it another name")

    def _set(self, node: exp.Set) -> None:
        for item in node.expressions:
            assignment = item.this
            name = assignment.this.sql().strip("'`\"").lower()
            value = assignment.expression.name
            if name not in ("state.ttl", "table.exec.state.ttl"):
                raise wrong(node, f"there is no setting {name}", "SET 'state.ttl' = '7d' bounds what joins keep")
            self.ttl = value.replace(" ", "")
            if self.ttl != "never":
                try:
                    to_ms(self.ttl, name)
                except DeclarationError as error:
                    raise wrong(assignment.expression, error.message, "write '7d', '12h' or 'never'") from None

    def _insert(self, node: exp.Insert) -> None:
        target = node.this.this if isinstance(node.this, exp.Schema) else node.this
        name = target.name
        if name.casefold() in self.written:
            hint = "write INSERT INTO ... SELECT ... UNION ALL SELECT ..."
            raise wrong(node.this, f"{name} is written by two statements", hint)
        if node.args.get("overwrite"):
            raise wrong(node.this, "a stream can't be overwritten", "write INSERT INTO")
        self.written[name.casefold()] = node
        relation = self._queries().planned(node.expression, name)
        if any(one.id.casefold() == name.casefold() and one.role is Role.SOURCE for one in self._streams()):
            raise wrong(node.this, f"{name} is read by this app, and can't be written by it, too", _THROUGH_A_VIEW)
        declared = self.declared.get(name.casefold())
        exprs = _written(node, relation, declared, name)
        plain = all(one.meta.is_column() and one.meta.output_name() == to for to, one in exprs.items())
        own = [column for column in relation.columns if column != CHANGE]
        stream = relation.stream if plain and own == list(exprs) else relation.stream.select(**exprs)
        output = self._output(name, declared)
        if declared is not None and stream.changing:
            if declared.key:
                stream = _keyed(stream, declared, name)
            if keeps_rows(output.spec.system):
                if not declared.key or DELETED not in declared.schema.columns:
                    hint = f"give {name} a PRIMARY KEY and a column {DELETED} BOOLEAN, for the new row of each key"
                    kind = output.spec.system.kind
                    raise wrong(node.this, f"{kind} only takes new rows, and this query changes earlier ones", hint)
                stream = stream.upserts(DELETED)
        stream.send_to(output)

    def _streams(self) -> Iterable[StreamSpec]:
        return self.app._draft.streams.values()

    def _output(self, name: str, declared: DeclaredTable | None) -> Output:
        draft = self.app._draft
        if name in draft.streams and draft.streams[name].role is Role.SINK:
            return Output(draft, name)
        if declared is None:
            return self.app.output(name)
        return self.app.output(name, system=_system(declared), partitions=_partitions(declared))

    # -- tables --------------------------------------------------------------------------------------
    def table(self, node: exp.Table) -> Relation:
        """What a name in FROM means."""
        name = node.name.casefold()
        if name not in self.relations:
            self.relations[name] = self._found(node)
        return self.relations[name]

    def _found(self, node: exp.Table) -> Relation:
        name = node.name.casefold()
        if name in self.given:
            return Relation.of(self.given[name], node.name, self.functions)
        if name in self.views:
            own, query, where = self.views[name]
            try:
                return self._queries().planned(query, own).aliased(own)
            except DeclarationError as error:
                error.message = f"in the view {own} of {where}: {error.message}"
                raise
        if name in self.written:
            raise wrong(node, f"{node.name} is written by this app, and can't be read by it, too", _THROUGH_A_VIEW)
        if name in self.declared:
            return self._input(self.declared[name])
        draft = self.app._draft
        for one in draft.nodes.values():
            stream = one.operator.stream_read
            spec = None if stream is None else draft.streams[stream]
            if spec is not None and spec.role is Role.SOURCE and spec.id.casefold() == name and one.schema is not None:
                return Relation.of(Stream(draft, one.id, one.schema, one.event_time), node.name, self.functions)
        names = [
            *self.given,
            *self.views,
            *self.declared,
            *(s.id for s in self._streams() if s.role is Role.SOURCE),
        ]
        near = difflib.get_close_matches(node.name, names, n=1)
        hint = (
            f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none: write CREATE TABLE first'}"
        )
        raise wrong(node, f"there is no table {node.name}", hint)

    def columns_of(self, node: exp.Table) -> Mapping[str, pl.DataType]:
        """The columns of a declared table."""
        found = self.declared.get(node.name.casefold())
        if found is None:
            raise wrong(node, f"there is no table {node.name} to look up", "declare it with CREATE TABLE")
        return found.schema.columns

    def lookup(self, node: exp.Table, key: tuple[str, ...]) -> Table:
        """A declared table as one that flows look up: all of it in each task, by the columns that the join names."""
        declared = self.declared[node.name.casefold()]
        if declared.key and set(declared.key) != set(key):
            raise wrong(
                node, f"the key of {node.name} is {', '.join(declared.key)}, and the join is on {', '.join(key)}"
            )
        if node.name not in self.lookups:
            side = self._input(declared).stream
            self.lookups[node.name] = self.app.table(
                f"{declared.name}-table", key=list(key), side_inputs=side, kind="global"
            )
        return self.lookups[node.name]

    def _input(self, table: DeclaredTable) -> Relation:
        arguments: dict[str, Any] = {"system": _system(table), "create": _partitions(table)}
        if table.time is not None:
            arguments |= {"event_time": table.time, "lateness": f"{table.lateness_ms}ms"}
        with declared_at(table.where):
            stream = self.app.input(table.name, table.schema, **arguments)
        relation = Relation.of(stream, table.name, self.functions)
        for name, expr in table.computed.items():
            column = None if is_clock(expr) else name
            if column is not None:
                stream = relation.stream.with_columns(translate(expr, relation).expr.alias(name))
            relation = relation.on(stream, names_=(*relation.names_, Name(table.name, name, column)))
        return relation


def _written(node: exp.Insert, relation: Relation, declared: DeclaredTable | None, name: str) -> dict[str, pl.Expr]:
    """What the columns of a table get from a query."""
    columns = list(relation.all_of(""))
    known = [one.name for one in columns] if declared is None else list(declared.schema.columns)
    known = [one for one in known if not (relation.stream.changing and one == DELETED)]
    if isinstance(node.this, exp.Schema):
        listed = [one.name for one in node.this.expressions]
        unknown = [one for one in node.this.expressions if declared is not None and one.name not in known]
        if unknown:
            raise wrong(unknown[0], f"{name} has no column {unknown[0].name}", f"there are {', '.join(known)}")
    else:
        listed = known
    if len(listed) != len(columns):
        what = f"the query has {len(columns)} columns, and {name} takes {len(listed)}"
        raise wrong(node.expression, what, f"it takes {', '.join(listed)}")
    exprs: dict[str, pl.Expr] = {}
    items = getattr(node.expression, "expressions", [])
    places = items if len(items) == len(listed) else [node.expression] * len(listed)
    for to, one, place in zip(listed, columns, places, strict=True):
        if to in exprs:
            raise wrong(place, f"two columns are called {to}", "give one another name: ... AS name")
        exprs[to] = pl.col(one.column or "")
        if declared is not None:
            exprs[to] = _stored(exprs[to], relation.columns[one.column or ""], declared, to, place)
    if declared is None:
        return exprs
    missing = {to: pl.lit(None, dtype) for to, dtype in declared.schema.columns.items()}
    return {to: exprs.get(to, none) for to, none in missing.items() if to in exprs or to in known}


def _keyed(stream: Stream, declared: DeclaredTable, name: str) -> Stream:
    own = stream.draft.change_keys.get(stream.node)
    if own is None or set(own) != set(declared.key):
        by_key = stream.partition_by(list(declared.key), id=f"{name}-by-key")
        stream = by_key.changes(list(declared.key), id=f"{name}-changes")
    return stream


def _declared(node: exp.Create) -> DeclaredTable:
    columns: dict[str, pl.DataType] = {}
    computed: dict[str, exp.Expr] = {}
    key: tuple[str, ...] = ()
    time, lateness = None, 0
    mark: exp.Expr = node
    for one in node.this.expressions:
        if isinstance(one, exp.ColumnDef):
            if one.name in columns or one.name in computed:
                raise wrong(one, f"there are two columns {one.name}", "leave one out")
            rules = [constraint.kind for constraint in one.args.get("constraints") or []]
            made = next((rule for rule in rules if isinstance(rule, exp.ComputedColumnConstraint)), None)
            if made is not None:
                computed[one.name] = made.this
            elif one.args.get("kind") is None:
                raise wrong(one, f"the column {one.name} has no type", "write price BIGINT")
            else:
                columns[one.name] = data_type(one.args["kind"])
            if any(isinstance(rule, exp.PrimaryKeyColumnConstraint) for rule in rules):
                key = (one.name,)
        elif isinstance(one, exp.WatermarkColumnConstraint):
            mark = one
            time, lateness = _watermark(one)
        elif isinstance(one, exp.PrimaryKey):
            key = tuple(part.name for part in one.expressions)
        elif not isinstance(one, exp.Constraint):
            raise wrong(one, "this isn't supported in CREATE TABLE", "there are columns, PRIMARY KEY and WATERMARK FOR")
    if time is not None and time not in columns:
        what = "is computed" if time in computed else "isn't a column"
        raise wrong(mark, f"the watermark's column {time} {what}", "a watermark is for a column that the stream has")
    if time is not None and not isinstance(columns[time], pl.Datetime) and columns[time] != pl.Int64:
        raise wrong(
            mark, f"the watermark's column {time} is {columns[time]}", "it is a TIMESTAMP, or a BIGINT of milliseconds"
        )
    properties = node.args.get("properties")
    options = {
        one.name: one.args["value"].name
        for one in (properties.expressions if properties else [])
        if isinstance(one, exp.Property)
    }
    return DeclaredTable(node.this.this.name, Schema.of(columns), computed, key, time, lateness, options, node, here())


def _watermark(node: exp.WatermarkColumnConstraint) -> tuple[str, int]:
    """``WATERMARK FOR ts AS ts - INTERVAL '5' SECOND``: the column, and how late its rows may be."""
    column, rule = node.this, node.expression
    rule = rule.this if isinstance(rule, exp.Paren) else rule
    if isinstance(rule, exp.Column) and rule.name == column.name:
        return column.name, 0
    if isinstance(rule, exp.Sub) and isinstance(rule.this, exp.Column) and rule.this.name == column.name:
        return column.name, duration_ms(rule.expression)
    raise wrong(node, "this watermark isn't supported", "write WATERMARK FOR ts AS ts - INTERVAL '5' SECOND")


def _stored(expr: pl.Expr, dtype: pl.DataType, table: DeclaredTable, name: str, node: exp.Expr) -> pl.Expr:
    """A value as the column of a table has it: numbers and times may become wider or narrower, nothing else changes."""
    wanted = table.schema.columns[name]
    if dtype == wanted:
        return expr
    alike = (dtype.is_numeric() and wanted.is_numeric()) or (
        isinstance(dtype, pl.Datetime) and isinstance(wanted, pl.Datetime)
    )
    if not alike and dtype != pl.Null:
        raise wrong(
            node, f"the column {name} of {table.name} is {wanted}, and the query's is {dtype}", "write CAST(... AS ...)"
        )
    return expr.cast(wanted)


def _partitions(table: DeclaredTable) -> int | None:
    text = table.options.get(PARTITIONS)
    if text is not None and not text.isdigit():
        raise wrong(_option(table, PARTITIONS), f"{text!r} isn't a number of partitions", "write 'partitions' = '4'")
    return None if text is None else int(text)


def _option(table: DeclaredTable, name: str) -> exp.Expr:
    """The name of an option, for errors: its value may be a password."""
    properties = table.node.args["properties"].expressions
    found: exp.Expr = next((one.this for one in properties if one.name == name), table.node.this.this)
    return found


# -- connectors --------------------------------------------------------------------------------------
def _system(table: DeclaredTable) -> SystemDescriptor | None:
    """The place that ``WITH ('connector' = ...)`` names: a function of ``hr.io`` with the same options."""
    options = {name: text for name, text in table.options.items() if name != PARTITIONS}
    kind = options.pop("connector", _INTERNAL[0])
    if kind in _INTERNAL and not options:
        return None
    make = _OWN.get(kind)
    if make is None and (point := plug_in(_GROUP, kind)) is not None:
        make = typing.cast("Callable[..., Any]", loaded(point))
    if make is None:
        known = sorted({*_OWN, *own_points(_GROUP)} - {*own_points(_FORMATS), "registry"})
        near = difflib.get_close_matches(kind, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}"
        raise wrong(_option(table, "connector"), f"there is no connector {kind!r}", hint)
    return typing.cast("SystemDescriptor", make(**_arguments(make, kind, options, table)))


def _arguments(make: Callable[..., Any], kind: str, options: Mapping[str, str], table: DeclaredTable) -> dict[str, Any]:
    signature = inspect.signature(make)
    hints = typing.get_type_hints(make) if not isinstance(make, type) else {}
    found = {}
    for name, text in options.items():
        argument = name.replace("-", "_").replace(".", "_")
        if argument not in signature.parameters:
            near = difflib.get_close_matches(argument, signature.parameters, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(signature.parameters)}"
            raise wrong(_option(table, name), f"the connector {kind!r} has no option {name!r}", hint)
        found[argument] = _converted(text, hints.get(argument, str), name, table)
    for name, one in signature.parameters.items():
        if name not in found and one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            hint = f"add '{name}' = '...'"
            raise wrong(_option(table, "connector"), f"the connector {kind!r} needs the option {name!r}", hint)
    return found


def _converted(text: str, wanted: Any, name: str, table: DeclaredTable) -> Any:
    kinds = typing.get_args(wanted) if typing.get_origin(wanted) in (typing.Union, types.UnionType) else (wanted,)
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if int in kinds and text.lstrip("-").isdigit():
        return int(text)
    if str in kinds or Any in kinds or any(typing.get_origin(one) is Literal for one in kinds):
        return text
    raise wrong(
        _option(table, name),
        f"the option {name!r} can't be said in SQL",
        "declare the table in Python: app.input(...)",
    )


def check_functions(functions: Mapping[str, Function]) -> dict[str, Function]:
    """Users' functions by lower-case names."""
    for name, function in functions.items():
        if not callable(function):
            raise DeclarationError(
                f"the function {name!r} can't be called", hint="give a function from expressions to an expression"
            )
    return {name.lower(): function for name, function in functions.items()}


def planned(
    app: Declarations,
    text: str,
    name: str | None,
    functions: Mapping[str, Function],
    tables: Mapping[str, Stream],
    file: str | None,
) -> Stream | None:
    """Carry out ``app.sql``: the catalogue stays with the app."""
    draft = app._draft
    catalogue = draft.catalogue if isinstance(draft.catalogue, Catalogue) else Catalogue(app)
    draft.catalogue = catalogue
    catalogue.functions |= check_functions(functions)
    for table, stream in tables.items():
        if not isinstance(stream, Stream):
            raise DeclarationError(
                f"{table}= is {type(stream).__name__}, not a stream", hint="pass what app.input(...) returns"
            )
        catalogue.given[table.casefold()] = stream
        catalogue.relations.pop(table.casefold(), None)
    return catalogue.run(text, name, file)
