"""Kinesis as a row system: an input of slots, or an output; and how a run of an app begins.

What an app remembers of an input is a memo: which stream it is, how many slots it has, and where it began. The number
of slots is the number of partitions, so it never changes. A stream that was deleted and created again has the same name
and shards of the same names: only its time of creation tells them apart. The first run writes the memo to a small file
in the app's home, and nothing changes it later. A container without that home gets its contents with the plan.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from typing_extensions import override

from headrace.connectors.kinesis.api import (
    DONE,
    OLDEST,
    RECORD_COLUMNS,
    Access,
    KinesisApi,
    Options,
    Position,
    ShardState,
    StreamSummary,
    ended_before,
    parse_state,
)
from headrace.connectors.kinesis.consumer import KinesisConsumer, RecordRows, moment_of
from headrace.connectors.kinesis.dealer import KinesisDealer
from headrace.connectors.kinesis.dealing import Dealing
from headrace.connectors.kinesis.feed import Common, FetchingByThreads, Pace
from headrace.connectors.kinesis.lease_mirror import LeaseMirror, dynamo_table
from headrace.connectors.kinesis.memory import stream_of
from headrace.connectors.kinesis.target import KinesisTarget, check_key
from headrace.core.clock import Clock, WallClock, check_past, utc_text
from headrace.core.errors import DeclarationError, StorageError, StreamNotFoundError, UsageError, needing
from headrace.core.files import create_file, decode_record, make_private_folder, writing
from headrace.core.ids import SSP, Offset
from headrace.rows.dtypes import Columns
from headrace.rows.formats import open_format
from headrace.systems.base import Creation, Extent, StreamInfo, Target, UnwatchedAdmin
from headrace.systems.slots import SlottedSystem
from headrace.systems.startpoints import MOMENTS, is_moment

FORMAT = 1
OpenLeases = Callable[[], LeaseMirror]


class Memo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the app remembers. ``first_seen_ms`` is by the driver's clock, ``known`` for ``Dealing``."""

    format: int = FORMAT
    stream: str
    created_ms: int
    slots: int
    first_seen_ms: int
    known: dict[str, str]


_DECODER = msgspec.json.Decoder(Memo)


def read_memo(path: Path) -> Memo | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"can't read {path}: {error}", hint="check that this user may read the folder") from error
    return decode_record(_DECODER, data, f"{path}, the app's record of a Kinesis stream,", FORMAT)


def write_memo(path: Path, memo: Memo) -> Memo:
    with writing(path):
        make_private_folder(path.parent)
    create_file(path, msgspec.json.encode(memo))
    found = read_memo(path)
    if found is None:
        raise StorageError(f"{path} has disappeared", hint="check whether the app's home was deleted")
    return found


def begin_run(options: Options, api: KinesisApi, now_ms: int, open_leases: OpenLeases | None = None) -> Memo:
    """The memo, which the first run writes, after it has taken a lease table over. Raises if it doesn't fit."""
    memo, found = known_memo(options), api.describe()
    if memo is None:
        memo = write_memo(options.memo_path(), _first(options, api, found, now_ms, open_leases))
    if memo.created_ms != found.created_ms:
        raise StreamNotFoundError(
            f"the Kinesis stream {options.stream!r} isn't the one that the app read before: that one was created at "
            f"{utc_text(memo.created_ms)}, this one at {utc_text(found.created_ms)}",
            hint="its shards have the old names but other records. To read it from its start, give the input another "
            "id, or run the app under another name",
        )
    if options.slots not in (None, memo.slots):
        raise DeclarationError(
            f"the Kinesis stream {options.stream!r} has had {memo.slots} slots since the app's first run, but is "
            f"now declared with slots={options.slots}",
            hint="leave slots= out: slots share any number of shards. For more tasks, give the input another id (the "
            "stream is then read from its start)",
        )
    return memo


def known_memo(options: Options) -> Memo | None:
    if options.remembered is not None:
        what = f"the app's record of the Kinesis stream {options.stream!r} in the metadata store"
        return decode_record(_DECODER, options.remembered.encode(), what, FORMAT)
    return read_memo(options.memo_path())


def begins(options: Options, memo: Memo) -> Position:
    """Where unread shards begin, so that no record after the app first saw the stream is missed."""
    if options.start == "oldest":
        return OLDEST
    return Position(time_ms=options.start if isinstance(options.start, int) else memo.first_seen_ms)


def _first(
    options: Options, api: KinesisApi, found: StreamSummary, now_ms: int, open_leases: OpenLeases | None
) -> Memo:
    if isinstance(options.start, int):
        check_past(options.start, now_ms)
    slots = options.slots or found.open_shards
    memo = Memo(stream=options.stream, created_ms=found.created_ms, slots=slots, first_seen_ms=now_ms, known={})
    taken: dict[str, ShardState] = {}
    if open_leases is not None:
        with closing(open_leases()) as leases:
            taken = leases.found(begins(options, memo))
    # If another application has read the stream, it may have left closed shards unread: they aren't over then.
    latest = options.start == "upcoming" and not taken
    known = dict.fromkeys(ended_before(api.shards(), latest=latest), DONE) | taken
    return msgspec.structs.replace(memo, known={shard: str(state) for shard, state in sorted(known.items())})


