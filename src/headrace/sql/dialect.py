"""The dialect: Spark SQL with the table functions of streams; what a statement is as a tree, and where its parts stand.

It is sqlglot's Databricks dialect, with ``TUMBLE``, ``HOP``, ``CUMULATE`` and ``SESSION`` over ``TABLE t,
DESCRIPTOR(c)``, ``WATERMARK FOR c AS e`` and ``ROW<...>`` types. Only this module knows how sqlglot parses.
"""

from __future__ import annotations

from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.databricks import Databricks
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.databricks import DatabricksParser
from sqlglot.tokenizer_core import TokenType

from headrace.core.errors import DeclarationError

WINDOWS = ("TUMBLE", "HOP", "CUMULATE", "SESSION")
_SNIPPET_CHARS = 60


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
    if not places:
        return f": {text}"
    line, start, col, end = places[0]
    return f" (line {line}, column {col - (end - start)}: {text})"


def line_of(node: exp.Expr) -> int:
    """The first line of a statement of which something is known."""
    return min((one.meta["line"] for one in node.walk() if "line" in one.meta), default=1)


class Streams(Databricks):
    """Spark SQL for streams."""

    class Tokenizer(Databricks.Tokenizer):
        """Knows ``ROW`` as a struct."""

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


def parse(text: str) -> list[exp.Expr]:
    """The statements of a text. Raises ``DeclarationError`` with line and column if it isn't SQL."""
    try:
        found = sqlglot.parse(text, read=Streams)
    except (ParseError, TokenError) as error:
        details = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        where = f" (line {details['line']}, column {details['col']})" if details.get("line") else ""
        near = f" at {details['highlight']!r}" if details.get("highlight") else ""
        what = details.get("description") or str(error).partition("\n")[0]
        raise DeclarationError(f"this isn't SQL that Headrace reads: {what}{near}{where}", hint=_HINT) from None
    return [one for one in found if one is not None]


_HINT = "the dialect is Spark SQL with TUMBLE, HOP and SESSION; look at docs/sql.md for what it has"
