"""The positions where reading an input of files may begin: a time, a file, or an offset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from difflib import get_close_matches
from typing import Any

import numpy as np
import polars as pl

from headrace.core.errors import UnsupportedPositionError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.serdes.casting import cast_column
from headrace.serdes.dtypes import Columns
from headrace.systems.base import Edge, Rows
from headrace.systems.files.consumer import FilesConsumer
from headrace.systems.files.file_list import FileList, offset_of

FILE = "file"
_READ_BYTES = 4 << 20


class Beginnings:
    """Of the input ``path``. ``event_time`` is the column with the time of a row, and its type, if rows have one.

    ``consumer`` opens a consumer of these columns, which takes up no new files.
    """

    def __init__(
        self, path: str, event_time: Columns | None, consumer: Callable[[Columns | None], FilesConsumer]
    ) -> None:
        self._path = path
        self._event_time = event_time
        self._consumer = consumer

    def check(self, ssp: SSP, offset: Offset) -> None:
        """Raise ``UsageError`` if the offset is past the end of the list, or of its file. Counts the rows before it."""
        with closing(self._consumer(None)) as consumer:
            consumer.register(ssp, offset)

    def at_time(self, ssp: SSP, time_ms: int) -> Offset:
        """Return the offset of the first row with an event time of at least ``time_ms``, or the end. Reads up to there.

        Rows whose event time is missing or unreadable don't count.
        """
        if not self._event_time:
            raise UnsupportedPositionError(
                f"{ssp}: the rows of {self._path} have no time of arrival, so reading can't begin at a time",
                hint="name the column with the rows' time: app.input(..., event_time=...); or use an offset, a file "
                '({"kind": "file", "path": ...}), oldest or upcoming',
            )
        ((column, dtype),) = self._event_time.items()
        with closing(self._consumer(self._event_time)) as consumer:
            consumer.register(ssp, Edge.UPCOMING)
            end = consumer.position(ssp)
            consumer.register(ssp, Edge.OLDEST)
            while consumer.position(ssp) < end:
                for item in consumer.poll(max_bytes=_READ_BYTES):
                    if isinstance(item, Rows) and column in item.frame:
                        row = _first(item.frame[column], dtype, time_ms)
                        if row is not None:
                            return _offset_in(item, row)
        return end

    def at_file(self, ssp: SSP, listed: FileList, value: Mapping[str, Any]) -> Offset:
        """Return where a file begins; in a partition that hasn't got it, the first file that was listed after it."""
        path = value.get("path")
        if set(value) != {"path"} or not isinstance(path, str):
            raise UsageError(
                f"{ssp}: a position of the kind {FILE!r} needs the path of a file, not {dict(value)}",
                hint='write {"kind": "file", "path": "data/b.csv"}',
            )
        names = list(listed.latest)
        after = set(names[names.index(self._name(ssp, path, names)) :])
        entries = listed.places[ssp.partition]
        place = next((number for number, entry in enumerate(entries) if entry.path in after), len(entries))
        return offset_of(place)

    def _name(self, ssp: SSP, path: str, names: list[str]) -> str:
        """Return the listed file that ``path`` means: all of its path, or the end of it."""
        found = [name for name in names if name == path] or [name for name in names if name.endswith(f"/{path}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{ssp}: {path} matches {found[0]} and {found[1]}", hint="write more of the path")
        near = get_close_matches(path, names, n=1) or names[:1]
        raise UsageError(
            f"{ssp}: {path} is none of the {len(names)} files of {self._path}",
            hint=f"an example of a file there: {near[0]}" if near else "it has no files yet",
        )


def _first(times: pl.Series, dtype: pl.DataType, time_ms: int) -> int | None:
    times, unreadable = cast_column(times, dtype)
    if isinstance(dtype, pl.Datetime):
        times = times.dt.timestamp("ms")
    return next((row for row in (times >= time_ms).arg_true() if row not in unreadable), None)


def _offset_in(item: Rows, row: int) -> Offset:
    """The offset of a row of the frame, which lacks the rows that are bad."""
    numbers = np.delete(np.arange(item.next - item.offset), [record.offset - item.offset for record in item.bad])
    return item.offset + int(numbers[row])
