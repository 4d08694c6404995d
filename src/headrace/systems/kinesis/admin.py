"""Describes a Kinesis stream as one whose partitions are slots."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from contextlib import closing

import polars as pl
from typing_extensions import override

from headrace.core.clock import Clock
from headrace.core.errors import StreamNotFoundError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.core.moment import check_past
from headrace.serdes.dtypes import Columns
from headrace.systems.base import Creation, Extent, StreamInfo
from headrace.systems.kinesis.api import KinesisApi, StreamSummary
from headrace.systems.kinesis.beginning import known_memo
from headrace.systems.kinesis.consumer import moment_of
from headrace.systems.kinesis.memo import Memo
from headrace.systems.kinesis.options import Options
from headrace.systems.kinesis.target import check_key
from headrace.systems.moments import MOMENTS, is_moment
from headrace.systems.unwatched import UnwatchedAdmin


class KinesisAdmin(UnwatchedAdmin):
    """The one stream has any name: the options say which one it is.

    An offset of a slot counts its rows, so nothing can be found by it. A position to begin at is a moment, of the clock
    of Kinesis: ``MOMENTS`` and milliseconds since the epoch. ``oldest`` is moment 0. ``columns`` are those that the
    format says by itself, if any.
    """

    def __init__(
        self,
        options: Options,
        open_api: Callable[[], KinesisApi],
        begin: Callable[[], Memo],
        columns: Columns | None,
        clock: Clock,
    ) -> None:
        super().__init__()
        self._options = options
        self._open_api = open_api
        self._begin = begin
        self._columns = columns
        self._clock = clock

    @property
    def _name(self) -> str:
        return self._options.stream

    @override
    def list(self) -> builtins.list[str]:
        """The name of the stream, if there is one."""
        return [] if self.describe(self._name) is None else [self._name]

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        """The slots of the first run. Before it: those that it would get."""
        memo = self._memo()
        if memo is not None:
            return StreamInfo(stream, memo.slots, self._known_columns())
        try:
            found = self._ask()
        except StreamNotFoundError:
            return None
        return StreamInfo(stream, self._options.slots or found.open_shards, self._known_columns())

    @override
    def begin_run(self, stream: str) -> None:
        """Remember the stream at the first run; later, raise if it is another one, or was to have other slots."""
        self._begin()

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        """Return what is known of it. Raises ``StreamNotFoundError``: only its owner creates a stream, and pays for it.

        ``partitions`` say nothing about a stream that is written: shards come and go. Of ``columns`` only the one with
        the partition keys matters: raises ``DeclarationError`` unless it has it.
        """
        del partitions
        if columns is not None:
            check_key(self._options.key, columns, self._name)
        try:
            found = self._ask()
        except StreamNotFoundError as error:
            raise StreamNotFoundError(
                f"there is no Kinesis stream {self._name!r}: {error.message}",
                hint="create it first (Headrace doesn't, because a stream costs money), or check the region",
            ) from error
        return StreamInfo(stream, found.open_shards, columns)

    @override
    def would_create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> Creation:
        return Creation(self.create(stream, partitions, columns).partitions)

    @override
    def add_columns(self, stream: str, columns: dict[str, pl.DataType]) -> StreamInfo:
        raise UsageError(
            f"the Kinesis stream {self._name!r} has no columns; its records do",
            hint="add the column to the input's schema",
        )

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        raise UsageError(
            f"the Kinesis stream {self._name!r}: the number of slots is fixed at the first run of an app",
            hint="splitting shards is fine, because slots share them. For more tasks, give the input another id and "
            "slots= (the stream is then read from its start)",
        )

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        """Return the extent of each slot, from the oldest record to this moment, because the rows can't be counted."""
        info = self.describe(stream)
        if info is None:
            raise StreamNotFoundError(f"there is no Kinesis stream {self._name!r}", hint="check its name and region")
        return [Extent(MOMENTS, MOMENTS + self._clock.now_ms(), trimmed=True)] * info.partitions

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        return MOMENTS + max(0, time_ms)

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        """The moment itself; None for the oldest record, and for a number of rows."""
        moment = moment_of(offset)
        return None if moment is None else moment.time_ms

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        """Raises ``UsageError`` for an offset that isn't a moment."""
        if not is_moment(offset):
            raise UsageError(
                f"{ssp}: an offset of a Kinesis stream counts the rows of a slot, so reading can't begin at offset "
                f"{offset}",
                hint="begin at a time, at oldest or at upcoming",
            )
        slots = len(self.extents(ssp.stream.name))
        if not 0 <= ssp.partition < slots:
            raise StreamNotFoundError(f"{ssp}: the stream has slots 0 to {slots - 1}")
        check_past(offset - MOMENTS, self._clock.now_ms())

    @override
    def seal(self, stream: str) -> None:
        """Raises ``UsageError``: others write the stream, too."""
        raise UsageError(f"the Kinesis stream {self._name!r} can't be sealed", hint="Kinesis streams have no end")

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        """Raises ``UsageError``: Kinesis drops records by their age."""
        raise UsageError(
            f"{ssp}: Kinesis alone deletes records, by their age",
            hint="change the stream's retention period in Amazon's console",
        )

    def _ask(self) -> StreamSummary:
        with closing(self._open_api()) as api:
            return api.describe()

    def _memo(self) -> Memo | None:
        return None if self._options.memo is None else known_memo(self._options)

    def _known_columns(self) -> dict[str, pl.DataType] | None:
        return None if self._columns is None else dict(self._columns)
