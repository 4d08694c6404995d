"""Rows into a stream: what happens to them, refusals, lost replies, limits, and who waits for whom."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import polars as pl
import pytest
from typing_extensions import override

from headrace.connectors.kinesis.api import OLDEST, KinesisApi, Put, PutResult, key_hash
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.connectors.kinesis.target import CALLS_AT_ONCE, LOOK_MS, PAUSE_MS, TURN_MS, KinesisTarget, check_key
from headrace.core.clock import ManualClock
from headrace.core.errors import DataError, DeclarationError, StorageError, UnavailableError
from headrace.rows.formats import FormatSpec, open_format
from running_apps import wait_until

WRITER = "app/stage/0/out"
JSON = open_format(FormatSpec())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_758_000_000_000)


@pytest.fixture
def stream(clock: ManualClock) -> MemoryKinesis:
    return MemoryKinesis("results", shards=4, clock=clock)


class AtOnce(Executor):
    """Makes each call when it is started."""

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize(
    ("format", "column", "key"),
    [("text", pl.lit("hi"), "member"), ("bytes", pl.lit(b"hi"), "member"), ("text", pl.lit("hi"), None)],
)
def test_texts_and_bytes_are_one_column_beside_the_key(
    stream: MemoryKinesis, clock: ManualClock, format: str, column: pl.Expr, key: str | None
) -> None:
    rows = pl.select(value=column) if key is None else pl.select(member=pl.lit("ann"), value=column)
    into = KinesisTarget("results", stream, open_format(FormatSpec(format)), key, clock, AtOnce())
    records = into.accept(rows)
    assert records["data"].to_list() == [b"hi"]
    assert key is None or records["key"].to_list() == ["ann"]


def test_a_text_may_be_its_own_key(stream: MemoryKinesis, clock: ManualClock) -> None:
    into = KinesisTarget("results", stream, open_format(FormatSpec("text")), "value", clock, AtOnce())
    assert into.accept(pl.DataFrame({"value": ["ann"]})).rows() == [("ann", b"ann")]
    with pytest.raises(DataError, match='format="text" have one column'):
        into.accept(pl.DataFrame({"value": ["ann"], "n": [1], "m": [2]}))


def target(stream: KinesisApi, clock: ManualClock, key: str | None = "member") -> KinesisTarget:
    return KinesisTarget("results", stream, JSON, key, clock, AtOnce())


def views(count: int, members: int = 20, seed: int = 1) -> pl.DataFrame:
    chance = random.Random(seed)
    return pl.DataFrame({"member": [f"m{chance.randrange(members)}" for _ in range(count)], "n": range(count)})


def publish(into: KinesisTarget, rows: pl.DataFrame, clock: ManualClock, version: int = 1) -> int:
    """Publish as the publisher does it; return how often it was tried."""
    records = [*into.accept(rows).iter_slices(700)]
    for tries in range(1, 10_000):
        try:
            again_ms = into.publish(WRITER, version, records)
        except UnavailableError:
            again_ms = 1000.0
        if again_ms is None:
            return tries
        clock.advance(int(again_ms) + 1)
    raise AssertionError("it is never published")


def stored(stream: MemoryKinesis) -> list[dict[str, object]]:
    """The rows of all shards, parents before children."""
    found = []
    for shard in stream.shards():
        iterator: str | None = stream.iterator(shard.id, OLDEST)
        while iterator is not None:
            page = stream.records(iterator, 10_000)
            for record in page.records:
                row = json.loads(record.data)
                assert record.key == str(row["member"])
                assert shard.first <= key_hash(record.key) <= shard.last
                found.append(row)
            iterator = page.iterator if page.records or page.behind_ms else None
    return found


def numbers(rows: list[dict[str, object]], member: str) -> list[object]:
    return [row["n"] for row in rows if row["member"] == member]


def check_once_and_in_order(stream: MemoryKinesis, rows: pl.DataFrame) -> None:
    found = pl.DataFrame(stored(stream), rows.schema)
    by_member = [frame.group_by("member").agg("n").sort("member") for frame in (found, rows)]
    assert by_member[0].equals(by_member[1])


def test_each_row_becomes_a_record_in_its_keys_order(stream: MemoryKinesis, clock: ManualClock) -> None:
    rows = views(3000)
    assert publish(target(stream, clock), rows, clock) == 1
    check_once_and_in_order(stream, rows)


def test_numbers_and_dates_are_keys_as_text(stream: MemoryKinesis, clock: ManualClock) -> None:
    into = target(stream, clock)
    assert into.accept(pl.DataFrame({"member": [7, 8]}))["key"].to_list() == ["7", "8"]
    days = pl.DataFrame({"member": ["2026-01-31"]}).select(pl.col("member").str.to_date())
    assert into.accept(days)["key"].to_list() == ["2026-01-31"]


def test_without_a_key_rows_are_spread(stream: MemoryKinesis, clock: ManualClock) -> None:
    into = target(stream, clock, key=None)
    assert into.accept(views(500))["key"].n_unique() == 500
    into.publish(WRITER, 1, [into.accept(views(400))])
    counts = [len(stream.records(stream.iterator(shard.id, OLDEST), 1000).records) for shard in stream.shards()]
    assert sum(counts) == 400
    assert min(counts) > 50


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({"member": None, "n": 1}, "no value in its key 'member'"),
        ({"member": "", "n": 1}, "no value in its key 'member'"),
        ({"member": "m" * 257, "n": 1}, "key of more than 256 characters"),
        ({"member": "m", "n": "x" * (1 << 20)}, r"has 10485\d\d bytes; a record takes at most"),
    ],
)
def test_what_kinesis_cannot_take_is_refused_before_its_commit(
    row: dict[str, object], wrong: str, stream: MemoryKinesis, clock: ManualClock
) -> None:
    good = pl.DataFrame([{"member": "ann", "n": row["n"] if isinstance(row["n"], int) else "short"}])
    rows = pl.concat([good, pl.DataFrame([row], good.schema)])
    with pytest.raises(DataError, match=wrong) as caught:
        target(stream, clock).accept(rows)
    assert "drop such rows before send_to" in str(caught.value)


@pytest.mark.parametrize(("key", "wrong"), [("page", "with key=: member, size"), ("size", "of type Float64")])
def test_a_key_is_a_column_that_has_one_text_for_each_value(key: str, wrong: str) -> None:
    columns = {"member": pl.String(), "size": pl.Float64()}
    check_key(None, columns, "results")
    check_key("member", columns, "results")
    with pytest.raises(DeclarationError, match=wrong):
        check_key(key, columns, "results")


class Refusing(KinesisApi):
    """A stream that refuses some records of each call, as a seed draws them."""

    def __init__(self, stream: MemoryKinesis, seed: int, often: float) -> None:
        self._stream = stream
        self._chance = random.Random(seed)
        self._often = often
        self.refused: Counter[str] = Counter()
        self.sizes: list[int] = []

    def put(self, records: list[Put]) -> list[PutResult]:  # type: ignore[override]
        self.sizes.append(len(records))
        refused = [self._chance.random() < self._often for _ in records]
        self.refused.update(put.key for put, no in zip(records, refused, strict=True) if no)
        taken = [put for put, no in zip(records, refused, strict=True) if not no]
        results = iter(self._stream.put(taken) if taken else [])
        return [PutResult(error="InternalFailure: try again") if no else next(results) for no in refused]


@pytest.mark.parametrize("often", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_refused_is_written_alone_and_in_order(
    seed: int, often: float, stream: MemoryKinesis, clock: ManualClock
) -> None:
    refusing = Refusing(stream, seed, often)
    rows = views(800, seed=seed)
    tries = publish(target(refusing, clock), rows, clock)
    assert refusing.refused.total() > 20
    assert sum(refusing.sizes) == 800 + refusing.refused.total()
    assert tries > 1
    check_once_and_in_order(stream, rows)


def test_a_shard_that_takes_nothing_holds_back_its_own_keys_only(stream: MemoryKinesis, clock: ManualClock) -> None:
    rows = views(1000)
    into = target(stream, clock)
    records = [into.accept(rows)]
    (held, *_) = stream.shards()
    stream.throttled = {held.id}
    assert into.publish(WRITER, 1, records) == PAUSE_MS
    others = rows.filter(~pl.col("member").map_elements(lambda m: key_hash(m) <= held.last, pl.Boolean))
    assert 0 < others.height < rows.height
    stream.throttled = set()
    check_once_and_in_order(stream, others)
    stream.throttled = {held.id}
    with pytest.raises(UnavailableError, match="'results' accepts no records: ProvisionedThroughputExceeded") as caught:
        into.publish(WRITER, 1, records)
    assert caught.value.retry
    stream.throttled = set()
    assert into.publish(WRITER, 1, records) is None
    check_once_and_in_order(stream, rows)


def test_limits_are_used_up_and_not_exceeded_for_long(stream: MemoryKinesis, clock: ManualClock) -> None:
    stream.limited = True
    rows = views(20_000, members=5000)
    refusing = Refusing(stream, seed=1, often=0)
    began = clock.monotonic_ms()
    publish(target(refusing, clock), rows, clock)
    took_s = (clock.monotonic_ms() - began) / 1000
    check_once_and_in_order(stream, rows)
    assert 4 <= took_s < 8, "four shards take 1,000 records a second each, and a second's worth at once"
    assert sum(refusing.sizes) < 2.5 * rows.height, "a stream at its limits isn't asked for everything again and again"


def test_lost_calls_cost_nothing_and_lost_replies_repeat_records(stream: MemoryKinesis, clock: ManualClock) -> None:
    rows = views(1000)
    chance = random.Random(5)
    lost = 0

    def lose(call: str, moment: str) -> None:
        nonlocal lost
        if call == "put" and chance.random() < 0.3:
            lost += moment == "done"
            raise UnavailableError("connection reset")

    stream.interfere = lose
    publish(target(stream, clock), rows, clock)
    stream.interfere = lambda _call, _moment: None
    assert lost > 3
    found = stored(stream)
    assert len(found) > rows.height
    for member in rows["member"].unique():
        got = numbers(found, member)
        assert [n for n, before in zip(got, [None, *got], strict=False) if n != before] == rows.filter(member=member)[
            "n"
        ].to_list(), "a record comes again before the next one of its key"


def test_an_error_that_no_retry_can_mend_is_raised(stream: MemoryKinesis, clock: ManualClock) -> None:
    into = target(stream, clock)
    records = [into.accept(views(10))]
    stream.delete()
    with pytest.raises(Exception, match="no stream 'results'") as caught:
        into.publish(WRITER, 1, records)
    assert not getattr(caught.value, "retry", True)
    assert not isinstance(caught.value, StorageError)


def test_a_turn_is_short_and_the_next_one_goes_on(stream: MemoryKinesis, clock: ManualClock) -> None:
    calls = 0

    def slow(call: str, moment: str) -> None:
        nonlocal calls
        if call == "put" and moment == "done":
            calls += 1
            clock.advance(int(TURN_MS) // 2)

    stream.interfere = slow
    rows = views(3000, members=3000)
    into = target(stream, clock)
    records = [into.accept(rows)]
    assert into.publish(WRITER, 1, records) == 0.0
    assert calls <= 2 + CALLS_AT_ONCE
    while into.publish(WRITER, 1, records) is not None:
        assert calls < 30
    stream.interfere = lambda _call, _moment: None
    check_once_and_in_order(stream, rows)


def test_writers_take_turns_without_losing_their_places(stream: MemoryKinesis, clock: ManualClock) -> None:
    into = target(stream, clock)
    rows = {"a": views(400, seed=1), "b": views(400, seed=2).with_columns(pl.col("member").str.replace("m", "k"))}
    records = {writer: [into.accept(frame)] for writer, frame in rows.items()}
    stream.interfere = lambda _call, moment: clock.advance(int(TURN_MS) if moment == "done" else 0)
    left = set(rows)
    while left:
        left -= {writer for writer in sorted(left) if into.publish(writer, 1, records[writer]) is None}
    stream.interfere = lambda _call, _moment: None
    check_once_and_in_order(stream, pl.concat(rows.values()))
    assert into.position("a") == -1


def test_the_run_loop_never_waits_for_kinesis(stream: MemoryKinesis) -> None:
    answer = threading.Event()

    def unanswered(call: str, moment: str) -> None:
        assert call != "put" or moment == "asked" or answer.wait(60)

    stream.interfere = unanswered
    into = KinesisTarget("results", stream, JSON, "member")
    rows = views(5000)
    records = [into.accept(rows)]
    assert into.publish(WRITER, 1, records) == LOOK_MS
    assert into.publish(WRITER, 1, records) == LOOK_MS
    answer.set()
    wait_until(lambda: into.publish(WRITER, 1, records) is None, [], 1500)
    into.close()
    check_once_and_in_order(stream, rows)


def test_a_split_on_the_way_changes_nothing(stream: MemoryKinesis, clock: ManualClock) -> None:
    into = target(stream, clock)
    rows = views(2000, members=50)
    publish(into, rows[:1000], clock, 1)
    for shard in stream.shards():
        stream.split(shard.id)
    publish(into, rows[1000:], clock, 2)
    check_once_and_in_order(stream, rows)
