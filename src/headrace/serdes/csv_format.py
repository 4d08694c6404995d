"""How a CSV file is written: separator, header, quotes, nulls, encoding."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any

from headrace.core.errors import DeclarationError

_SKIP_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """The options of CSV, checked. ``header``: True, False, or the names of the columns of a file without a header."""

    separator: str = ","
    header: bool | tuple[str, ...] = True
    quote: str | None = '"'
    null_values: tuple[str, ...] = ("",)
    encoding: str = "utf-8"
    skip_lines: int = 0

    def __post_init__(self) -> None:
        for what, value in (("separator", self.separator), ("quote", self.quote)):
            if value is None and what == "quote":
                continue
            if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n":
                raise DeclarationError(f"{what}={value!r} isn't a single ASCII character", hint='write "," or "\\t"')
        if self.separator == self.quote:
            raise DeclarationError(f"separator and quote are both {self.separator!r}")
        if not isinstance(self.header, bool):
            object.__setattr__(self, "header", _names(self.header))
        object.__setattr__(self, "null_values", _texts(self.null_values))
        object.__setattr__(self, "encoding", _encoding(self.encoding))
        if type(self.skip_lines) is not int or not 0 <= self.skip_lines <= _SKIP_MAX:
            raise DeclarationError(f"skip_lines={self.skip_lines!r} isn't a number of lines from 0 to {_SKIP_MAX}")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CsvFormat:
        """The format with these options. Raises ``DeclarationError`` for an unknown one."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                close = get_close_matches(str(name), known, n=1)
                raise DeclarationError(
                    f"CSV has no option {name!r}; it has {', '.join(known)}",
                    hint=f"did you mean {close[0]!r}?" if close else None,
                )
        return cls(**options)

    def options(self) -> dict[str, Any]:
        """The options that aren't the defaults."""
        usual = asdict(CsvFormat())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


def _texts(values: object) -> tuple[str, ...]:
    if isinstance(values, str):
        return (values,)
    if isinstance(values, list | tuple) and all(isinstance(value, str) for value in values):
        return tuple(values)
    raise DeclarationError(f"null_values={values!r}: expected a list of strings", hint='write ["", "NA"]')


def _names(names: object) -> tuple[str, ...]:
    whole = isinstance(names, list | tuple) and names and all(isinstance(name, str) and name for name in names)
    if not whole or not isinstance(names, list | tuple):
        raise DeclarationError(
            f"header={names!r} isn't a list of column names", hint='write header=False, or header=["member", "euros"]'
        )
    if len(set(names)) < len(names):
        raise DeclarationError(f"header names a column twice: {', '.join(names)}")
    return tuple(names)


def _encoding(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except (LookupError, TypeError) as error:
        raise DeclarationError(f"encoding={name!r} isn't known", hint='write "utf-8" or "latin-1"') from error
