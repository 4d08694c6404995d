"""A target that keeps no positions: everything arrives, in order for each key, and again only after a failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import polars as pl
import pytest
from publishing_scene import Scene, Shelf, entry_points
from typing_extensions import override

from headrace.connectors.kinesis.api import OLDEST
from headrace.connectors.kinesis.memory import MemoryKinesis
from headrace.connectors.kinesis.target import KinesisTarget
from headrace.core.clock import ManualClock
from headrace.core.errors import DataError
from headrace.rows.formats import FormatSpec, open_format
from headrace.systems.base import Target


class Streamed(Shelf):
    """A Kinesis stream in place of the shelf. All rows go by one key."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(1_758_000_000_000)
        self.stream = MemoryKinesis("out", clock=self.clock)
        self.large_from = 1 << 62

    @override
    def target(self, stream: str) -> Target:  # type: ignore[override]
        return _OneKey(self)

    @property
    def numbers(self) -> list[int]:
        (shard,) = self.stream.shards()
        found = []
        iterator: str | None = self.stream.iterator(shard.id, OLDEST)
        while iterator is not None:
            page = self.stream.records(iterator, 10_000)
            found += [json.loads(record.data)["n"] for record in page.records]
            iterator = page.iterator if page.records else None
        return found


class _AtOnce(Executor):
    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class _OneKey(KinesisTarget):
    def __init__(self, streamed: Streamed) -> None:
        super().__init__("out", streamed.stream, open_format(FormatSpec()), "k", streamed.clock, _AtOnce())
        self._streamed = streamed

    @override
    def accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        text = pl.when(pl.col("n") >= self._streamed.large_from).then(pl.lit("x" * (1 << 20))).otherwise(pl.lit(""))
        return super().accept(rows.with_columns(k=pl.lit("k"), text=text))


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> Streamed:
    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    return Streamed()


@pytest.fixture(params=[1, 2], ids=["timer-driven", "command-driven"])
def scene(request: pytest.FixtureRequest, streamed: Streamed) -> Iterator[Scene]:
    scene = Scene("streamed", stages=request.param, shelf=streamed, may_repeat="it keeps no positions")
    yield scene
    scene.close()


def test_everything_committed_arrives_once_while_nothing_fails(scene: Scene, streamed: Streamed) -> None:
    for _ in range(5):
        scene.feed(20)
        scene.commit()
    assert sorted(streamed.numbers) == scene.fed


def test_a_kill_repeats_the_versions_that_no_commit_says_are_written(streamed: Streamed) -> None:
    scene = Scene("streamed", shelf=streamed, may_repeat="it keeps no positions")
    for _ in range(3):
        scene.feed(20)
        scene.commit()
    assert streamed.numbers == scene.fed
    scene.feed(20)
    while len(streamed.numbers) < len(scene.fed):
        scene.turns(1, 10)
    scene.restart()
    scene.commit()
    assert streamed.numbers == [*scene.fed, *scene.fed[-20:]], "one version again, and in its order"
    scene.close()


def test_a_clean_stop_repeats_nothing(scene: Scene, streamed: Streamed) -> None:
    for _ in range(3):
        scene.feed(20)
        scene.turns(5)
        for _ in scene.container._loop.draining():
            scene.clock.advance(1)
        assert sorted(streamed.numbers) == scene.fed
        scene.restart()
        scene.commit()
    assert sorted(streamed.numbers) == scene.fed


def test_a_version_on_its_way_goes_on_after_a_refusal(scene: Scene, streamed: Streamed) -> None:
    streamed.stream.limited = True
    scene.feed(3000)
    scene.commit()
    assert 500 < len(streamed.numbers) < 3000
    for _ in range(10):
        streamed.clock.advance(1000)
        streamed.stream.limited = False
        scene.turns(20, 1000)
    assert sorted(streamed.numbers) == scene.fed
    assert all(host.publishing.idle for host in scene.container.hosts)


def test_a_row_that_kinesis_cannot_take_is_never_committed(streamed: Streamed) -> None:
    scene = Scene("streamed", shelf=streamed, may_repeat="it keeps no positions")
    scene.feed(5)
    scene.commit()
    streamed.large_from = 7
    scene.feed(5)
    with pytest.raises(DataError, match=r"output 'out' of app/.*: a row for the .* 'out' has 1048\d+ bytes"):
        scene.commit()
    streamed.large_from = 1 << 62  # another version of the app sends less
    scene.restart()
    scene.commit()
    assert sorted(set(streamed.numbers)) == scene.fed
    scene.close()
