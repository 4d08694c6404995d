"""Kinesis as a row system: an input of slots, or an output."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
from typing_extensions import override

from headrace.core.clock import Clock, WallClock
from headrace.core.errors import StreamNotFoundError
from headrace.serdes.dtypes import Columns
from headrace.serdes.formats import open_format
from headrace.systems.base import Target
from headrace.systems.kinesis.admin import KinesisAdmin
from headrace.systems.kinesis.api import KinesisApi
from headrace.systems.kinesis.beginning import begin_run, begins
from headrace.systems.kinesis.consumer import KinesisConsumer
from headrace.systems.kinesis.dealer import KinesisDealer
from headrace.systems.kinesis.dealing import Dealing
from headrace.systems.kinesis.feed import Pace
from headrace.systems.kinesis.fetching import FetchingByThreads
from headrace.systems.kinesis.leases.mirror import LeaseMirror
from headrace.systems.kinesis.leases.opening import open_leases
from headrace.systems.kinesis.memo import Memo
from headrace.systems.kinesis.opening import open_kinesis_api
from headrace.systems.kinesis.options import Options
from headrace.systems.kinesis.rows import ABOUT, RecordRows
from headrace.systems.kinesis.target import KinesisTarget
from headrace.systems.slotted import SlottedSystem


@dataclass(frozen=True)
class KinesisSystem(SlottedSystem):
    """A system with one stream of any name: the options say which one it is."""

    options: Options
    clock: Clock

    @override
    def admin(self) -> KinesisAdmin:
        return KinesisAdmin(self.options, self._open, self._begin, self._columns(), self.clock)

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> KinesisConsumer:
        """Records that can't be read as ``columns`` are bad, so there is nothing more to be had of them ``whole``."""
        stream, about = self.options.stream, self.options.record_columns
        info = self.admin().describe(stream)
        if info is None:
            raise StreamNotFoundError(f"there is no Kinesis stream {stream!r}", hint="check its name and its region")
        format = open_format(self.options.format)
        wanted = format.columns() or {} if columns is None else columns
        contents = {name: dtype for name, dtype in wanted.items() if name not in about}
        rows = RecordRows(format.decoder(contents), about)
        skip_lost = self.options.lost == "skip"
        poll_ms = self.options.poll_interval_ms
        pace = Pace(poll_ms, max(poll_ms, Pace().idle_ms), self.options.records_per_call)
        fetching = FetchingByThreads(self._open(), stream, self.clock, pace=pace, skip_lost=skip_lost)
        waits = self.options.lease_table is not None
        return KinesisConsumer(stream, info.partitions, fetching, rows, self.clock, waits=waits)

    @override
    def target(self, stream: str) -> Target:
        """The target is the stream of the options, whatever ``stream`` is called."""
        options = self.options
        return KinesisTarget(options.stream, self._open(), open_format(options.format), options.key, self.clock)

    @override
    def dealer(self, stream: str, reader: str) -> KinesisDealer:
        """Goes by the memo. Raises as ``begin_run`` does if the stream is another one by now."""
        memo = self._begin()
        dealing = Dealing(memo.slots, begins(self.options, memo), memo.states())
        leases, lease_ahead = self._leases(reader), self.options.lease_ahead
        return KinesisDealer(self.options.stream, self._open(), dealing, self.clock, leases, lease_ahead)

    def _begin(self) -> Memo:
        with closing(self._open()) as api:
            return begin_run(self.options, api, self.clock.now_ms(), self._leases("the first run"))

    def _leases(self, app: str) -> Callable[[], LeaseMirror] | None:
        name = self.options.lease_table
        if name is None:
            return None
        return partial(
            open_leases,
            name,
            app,
            self.options.access,
            clock=self.clock,
            wait=threading.Event().wait,
            failover_ms=self.options.failover_ms,
        )

    def _open(self) -> KinesisApi:
        return open_kinesis_api(self.options.stream, self.options.access)

    def _columns(self) -> Columns | None:
        own = open_format(self.options.format).columns()
        about = {name: ABOUT[what] for name, what in self.options.record_columns.items()}
        return None if own is None else {**own, **about}


def open_kinesis(name: str, options: Mapping[str, Any]) -> KinesisSystem:
    """The system of a ``SystemSpec``: ``stream``, and optionally the other fields of ``Options``, as JSON."""
    return KinesisSystem(Options.of(name, options), WallClock())
