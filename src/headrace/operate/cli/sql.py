"""A prompt for SQL: ``SELECT`` over what the streams of a home hold now. It writes nothing there.

Each query is an app of its own, which is tried in this process on the last rows of its inputs.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.core.errors import HeadraceError, UsageError, needing
from headrace.operate.cli.console import print_error, print_json, print_line, print_note
from headrace.operate.cli.options import HOME, AsJson, Home

if TYPE_CHECKING:
    import polars as pl

    from headrace.api.specs import StreamSpec
    from headrace.api.stream import Stream
    from headrace.app import App
    from headrace.core.ids import SSP
    from headrace.sql.dialect import Statement

ROWS = 100_000
_SHOWN_MAX = 1_000
_MINUTE_MS = 60_000
_HISTORY = ".headrace_sql_history"
_TYPES = {
    "String": "STRING", "Enum": "STRING", "Categorical": "STRING", "Binary": "BINARY", "Boolean": "BOOLEAN",
    "Int8": "TINYINT", "Int16": "SMALLINT", "Int32": "INT", "Int64": "BIGINT", "Float32": "FLOAT", "Float64": "DOUBLE",
    "Date": "DATE", "Datetime": "TIMESTAMP",
}  # fmt: skip
_HINT = "there are SHOW TABLES, DESCRIBE, SELECT, EXPLAIN, CREATE TABLE, CREATE VIEW and SET"


def sql(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A file of SQL whose tables and views are there; it writes nothing."),
    ] = None,
    execute: Annotated[
        str | None, typer.Option("--execute", "-e", metavar="SQL", help="Run these statements, without a prompt.")
    ] = None,
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="Ask the last N rows of each partition of a stream.")
    ] = ROWS,
    ago: Annotated[
        str | None, typer.Option(metavar="D", help="Ask the rows that were written in the last 90m, 2h or 1d.")
    ] = None,
    changes: Annotated[
        bool, typer.Option("--changes", help="Show the changes of a result that changes, not what they add up to.")
    ] = False,
    home: Home = HOME,
    as_json: AsJson = False,
) -> None:
    """Ask the streams of a home in SQL.

    SHOW TABLES, DESCRIBE, SELECT over the committed rows that streams hold now, and EXPLAIN, which shows the plan.
    CREATE TABLE, for an event time or another system, CREATE VIEW and SET last until the prompt ends. Nothing is
    written: put INSERT INTO into a file, and run that. Without --execute, a pipe is read to its end, and a terminal
    gets a prompt, where Ctrl-C ends a query and Ctrl-D the prompt. Results are tables, or with --json JSON lines.
    """
    from headrace.core.clock import to_ms

    with needing("sqlglot", "SQL", "sql", "where statements are asked"):
        from headrace.sql.dialect import parse
    span = None if ago is None else to_ms(ago, "--ago", error=UsageError)
    asked = Session(home, rows, span, changes=changes, as_json=as_json)
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file} can't be read: {error}", hint="name a file of SQL statements") from None
        asked.run(text, str(file), writes=True)
    if execute is None and sys.stdin.isatty():
        _prompt(asked)
        return
    script, place = (sys.stdin.read(), "stdin") if execute is None else (execute, "--execute")
    if not parse(script):
        raise UsageError("there is no statement to run", hint='headrace sql --execute "SHOW TABLES"')
    asked.run(script, place)


def _prompt(asked: Session) -> None:
    with suppress(ImportError):
        import readline

        with suppress(OSError):
            readline.read_history_file(Path.home() / _HISTORY)
    print_note("SQL over what the streams hold now. SHOW TABLES; lists them. End statements with ; and Ctrl-D ends.")
    try:
        while (text := _typed()) is not None:
            try:
                asked.run(text, "prompt")
            except KeyboardInterrupt:
                print_note("interrupted")
            except HeadraceError as error:
                print_error(error.message.removeprefix("sql: ").partition("\n  at prompt:")[0], error.hint)
    finally:
        with suppress(OSError, NameError):
            readline.write_history_file(Path.home() / _HISTORY)


def _typed() -> str | None:
    """What is typed up to a semicolon; None at the end."""
    lines: list[str] = []
    while True:
        try:
            lines.append(input("  -> " if lines else "sql> "))
        except KeyboardInterrupt:
            print_note("")
            lines = []
            continue
        except EOFError:
            print_note("")
            return None
        text = "\n".join(lines)
        if text.strip().lower().rstrip(";") in ("exit", "quit"):
            return None
        if text.rstrip().endswith(";"):
            return text
        if not text.strip():
            lines = []


@dataclass(slots=True)
class Session:
    """What was declared at the prompt so far, and what to ask."""

    home: Path
    rows: int
    ago_ms: int | None
    changes: bool
    as_json: bool
    _declared: dict[str, tuple[str, Statement]] = field(default_factory=dict)

    def run(self, text: str, place: str, *, writes: bool = False) -> None:
        """Run statements. ``writes``: they are an app's, so that nothing but what they declare counts."""
        from headrace.api.checks import Declaring, Location, declared_at
        from headrace.sql.dialect import parse

        with declared_at(Location(place, 1)), Declaring("sql"):
            statements = parse(text)
        for one in statements:
            where = Location(place, one.line, one.quoted.partition("\n")[0])
            with declared_at(where), Declaring("sql"):
                self._statement(one, re.sub(r"[^\n]", " ", text[: one.start]) + one.text, writes=writes)

    def _statement(self, one: Statement, text: str, *, writes: bool) -> None:
        from headrace.sql.dialect import all_of, wrong

        if one.kind == "set" or one.kind.startswith("create"):
            self._declare(one, text)
        elif writes:
            return
        elif one.kind == "show tables":
            self._print(self._tables())
        elif one.kind == "describe" and one.name:
            self._print(_described(self._planned(all_of(one.name), one)[1]))
        elif one.kind.startswith("explain"):
            self._explain(one, text)
        elif one.kind == "query":
            self._print(self._answer(one, text))
        elif one.kind == "insert":
            hint = "ask its SELECT; or write the statements into a file, and run it: headrace run counts.sql"
            raise wrong(one.node.this, "INSERT INTO isn't run here, where nothing is written", hint)
        else:
            raise wrong(one.node, f"there is no statement {one.text.upper().split()[0]}", _HINT)

    def _declare(self, one: Statement, text: str) -> None:
        from headrace.sql.dialect import all_of, wrong

        name = one.name.casefold() if one.name else one.text
        if one.name and name in self._declared and not one.replaces:
            raise wrong(one.node.this, f"{one.name} is there already", "write CREATE OR REPLACE")
        before = self._declared.pop(name, None)
        self._declared[name] = text, one
        try:
            self._planned(all_of(one.name) if one.kind == "create view" else None, one)
        except HeadraceError:
            del self._declared[name]
            if before is not None:
                self._declared[name] = before
            raise

    def _planned(self, query: str | None, one: Statement) -> tuple[App, Stream | None]:
        """An app of what is declared and a query, with the streams of the log that they name as inputs."""
        from headrace.app import App

        app = App("sql", home=self.home)
        named = set[str]().union(one.tables, *(other.tables for _, other in self._declared.values()))
        streams = {name: columns for name, columns in self._streams().items() if name.casefold() not in self._declared}
        misspelt = not named <= {*map(str.casefold, streams), *self._declared}  # then the error lists all there are
        for name, columns in streams.items():
            if columns is not None and (misspelt or name.casefold() in named):
                app.input(name, columns)
        for text, _ in self._declared.values():
            app.sql(text)
        return app, None if query is None else app.sql(query)

    def _streams(self) -> dict[str, dict[str, pl.DataType] | None]:
        from headrace.systems.registry import home_log, open_system

        admin = open_system(home_log(self.home)).admin()
        found = ((name, admin.describe(name)) for name in admin.list())
        return {name: info.columns for name, info in found if info is not None}

    def _tables(self) -> pl.DataFrame:
        import polars as pl

        found: list[tuple[str, str, str | None]] = []
        for _, one in self._declared.values():
            if one.kind in ("create table", "create view"):
                found.append((one.name, one.kind.replace("create", "declared"), None))
        declared = {name.casefold() for name, _, _ in found}
        for name, columns in self._streams().items():
            if name.casefold() not in declared and columns is not None:
                found.append((name, "stream", ", ".join(columns)))
        return pl.DataFrame(
            sorted(found, key=lambda one: one[:2]),
            {"name": pl.String, "kind": pl.String, "columns": pl.String},
            orient="row",
        )

    def _explain(self, one: Statement, text: str) -> None:
        from headrace.sql.dialect import parse, wrong

        query = re.sub(r"(?i)\bexplain\b", " " * len("explain"), text, count=1)
        inner = parse(query)
        if len(inner) != 1 or inner[0].kind not in ("query", "insert"):
            raise wrong(one.node, "EXPLAIN takes a SELECT or an INSERT INTO")
        app, flow = self._planned(query, inner[0])
        if flow is not None:
            flow.send_to("result")
        plan = app.explain().rstrip("\n")
        if self.as_json:
            print_json({"plan": plan}, indent=None)
        else:
            print_line(plan)

    def _answer(self, one: Statement, text: str) -> pl.DataFrame:
        """The rows of a query. They have an end, so ORDER BY and LIMIT are those of any table."""
        from headrace.kit.harness import head
        from headrace.rows.changes import CHANGE
        from headrace.sql.dialect import end_of_rows

        order = one.order()
        flow = None if order is None else self._planned(text[: end_of_rows(text)], one)[1]
        if flow is None or order is None or not set(order[0]) <= set(flow.schema.columns):
            order, flow = None, self._planned(text, one)[1]
        assert flow is not None, "a query has a flow"
        found = head(flow.draft, flow.node, sys.maxsize, self._taken)
        if CHANGE in found.columns and not self.changes:
            found = self._added_up(found)
        by, down, nulls_last, most = order or ([], [], [], None)
        if by:
            found = found.sort(by, descending=down, nulls_last=nulls_last, maintain_order=True)
        return found if most is None else found.head(most)

    def _added_up(self, changes: pl.DataFrame) -> pl.DataFrame:
        """What changes add up to; of the last rows of a stream, some may take away what was not read."""
        import polars as pl

        from headrace.operate.words import counted
        from headrace.rows.changes import WEIGHT, added_up, summed, told, weighted

        total = summed(weighted(changes))
        gone = -int(total.get_column(WEIGHT).clip(upper_bound=0).sum())
        if gone:
            goes = f"{counted(gone, 'row')} {'goes' if gone == 1 else 'go'}"
            print_note(f"{goes} that came before those that were read: --rows reads more")
        return added_up(told(total.filter(pl.col(WEIGHT) > 0)))

    def _taken(self, spec: StreamSpec) -> pl.DataFrame:
        """What a query asks of an input: of logs the last rows, of others the first."""
        from headrace.kit.harness import LOGS, first_rows

        if spec.system.kind not in LOGS:
            return first_rows(spec, self.rows)
        found, cut = last_rows(spec, self.rows, self.ago_ms)
        if cut:
            what = f"the last {self.rows:,} rows of each partition" if self.ago_ms is None else "the last rows"
            print_note(f"note: this asks {what} of {spec.id}, which has more: --rows N")
        return found

    def _print(self, found: pl.DataFrame) -> None:
        from headrace.operate.cli.table import print_frames
        from headrace.operate.words import counted
        from headrace.rows.text import encode_lines

        if self.as_json:
            sys.stdout.write(encode_lines(found).decode())
            return
        shown = found.head(_SHOWN_MAX)
        print_frames(found.schema, [shown])
        more = f", of which {_SHOWN_MAX:,} are shown: add LIMIT, or --json" if found.height > _SHOWN_MAX else ""
        if more or sys.stdout.isatty():
            print_note(counted(found.height, "row") + more)


