"""The rows that a low-level task has sent to an output and that haven't been emitted, in columns.

A row's values are taken out of it at once. So later changes to the dict have no effect, and a missing column is
reported at the line that forgot it. Whether all values fit their columns is only known when the batch is built. Until
then the line of each ``send`` of a row that might not fit is kept for the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import polars as pl

from headrace.serdes.plain_values import NAMES, fits
from headrace.serdes.rows import concat_rows
from headrace.serdes.schema import Schema


class Sent:
    """What was sent to one output and has not been emitted."""

    def __init__(self, output: str, schema: Schema) -> None:
        self.output = output
        self._schema = schema
        self._columns: list[list[Any]] = [[] for _ in schema.columns]
        self._places: dict[int, tuple[CodeType, int]] = {}
        """For each row that might not fit, the code that has sent it and the instruction there: finding the line takes
        longer."""
        self._frames: list[pl.DataFrame] = []
        """What was sent before the rows in ``_columns``."""
        self._trial: tuple[int, int] | None = None
        """The numbers of frames, and of rows in ``_columns``, when the trial began."""
        self.append = _appending(schema.columns, self._columns)
        """Adds a dict, and returns whether it surely fits. If not, ``doubt`` must be called. Raises ``KeyError``,
        without any effect, if a column is missing or the dict has another key."""

    @property
    def waiting(self) -> bool:
        """Something was sent."""
        return bool(self._columns[0] or self._frames)

    def add(self, rows: Any, sender: FrameType) -> None:
        """Add a row or a DataFrame."""
        if not isinstance(rows, pl.DataFrame):
            if not self.append(dict(zip(self._schema.columns, self._schema.values_of(rows), strict=True))):
                self.doubt(sender)
            return
        fitting, mismatch = self._schema.conform(rows)
        self._schema.refuse_others(rows.columns, "the output")
        if mismatch is not None:
            raise mismatch.error()
        if fitting.height:
            if self._trial is not None and self._trial[1]:
                self._freeze(self._trial[1])
                self._trial = len(self._frames), 0
            self._freeze()
            self._frames.append(fitting.clone())

    def doubt(self, sender: FrameType) -> None:
        """The last row might not fit. In a trial, check it at once, and remove it if it doesn't."""
        last = len(self._columns[0]) - 1
        if self._trial is None:
            self._places[last] = (sender.f_code, sender.f_lasti)
            return
        try:
            self._schema.from_columns([column[last:] for column in self._columns], lambda index: "a value")
        except Exception:
            self._cut(last)
            raise

    def take(self) -> pl.DataFrame:
        """Return everything, in order, and start empty."""
        self._freeze()
        frames, self._frames = self._frames, []
        return concat_rows(frames)

    def begin_trial(self) -> None:
        """Remember what has been sent, so that later rows can be undone; check at once whether these fit."""
        self._trial = len(self._frames), len(self._columns[0])

    def end_trial(self, *, keep: bool) -> None:
        """Keep or drop what was sent since the trial began."""
        trial, self._trial = self._trial, None
        if trial is not None and not keep:
            frames, rows = trial
            del self._frames[frames:]
            self._cut(rows)

    def _cut(self, rows: int) -> None:
        for column in self._columns:
            del column[rows:]

    def _freeze(self, rows: int | None = None) -> None:
        """Make a frame of all rows in ``_columns``, or of the first ones."""
        if not self._columns[0]:
            return
        columns, places = [column[:rows] for column in self._columns], dict(self._places)
        for column in self._columns:
            del column[:rows]
        self._places.clear()
        self._frames.append(self._schema.from_columns(columns, lambda index: f"sent at {_line(*places[index])}"))


def _appending(columns: Mapping[str, pl.DataType], lists: list[list[Any]]) -> Callable[[dict[str, Any]], bool]:
    """Return ``Sent.append``: it appends the values of a dict to ``lists``, which must stay the same objects."""
    # Source text is compiled, as for dataclasses; only repr() of names enters it. With {"n": Int64} the source is:
    #   def append(row):
    #       v0 = row['n']
    #       if len(row) > 1: raise KeyError
    #       a0(v0)
    #       return (v0 is None or type(v0) is int and -9223372036854775808 <= v0 <= 9223372036854775807)
    names = {f"v{at}": name for at, name in enumerate(columns)}
    sure = [f"({v} is None or {fits(dtype, v)})" for v, dtype in zip(names, columns.values(), strict=True)]
    lines = [
        "def append(row):",
        *(f"    {v} = row[{name!r}]" for v, name in names.items()),
        f"    if len(row) > {len(names)}: raise KeyError",
        *(f"    a{v[1:]}({v})" for v in names),
        "    return " + " and ".join(sure),
    ]
    known: dict[str, Any] = {f"a{at}": values.append for at, values in enumerate(lists)}
    known |= {"__name__": __name__, **NAMES}
    exec(compile("\n".join(lines), __file__, "exec"), known)  # noqa: S102 - of our own text
    append: Callable[[dict[str, Any]], bool] = known["append"]
    return append


def _line(code: CodeType, instruction: int) -> str:
    line = next(islice(code.co_positions(), instruction // 2, None))[0]
    return f"{code.co_filename}:{line}"
