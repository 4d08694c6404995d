"""What an app remembers of a stream, and how a run begins by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.kinesis.api import DONE, OLDEST, Options, Position, parse_state
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.connectors.kinesis.system import KinesisAdmin, Memo, begin_run, begins, read_memo, write_memo
from headrace.core.clock import ManualClock
from headrace.core.errors import DataError, DeclarationError, StreamNotFoundError, UsageError
from headrace.core.ids import SSP, StreamId
from headrace.systems.startpoints import MOMENTS

GOLDEN = (
    b'{"format":1,"stream":"orders","createdMs":1000,"slots":2,"firstSeenMs":5000,'
    b'"known":{"shardId-000000000000":"SHARD_END"}}'
)
MEMO = Memo(stream="orders", created_ms=1000, slots=2, first_seen_ms=5000, known={"shardId-000000000000": "SHARD_END"})
SLOT = SSP(StreamId("kinesis-orders", "orders"), 1)


def options(folder: Path, **given: Any) -> Options:
    return Options.of("in", {"stream": "orders", "memo": str(folder / "shop/orders.json"), **given})


class Scene:
    """A stream that was created at second 1; it is second 5 now."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000)
        self.stream = MemoryKinesis("orders", shards=2, clock=self.clock)
        self.clock.advance(4000)

    def begin(self, options: Options) -> Memo:
        return begin_run(options, self.stream, self.clock.now_ms())

    def admin(self, options: Options) -> KinesisAdmin:
        return KinesisAdmin(options, lambda: self.stream, lambda: self.begin(options), None, self.clock)


def test_the_file_of_format_1(tmp_path: Path) -> None:
    path = tmp_path / "deep/orders.json"
    assert read_memo(path) is None
    assert write_memo(path, MEMO) == MEMO
    assert path.read_bytes() == GOLDEN
    assert read_memo(path) == MEMO
    assert {shard: parse_state(text) for shard, text in MEMO.known.items()} == {"shardId-000000000000": DONE}


def test_a_memo_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    write_memo(path, MEMO)
    other = Memo(stream="orders", created_ms=1, slots=9, first_seen_ms=1, known={})
    assert write_memo(path, other) == MEMO


@pytest.mark.parametrize(
    ("data", "message"),
    [(GOLDEN.replace(b"1,", b"2,", 1), "is of format 2; this version of Headrace reads 1"), (b"{", "is unreadable")],
)
def test_a_memo_that_nobody_can_read_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "orders.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_memo(path)


def test_the_first_run_decides_and_later_ones_go_by_it(tmp_path: Path) -> None:
    scene = Scene()
    first = scene.begin(options(tmp_path))
    assert (first.created_ms, first.slots, first.first_seen_ms, first.known) == (1000, 2, 5000, {})
    scene.stream.split("shardId-000000000000")
    scene.clock.advance(1000)
    assert scene.begin(options(tmp_path)) == first
    assert scene.begin(options(tmp_path, slots=2)) == first


def test_shards_that_ended_before_are_known_to_an_app_that_wants_none_of_them(tmp_path: Path) -> None:
    scene = Scene()
    scene.stream.split("shardId-000000000000")
    assert scene.begin(options(tmp_path / "all")).known == {}
    assert scene.begin(options(tmp_path / "new", start="upcoming")).known == {"shardId-000000000000": "SHARD_END"}
    assert scene.begin(options(tmp_path / "since", start=2000)).known == {}


def test_where_it_begins(tmp_path: Path) -> None:
    assert begins(options(tmp_path), MEMO) == OLDEST
    assert begins(options(tmp_path, start="upcoming"), MEMO) == Position(time_ms=5000)
    assert begins(options(tmp_path, start=7), MEMO) == Position(time_ms=7)


