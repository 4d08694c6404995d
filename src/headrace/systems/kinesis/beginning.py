"""Begins a run of an app that reads a stream: the first one decides what the app remembers from then on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import msgspec

from headrace.core.errors import DeclarationError, StreamNotFoundError
from headrace.core.moment import check_past, utc_text
from headrace.systems.kinesis.api import KinesisApi, StreamSummary
from headrace.systems.kinesis.leases.mirror import LeaseMirror
from headrace.systems.kinesis.memo import Memo, decode_memo, read_memo, write_memo
from headrace.systems.kinesis.options import Options
from headrace.systems.kinesis.shard_position import DONE, OLDEST, Position, ShardState
from headrace.systems.kinesis.shard_tree import ended_before


def begin_run(
    options: Options, api: KinesisApi, now_ms: int, open_leases: Callable[[], LeaseMirror] | None = None
) -> Memo:
    """Return the memo, which the first run writes. Raises if it is about another stream, or has other slots.

    With a lease table the first run goes on from where an application of KCL has stopped. Then it waits until it is
    certain that the table is no longer used.
    """
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
    """What the app remembers of the stream; None before the first run. Raises ``UsageError`` if no app reads it."""
    if options.remembered is not None:
        what = f"the app's record of the Kinesis stream {options.stream!r} in the metadata store"
        return decode_memo(options.remembered.encode(), what)
    return read_memo(options.memo_path())


def begins(options: Options, memo: Memo) -> Position:
    """Return where unread shards begin, so that no record after the app first saw the stream is missed."""
    if options.start == "oldest":
        return OLDEST
    return Position(time_ms=options.start if isinstance(options.start, int) else memo.first_seen_ms)


def _first(
    options: Options,
    api: KinesisApi,
    found: StreamSummary,
    now_ms: int,
    open_leases: Callable[[], LeaseMirror] | None,
) -> Memo:
    if isinstance(options.start, int):
        check_past(options.start, now_ms)
    memo = Memo(
        stream=options.stream,
        created_ms=found.created_ms,
        slots=options.slots or found.open_shards,
        first_seen_ms=now_ms,
        known={},
    )
    taken: dict[str, ShardState] = {}
    if open_leases is not None:
        with closing(open_leases()) as leases:
            taken = leases.found(begins(options, memo))
    # If another application has read the stream, it may have left closed shards unread: they aren't over then.
    ended = ended_before(api.shards(), latest=options.start == "upcoming" and not taken)
    known = dict.fromkeys(ended, DONE) | taken
    return msgspec.structs.replace(memo, known={shard: str(state) for shard, state in sorted(known.items())})