def _described(flow: Stream | None) -> pl.DataFrame:
    import polars as pl

    assert flow is not None, "a query has a flow"
    time = None if flow.event_time is None else flow.event_time.column
    rows = [(name, _sql_type(dtype), name == time) for name, dtype in flow.schema.columns.items()]
    return pl.DataFrame(rows, {"column": pl.String, "type": pl.String, "event time": pl.Boolean}, orient="row")


def _sql_type(dtype: pl.DataType) -> str:
    """A type as CREATE TABLE takes it."""
    from headrace.rows.dtypes import written

    name = str(dtype.base_type())
    inner = getattr(dtype, "inner", None)
    fields = getattr(dtype, "fields", None)
    if inner is not None:
        return f"ARRAY<{_sql_type(inner)}>"
    if fields is not None:
        return f"STRUCT<{', '.join(f'{one.name}: {_sql_type(one.dtype)}' for one in fields)}>"
    return _TYPES.get(str(dtype), _TYPES.get(name, written(dtype).upper()))


def last_rows(spec: StreamSpec, rows: int, ago_ms: int | None) -> tuple[pl.DataFrame, bool]:
    """The last committed rows of each partition of a log, or those since so long ago; whether there are more."""
    import polars as pl

    from headrace.core.clock import WallClock
    from headrace.core.ids import SSP
    from headrace.systems.registry import open_system

    admin = open_system(spec.system).admin()
    now = WallClock().now_ms()
    frames: list[pl.DataFrame] = []
    cut = False
    for number, extent in enumerate(admin.extents(spec.stream.name)):
        ssp = SSP(spec.stream, number)
        spans = (_MINUTE_MS * 16**n for n in range(8)) if ago_ms is None else iter([ago_ms])
        for span in spans:  # a log is read forwards, so each look begins much earlier than the one before
            start = admin.offset_at(ssp, max(0, now - span))
            found = list(_read(spec, ssp, start, rows))
            full = sum(one.height for one in found) > rows
            if start <= extent.oldest or full:
                break
        cut |= full
        frames += [pl.concat(found, how="diagonal_relaxed").tail(rows)] if found else []
    columns = {} if spec.schema is None else spec.schema.columns
    if not frames:
        return pl.DataFrame(schema=columns), cut
    together = pl.concat(frames, how="diagonal_relaxed")
    return together.select(name for name in columns if name in together.columns), cut


def _read(spec: StreamSpec, ssp: SSP, start: int, rows: int) -> Iterator[pl.DataFrame]:
    """The frames with the last rows from an offset on: more than ``rows`` of them, if there are."""
    from headrace.core.frame import Kind
    from headrace.streams.reader import CommittedGate, FrameReader, rows_of, wait_for_more
    from headrace.systems.registry import open_system

    reader = FrameReader(open_system(spec.system), spec.stream, CommittedGate(), wait_for_more)
    kept: deque[pl.DataFrame] = deque()
    height = 0
    with closing(reader.read({ssp: start})) as looks:
        for frames in looks:
            for frame in frames:
                if frame.header.kind is Kind.USER:
                    kept.append(rows_of(frame))
                    height += kept[-1].height
                while kept and height - kept[0].height > rows:
                    height -= kept.popleft().height
    yield from kept
