"""The dialect: Spark SQL with the table functions of streams; what a statement is as a tree, and where its parts stand.

It is sqlglot's Databricks dialect, with ``TUMBLE``, ``HOP``, ``CUMULATE`` and ``SESSION`` over ``TABLE t,
DESCRIPTOR(c)``, ``WATERMARK FOR c AS e`` and ``ROW<...>`` types. Only this module knows how sqlglot parses.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.databricks import Databricks
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.databricks import DatabricksParser
from sqlglot.tokenizer_core import TokenType

from headrace.core.errors import DeclarationError

WINDOWS = ("TUMBLE", "HOP", "CUMULATE", "SESSION")
_SNIPPET_CHARS = 60
_SET = ("EXECUTE", "STATEMENT", "SET", "BEGIN")
logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of statements that are refused here, with a hint


def wrong(node: exp.Expr | None, what: str, hint: str | None = None) -> DeclarationError:
    """The error about a part of a statement, with its line and column."""
    return DeclarationError(f"{what}{place_of(node)}", hint=hint)


def place_of(node: exp.Expr | None) -> str:
    """`` (line 3, column 8: price + 1)``; empty if nothing is known."""
    if node is None:
        return ""
    text = " ".join(node.sql(dialect=Streams).split())
    text = text if len(text) <= _SNIPPET_CHARS else f"{text[: _SNIPPET_CHARS - 1]}…"
    places = sorted(
        (one.meta["line"], one.meta["start"], one.meta["col"], one.meta["end"])
        for one in node.walk()
        if "line" in one.meta
    )
    if not places:  # literals have none
        around = place_of(node.parent)
        return f"{around.rpartition(': ')[0]}: {text})" if around.startswith(" (line") else f": {text}"
    line, start, col, end = places[0]
    return f" (line {line}, column {col - (end - start)}: {text})"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a text: its tree, its words as written, and where it begins: the place and the line."""

    node: exp.Expr
    text: str
    start: int
    line: int

    @property
    def quoted(self) -> str:
        """What errors and plans may show of it: no options of ``CREATE TABLE``, some of which are passwords."""
        if isinstance(self.node, exp.Create) and self.node.args.get("kind") == "TABLE":
            return f"CREATE TABLE {self.node.find(exp.Table)}"
        return self.text

    @property
    def kind(self) -> str:
        """``query``, ``insert``, ``set``, ``create table``, ``describe``; of others the first words."""
        if isinstance(self.node, exp.Select | exp.SetOperation | exp.Subquery):
            return "query"
        if isinstance(self.node, exp.Create):
            return f"create {self.node.args.get('kind') or ''}".lower()
        known = isinstance(self.node, exp.Insert | exp.Set | exp.Describe)
        return self.node.key if known else " ".join(self.text.lower().split()[:2])

    @property
    def name(self) -> str:
        """The table that it makes, describes or writes."""
        found = self.node.find(exp.Table)
        return found.name if found is not None else ""

    @property
    def replaces(self) -> bool:
        """Whether it makes something in the place of what there was."""
        return bool(self.node.args.get("replace"))

    @property
    def tables(self) -> set[str]:
        """All tables that it names, in lower case."""
        return {one.name.casefold() for one in self.node.find_all(exp.Table)}

    def order(self) -> tuple[list[str], list[bool], list[bool], int | None] | None:
        """The columns of ORDER BY, which descend, which have nulls last, and the rows of LIMIT; None if it has more."""
        order, limit = self.node.args.get("order"), self.node.args.get("limit")
        items = order.expressions if order is not None else []
        names = [one.this.name for one in items if isinstance(one.this, exp.Column) and not one.this.table]
        plain = limit is None or (isinstance(limit, exp.Limit) and limit.expression.is_int)
        if len(names) < len(items) or not plain or self.node.args.get("offset") is not None:
            return None
        down = [bool(one.args.get("desc")) for one in items]
        last = [not one.args.get("nulls_first") for one in items]
        return names, down, last, None if limit is None else int(limit.expression.name)


def all_of(table: str) -> str:
    """The query of a whole table."""
    return exp.select("*").from_(exp.to_identifier(table, quoted=True)).sql(dialect=Streams)


