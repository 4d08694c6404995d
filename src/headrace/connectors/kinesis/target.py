"""A Kinesis stream as a target: each row becomes a record, at least once, and in order for each key.

Kinesis keeps no positions. What a commit doesn't say to be written is written again after a restart. A stale copy of a
task may write what it had begun, even after its replacement has written more.

Rows become records before their commit: what Kinesis can't take stops the app while another version of it can still
drop it. Threads make the calls; ``publish`` starts them on the run loop's thread, and never waits. Only ``close`` does.

Kinesis may refuse some records of a call while it takes later ones. So a call has each key at most once, and a key
whose record was refused waits until that record is there. Other keys don't wait for it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import polars as pl
from typing_extensions import override

from headrace.connectors.kinesis.api import PUT_BYTES, PUT_RECORDS, RECORD_BYTES, KinesisApi, Put, PutResult, size_of
from headrace.core.clock import Clock, WallClock
from headrace.core.errors import DataError, DeclarationError, HeadraceError, UnavailableError
from headrace.rows.formats import Format
from headrace.systems.base import Target

WAITING_MAX, WAITING_BYTES_MAX = 5 * PUT_RECORDS, 2 * PUT_BYTES  # looked at for different keys


class Sending:
    """Records on their way. ``call`` and ``answered`` take turns; what was refused waits for ``again``."""

    def __init__(self, records: Iterable[Put]) -> None:
        self._coming = iter(records)
        self._waiting: dict[str, deque[Put]] = {}
        self._count = self._bytes = 0
        self._ready: deque[str] = deque()
        self._refused: list[str] = []
        self.taken = 0  # how many records Kinesis has taken
        self.error = ""  # why the last refused record was refused
        self._fill()

    @property
    def done(self) -> bool:
        return not self._count

    def call(self) -> list[Put]:
        """What may go next, each key once, within the limits of a call; nothing if all keys were refused."""
        found: list[Put] = []
        size = 0
        while self._ready and len(found) < PUT_RECORDS:
            put = self._waiting[self._ready[0]][0]
            size += size_of(put)
            if found and size > PUT_BYTES:
                break
            found.append(put)
            self._ready.popleft()
        return found

    def answered(self, call: Sequence[Put], results: Sequence[PutResult]) -> int:
        taken = self.taken
        for put, result in zip(call, results, strict=True):
            if result.error:
                self.error = result.error
                self._refused.append(put.key)
                continue
            records = self._waiting[put.key]
            records.popleft()
            if records:
                self._ready.append(put.key)
            else:
                del self._waiting[put.key]
            self._count -= 1
            self._bytes -= size_of(put)
            self.taken += 1
        self._fill()
        return len(call) - (self.taken - taken)

    def failed(self, call: Sequence[Put], error: str) -> int:
        return self.answered(call, [PutResult(error=error)] * len(call))

    def again(self) -> None:
        self._ready.extendleft(reversed(self._refused))
        self._refused.clear()

    def _fill(self) -> None:
        while self._count < WAITING_MAX and self._bytes < WAITING_BYTES_MAX:
            put = next(self._coming, None)
            if put is None:
                return
            self._count += 1
            self._bytes += size_of(put)
            records = self._waiting.setdefault(put.key, deque())
            records.append(put)
            if len(records) == 1:
                self._ready.append(put.key)


CALLS_AT_ONCE, THREADS_MAX = 4, 8  # the concurrent calls of one writer, and of all writers of a container
TURN_MS, LOOK_MS, PAUSE_MS = 50.0, 5.0, 100.0
"""How long ``publish`` works; how soon it looks for results; how long it leaves a stream that refuses records alone."""
KEY_CHARS_MAX = 256
_RECORDS = {"key": pl.String(), "data": pl.Binary()}
_UNFIT_FOR_KEYS = (pl.Float32, pl.Float64, pl.Binary, pl.Object, pl.List, pl.Array, pl.Struct)


@dataclass(eq=False)
class KinesisTarget(Target):
    """A stream as a target. ``key`` is the column of the partition keys; None: rows are spread, in no order."""

    name: str
    api: KinesisApi
    format: Format
    key: str | None
    clock: Clock = field(default_factory=WallClock)
    threads: Executor | None = None

    def __post_init__(self) -> None:
        self._threads = self.threads or ThreadPoolExecutor(THREADS_MAX, thread_name_prefix=f"kinesis-{self.name}")
        self._under_way: dict[str, _Version] = {}

    @override
    def accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        if self.key is None:
            # Any distinct keys will do, because Kinesis uses their hashes.
            start = random.getrandbits(48)
            keys = pl.int_range(start, start + rows.height, eager=True).cast(pl.String)
        else:
            check_key(self.key, rows.schema, self.name)
            keys = rows[self.key].cast(pl.String)
            nothing = keys.is_null() | (keys.str.len_chars() == 0)
            self._check(nothing, f"has no value in its key {self.key!r}", "fill the key")
            too_long = keys.str.len_chars() > KEY_CHARS_MAX
            self._check(too_long, f"has a key of more than {KEY_CHARS_MAX} characters", "send a shorter key")
        contents = rows
        if self.key is not None and rows.width == 2 and len(self.format.columns() or ()) == 1:
            contents = rows.drop(self.key)  # a format of one column, such as text, has the key beside it
        payloads = self.format.encode(contents)
        if self.format.deletes and None in payloads:
            raise DataError(
                f"a row for the Kinesis stream {self.name!r} is a deletion, but a Kinesis record can't be without a "
                "value",
                hint='filter such rows out before send_to, or send them with format="json"',
            )
        records = pl.DataFrame({"key": keys, "data": payloads}, _RECORDS)
        sizes = records["data"].bin.size() + records["key"].str.len_bytes()
        what = f"has {sizes.max() or 0!r} bytes; a record takes at most {RECORD_BYTES} bytes with its key"
        self._check(sizes > RECORD_BYTES, what, "send fewer or smaller columns")
        return records

    @override
    def position(self, writer: str) -> int:
        return -1  # it is unknown

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> float | None:
        try:
            return self._publish(writer, version, rows)
        except HeadraceError as error:
            if not error.retry:
                del self._under_way[writer]
            raise

    def _publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> float | None:
        under_way = self._under_way.get(writer)
        if under_way is not None and under_way.number != version:
            if under_way.calls:  # what an earlier attempt has begun comes first
                under_way.take_in()
                return LOOK_MS
            under_way = None
        if under_way is None:
            puts = chain.from_iterable(map(Put, piece["key"], piece["data"]) for piece in rows)
            under_way = self._under_way[writer] = _Version(version, Sending(puts))
        end_ms = self.clock.monotonic_ms() + TURN_MS
        under_way.start(self._threads, self.api)
        while under_way.take_in() and self.clock.monotonic_ms() < end_ms:
            under_way.start(self._threads, self.api)
        if under_way.sending.done:
            del self._under_way[writer]
            return None
        if under_way.calls:
            return LOOK_MS
        if not under_way.refused:
            return 0.0
        if under_way.begin_again():
            return PAUSE_MS
        said = f"the Kinesis stream {self.name!r} accepts no records: {under_way.sending.error}"
        raise UnavailableError(said, hint="if its limits are exceeded, add shards or send fewer records")

    @override
    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self.api.close()

    def _check(self, wrong: pl.Series, what: str, instead: str) -> None:
        if wrong.any():
            hint = f"{instead}, or drop such rows before send_to"
            raise DataError(f"a row for the Kinesis stream {self.name!r} {what}", hint=hint)


class _Version:
    def __init__(self, number: int, sending: Sending) -> None:
        self.number = number
        self.sending = sending
        self.calls: list[tuple[list[Put], Future[list[PutResult]]]] = []
        self.refused = False  # records were refused, and no call is started before ``begin_again``
        self._taken = 0
        self._at_once = CALLS_AT_ONCE

    def start(self, threads: Executor, api: KinesisApi) -> None:
        """Start as many calls as there may be: a stream at its limits gets one, and slowly more."""
        while not self.refused and len(self.calls) < self._at_once and (call := self.sending.call()):
            self.calls.append((call, threads.submit(api.put, call)))
        if not self.calls and not self.sending.done:
            self.refused = True  # every key that is left was

    def take_in(self) -> bool:
        calls, self.calls = self.calls, []
        for records, answer in calls:
            if not answer.done():
                self.calls.append((records, answer))
                continue
            try:
                refused = self.sending.answered(records, answer.result())
            except UnavailableError as error:
                refused = self.sending.failed(records, error.message)
            self.refused |= 2 * refused > len(records)
            self._at_once = 1 if refused else min(self._at_once + 1, CALLS_AT_ONCE)
        return len(self.calls) < len(calls)

    def begin_again(self) -> bool:
        self.sending.again()
        self.refused = False
        before, self._taken = self._taken, self.sending.taken
        return before < self._taken


def check_key(key: str | None, columns: Mapping[str, pl.DataType], stream: str) -> None:
    if key is None:
        return
    if key not in columns:
        said = f"the Kinesis stream {stream!r} takes its keys from the column {key!r}, which its rows don't have"
        raise DeclarationError(said, hint=f"name one of the columns with key=: {', '.join(columns)}")
    if isinstance(columns[key], _UNFIT_FOR_KEYS):
        said = f"the Kinesis stream {stream!r} can't take its keys from the column {key!r} of type {columns[key]}"
        raise DeclarationError(said, hint="partition keys are text: cast the column to pl.String first")