def test_nobody_begins_in_the_future(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is in the future"):
        Scene().begin(options(tmp_path, start=6000))
    assert not (tmp_path / "shop").exists()


def test_a_stream_that_was_created_again_is_another_one(tmp_path: Path) -> None:
    scene = Scene()
    scene.begin(options(tmp_path))
    scene.stream.delete()
    scene.stream.create(2)
    with pytest.raises(StreamNotFoundError) as caught:
        scene.begin(options(tmp_path))
    assert "created at 1970-01-01 00:00:01Z, this one at 1970-01-01 00:00:05Z" in caught.value.message
    assert caught.value.hint


def test_the_number_of_slots_is_fixed(tmp_path: Path) -> None:
    scene = Scene()
    scene.begin(options(tmp_path))
    with pytest.raises(
        DeclarationError, match="has had 2 slots since the app's first run, but is now declared with slo"
    ):
        scene.begin(options(tmp_path, slots=3))


# -- the admin


def test_before_the_first_run_the_stream_says_how_many_slots_there_will_be(tmp_path: Path) -> None:
    scene = Scene()
    admin = scene.admin(options(tmp_path))
    info = admin.describe("orders")
    assert info is not None
    assert info.partitions == 2
    admin.begin_run("orders")
    scene.stream.split("shardId-000000000000")
    info = admin.describe("orders")
    assert info is not None
    assert info.partitions == 2
    info = scene.admin(options(tmp_path / "else", slots=5)).describe("orders")
    assert info is not None
    assert info.partitions == 5


def test_a_stream_that_is_not_there(tmp_path: Path) -> None:
    scene = Scene()
    scene.stream.delete()
    admin = scene.admin(options(tmp_path))
    assert admin.describe("orders") is None
    assert admin.list() == []
    with pytest.raises(StreamNotFoundError):
        admin.extents("orders")
    with pytest.raises(StreamNotFoundError, match="there is no Kinesis stream 'orders'") as caught:
        admin.create("orders", 2)
    assert caught.value.hint is not None
    assert "Headrace doesn't" in caught.value.hint


def test_positions_are_moments(tmp_path: Path) -> None:
    admin = Scene().admin(options(tmp_path))
    extent = admin.extents("orders")[1]
    assert (extent.oldest, extent.upcoming) == (MOMENTS, MOMENTS + 5000)
    assert admin.offset_at(SLOT, 3000) == MOMENTS + 3000
    assert admin.time_of(SLOT, MOMENTS + 3000) == 3000
    assert admin.time_of(SLOT, MOMENTS) is None
    assert admin.time_of(SLOT, 3000) is None
    admin.check_offset(SLOT, MOMENTS + 3000)
    with pytest.raises(UsageError, match="reading can't begin at offset 3000"):
        admin.check_offset(SLOT, 3000)
    with pytest.raises(UsageError, match="is in the future"):
        admin.check_offset(SLOT, MOMENTS + 6000)
    with pytest.raises(StreamNotFoundError, match="the stream has slots 0 to 1"):
        admin.check_offset(SSP(SLOT.stream, 2), MOMENTS)


def test_what_only_the_owner_of_a_stream_can_do_is_refused(tmp_path: Path) -> None:
    admin = Scene().admin(options(tmp_path))
    for refused in (
        lambda: admin.seal("orders"),
        lambda: admin.trim(SLOT, MOMENTS),
        lambda: admin.add_partitions("orders", 3),
        lambda: admin.add_columns("orders", {}),
    ):
        with pytest.raises(UsageError) as caught:
            refused()
        assert caught.value.hint
    assert admin.create("orders", 7).partitions == 2


def test_options_that_nobody_knows_are_refused() -> None:
    with pytest.raises(DeclarationError, match=r"unknown options \['strem'\]"):
        Options.of("in", {"stream": "orders", "strem": 1})
    with pytest.raises(DeclarationError, match="no option 'stream'"):
        Options.of("in", {})
    with pytest.raises(UsageError, match="isn't an input of an app here"):
        Options.of("out", {"stream": "orders"}).memo_path()