class KinesisAdmin(UnwatchedAdmin):
    """The one stream has any name. ``columns`` are those that the format says by itself, if any.

    An offset of a slot counts its rows, so nothing can be found by it. A position to begin at is a moment: ``MOMENTS``
    and milliseconds since the epoch, by the clock of Kinesis. ``oldest`` is moment 0.
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
        self._name = options.stream
        self._open_api = open_api
        self._begin = begin
        self._columns = None if columns is None else dict(columns)
        self._clock = clock

    @override
    def list(self) -> builtins.list[str]:
        return [] if self.describe(self._name) is None else [self._name]

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        """The slots of the first run. Before it: those that it would get."""
        memo = None if self._options.memo is None else known_memo(self._options)
        if memo is not None:
            return StreamInfo(stream, memo.slots, self._columns)
        try:
            found = self._ask()
        except StreamNotFoundError:
            return None
        return StreamInfo(stream, self._options.slots or found.open_shards, self._columns)

    @override
    def begin_run(self, stream: str) -> None:
        self._begin()

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        """Raises ``StreamNotFoundError``: only its owner creates a stream, and pays for it. Shards come and go."""
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
        hint = "add the column to the input's schema"
        raise UsageError(f"the Kinesis stream {self._name!r} has no columns; its records do", hint=hint)

    @override
    def add_partitions(self, stream: str, partitions: int) -> StreamInfo:
        raise UsageError(
            f"the Kinesis stream {self._name!r}: the number of slots is fixed at the first run of an app",
            hint="splitting shards is fine, because slots share them. For more tasks, give the input another id and "
            "slots= (the stream is then read from its start)",
        )

    @override
    def extents(self, stream: str) -> builtins.list[Extent]:
        extent = Extent(MOMENTS, MOMENTS + self._clock.now_ms(), trimmed=True)
        return [extent] * self.require(stream).partitions

    def require(self, stream: str) -> StreamInfo:
        info = self.describe(stream)
        if info is None:
            raise StreamNotFoundError(f"there is no Kinesis stream {self._name!r}", hint="check its name and region")
        return info

    @override
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        return MOMENTS + max(0, time_ms)

    @override
    def time_of(self, ssp: SSP, offset: Offset) -> int | None:
        moment = moment_of(offset)
        return None if moment is None else moment.time_ms

    @override
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
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
        raise UsageError(f"the Kinesis stream {self._name!r} can't be sealed", hint="Kinesis streams have no end")

    @override
    def trim(self, ssp: SSP, before: Offset) -> None:
        hint = "change the stream's retention period in Amazon's console"
        raise UsageError(f"{ssp}: Kinesis alone deletes records, by their age", hint=hint)

    def _ask(self) -> StreamSummary:
        with closing(self._open_api()) as api:
            return api.describe()


IN_PROCESS = "memory://"


def open_kinesis_api(stream: str, access: Access) -> KinesisApi:
    if access.endpoint_url == IN_PROCESS:
        return stream_of(stream)
    with needing("boto3", "Kinesis", "kinesis"):
        from headrace.connectors.kinesis.amazon import BotoKinesis
    return BotoKinesis(stream, access)


@dataclass(frozen=True)
class KinesisSystem(SlottedSystem):
    """A system with one stream of any name."""

    options: Options
    clock: Clock

    @override
    def admin(self) -> KinesisAdmin:
        return KinesisAdmin(self.options, self._open, self._begin, self._columns(), self.clock)

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> KinesisConsumer:
        """Records that can't be read as ``columns`` are bad, so there is nothing more to be had of them ``whole``."""
        stream, about = self.options.stream, self.options.record_columns
        info = self.admin().require(stream)
        format = open_format(self.options.format)
        wanted = format.columns() or {} if columns is None else columns
        contents = {name: dtype for name, dtype in wanted.items() if name not in about}
        rows = RecordRows(format.decoder(contents), about)
        skip_lost = self.options.lost == "skip"
        poll_ms = self.options.poll_interval_ms
        pace = Pace(poll_ms, max(poll_ms, Pace().idle_ms), self.options.records_per_call)
        fetching = FetchingByThreads(self._open(), self.clock, Common(stream, pace, skip_lost=skip_lost))
        waits = self.options.lease_table is not None
        return KinesisConsumer(stream, info.partitions, fetching, rows, self.clock, waits=waits)

    @override
    def target(self, stream: str) -> Target:
        options = self.options
        return KinesisTarget(options.stream, self._open(), open_format(options.format), options.key, self.clock)

    @override
    def dealer(self, stream: str, reader: str) -> KinesisDealer:
        memo = self._begin()
        known = {shard: parse_state(text) for shard, text in memo.known.items()}
        dealing = Dealing(memo.slots, begins(self.options, memo), known)
        leases, lease_ahead = self._leases(reader), self.options.lease_ahead
        return KinesisDealer(self.options.stream, self._open(), dealing, self.clock, leases, lease_ahead)

    def _begin(self) -> Memo:
        with closing(self._open()) as api:
            return begin_run(self.options, api, self.clock.now_ms(), self._leases("the first run"))

    def _leases(self, app: str) -> OpenLeases | None:
        name = self.options.lease_table
        if name is None:
            return None
        wait = threading.Event().wait
        open_table = partial(dynamo_table, name, self.options, wait=wait)
        return lambda: LeaseMirror.open(open_table(), app, self.clock, wait, self.options.failover_ms)

    def _open(self) -> KinesisApi:
        return open_kinesis_api(self.options.stream, self.options)

    def _columns(self) -> Columns | None:
        own = open_format(self.options.format).columns()
        about = {name: RECORD_COLUMNS[what] for name, what in self.options.record_columns.items()}
        return None if own is None else {**own, **about}


def open_kinesis(name: str, options: Mapping[str, Any]) -> KinesisSystem:
    return KinesisSystem(Options.of(name, options), WallClock())