class Streams(Databricks):
    """Spark SQL for streams."""

    class Tokenizer(Databricks.Tokenizer):
        """Knows ``ROW`` as a struct."""

        COMMANDS: ClassVar[Any] = Databricks.Tokenizer.COMMANDS - {TokenType.EXECUTE}  # else its text isn't read
        KEYWORDS: ClassVar[dict[str, Any]] = {**Databricks.Tokenizer.KEYWORDS, "ROW": TokenType.STRUCT}

    class Parser(DatabricksParser):
        """Knows the functions and constraints of streams."""

        FUNC_TOKENS: ClassVar[Any] = {*DatabricksParser.FUNC_TOKENS, TokenType.SESSION}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            **DatabricksParser.FUNCTION_PARSERS,
            **{name: (lambda self, name=name: self._parse_stream_window(name)) for name in WINDOWS},
        }
        CONSTRAINT_PARSERS: ClassVar[dict[str, Any]] = {
            **DatabricksParser.CONSTRAINT_PARSERS,
            "WATERMARK": lambda self: self._parse_watermark(),
        }
        SCHEMA_UNNAMED_CONSTRAINTS: ClassVar[Any] = {*DatabricksParser.SCHEMA_UNNAMED_CONSTRAINTS, "WATERMARK"}

        def _parse_stream_window(self, name: str) -> exp.Expr:
            """``TUMBLE(TABLE t, DESCRIPTOR(c), INTERVAL ...)``, or ``TUMBLE(c, INTERVAL ...)`` in a GROUP BY."""
            if not self._match(TokenType.TABLE):
                return exp.Anonymous(this=name, expressions=self._parse_csv(self._parse_assignment))
            arguments: list[exp.Expr | None] = [self._parse_table_parts()]
            while self._match(TokenType.COMMA):
                named = self._match_text_seq("DESCRIPTOR")
                arguments.append(self._parse_wrapped(self._parse_column) if named else self._parse_assignment())
            return exp.Anonymous(this=name, expressions=[one for one in arguments if one is not None])

        def _parse_watermark(self) -> exp.Expr:
            self._match_text_seq("FOR")
            column = self._parse_column()
            self._match_text_seq("AS")
            return self.expression(exp.WatermarkColumnConstraint(this=column, expression=self._parse_assignment()))


def parse(text: str) -> list[Statement]:
    """The statements of a text. Raises ``DeclarationError`` with line and column if it isn't SQL."""
    dialect = Streams()
    found = []
    try:
        for tokens in _statements(dialect.tokenize(text)):
            node = dialect.parser().parse(tokens, text)[0]
            if node is not None:
                first, last = tokens[0], tokens[-1]
                found.append(Statement(node, text[first.start : last.end + 1], first.start, first.line))
    except TokenError as error:
        mark = str(error.__cause__).removeprefix("Missing ").partition(" ")[0]
        mark = mark if mark in text else "/*"
        before = text[: text.rfind(mark)]
        where = f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"
        raise DeclarationError(
            f"this isn't SQL: what {mark} begins has no end ({where})", hint=f"close it, or leave out {mark}"
        ) from None
    except ParseError as error:
        raise _unparsed(error.errors[0]) from None
    return found


def _statements(tokens: list[Any]) -> Iterator[list[Any]]:
    """The statements between semicolons. A statement set is its statements, as an app runs all of them together."""
    some: list[Any] = []
    for token in [*tokens, None]:
        if token is not None and token.token_type is not TokenType.SEMICOLON:
            some.append(token)
            continue
        words = [one.text.upper() for one in some[: len(_SET)]]
        some = some[len(_SET) :] if tuple(words) == _SET else [] if words == ["END"] else some
        if some:
            yield some
        some = []


def end_of_rows(text: str) -> int:
    """Where the ORDER BY or LIMIT of a query begins; without one, where the text ends."""
    depth = 0
    for token in Streams().tokenize(text):
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth == 0 and token.token_type in (TokenType.ORDER_BY, TokenType.LIMIT):
            return int(token.start)
    return len(text)


def _unparsed(about: dict[str, Any]) -> DeclarationError:
    what = about.get("description", "").partition("but got <Token")[0].removeprefix("Invalid expression / ").strip()
    what = re.sub(r"Required keyword: '\w+' missing for <class '.*?(\w+)'>", r"\1 needs another argument", what)
    near = about.get("highlight") or ""
    after = "after" if what.startswith("Expected ") else "at"
    where = f"line {about.get('line')}, column {about.get('col', 0) - len(near) + 1}: {near}"
    return DeclarationError(f"this isn't SQL that Headrace reads: {what} {after} {near!r} ({where})", hint=_HINT)


_HINT = "the dialect is Spark SQL with TUMBLE, HOP and SESSION; look at docs/sql.md for what it has"
