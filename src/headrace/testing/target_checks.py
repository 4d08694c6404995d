"""The checks of a target: what a writer, its replacement and its stale copy can do to one another."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence

import polars as pl

from headrace.core.errors import HeadraceError
from headrace.systems.base import Target
from headrace.testing.system_scene import expect

_PUBLISHED_S, _AGAIN_MS = 30.0, 50.0
_SCHEMA = {"writer": pl.String, "version": pl.Int64, "n": pl.Int64}


class TargetScene:
    """Handles on one target, the name of the check's writer, and what is visible of its versions."""

    def __init__(self, make_target: Callable[[], Target], read: Callable[[], pl.DataFrame], check: str) -> None:
        self.make_target = make_target
        self._read = read
        self._open: list[Target] = []
        self.writer = f"{check.replace('_', '-')}-{uuid.uuid4().hex[:8]}/stage/0/out"

    def __enter__(self) -> TargetScene:
        return self

    def __exit__(self, *_: object) -> None:
        for target in self._open:
            target.close()

    def target(self) -> Target:
        """A new handle."""
        target = self.make_target()
        self._open.append(target)
        return target

    def publish(
        self, target: Target, version: int, rows: int = 3, writer: str | None = None, at_once: int | None = None
    ) -> None:
        """Publish the rows of this version, the same ones for every publisher; ``at_once`` is the size of a piece.

        As a task does, it tries again after an error that may pass.
        """
        name = writer or self.writer
        pieces = [target.accept(piece) for piece in table(name, version, rows).iter_slices(at_once or rows)]
        end_s = time.monotonic() + _PUBLISHED_S
        while True:
            try:
                again_ms = target.publish(name, version, pieces)
            except HeadraceError as error:
                if not error.retry or time.monotonic() > end_s:
                    raise
                again_ms = _AGAIN_MS
            if again_ms is None:
                return
            expect(time.monotonic() < end_s, f"version {version} is published within {_PUBLISHED_S:g} s")
            time.sleep(again_ms / 1000)

    def expect_versions(self, versions: Sequence[int], rows: int = 3, writer: str | None = None) -> None:
        """Raise ``ContractError`` unless exactly these versions are visible, each complete and once."""
        who = writer or self.writer
        seen = self._read().filter(pl.col("writer") == who).select(*_SCHEMA).sort("version", "n").rows()
        wanted = [row for version in sorted(versions) for row in table(who, version, rows).rows()]
        expect(seen == wanted, f"versions {list(versions)} expected with {rows} rows each; visible are {_brief(seen)}")


def table(writer: str, version: int, rows: int) -> pl.DataFrame:
    """The rows of a version."""
    return pl.DataFrame({"writer": [writer] * rows, "version": [version] * rows, "n": range(rows)}, schema=_SCHEMA)


def _brief(rows: list[tuple[object, ...]]) -> str:
    counts: dict[object, int] = {}
    for row in rows:
        counts[row[1]] = counts.get(row[1], 0) + 1
    return ", ".join(f"version {version}: {count} rows" for version, count in counts.items()) or "none"


def a_new_writer(scene: TargetScene) -> None:
    """A writer has no position before it publishes."""
    expect(scene.target().position(scene.writer) == -1, "the position of an unknown writer is -1")


def versions_in_order(scene: TargetScene) -> None:
    """Versions rise, not always by one."""
    target = scene.target()
    for version in (0, 1, 5, 1_758_000_000_000):
        scene.publish(target, version)
        expect(target.position(scene.writer) == version, f"the position after publishing {version} is {version}")
    scene.expect_versions([0, 1, 5, 1_758_000_000_000])


def pieces_of_one_version(scene: TargetScene) -> None:
    """A version may be published in several pieces."""
    scene.publish(scene.target(), 4, rows=1000, at_once=300)
    scene.expect_versions([4], rows=1000)


def the_same_again(scene: TargetScene) -> None:
    """A writer that doesn't know whether a version arrived publishes it again."""
    target = scene.target()
    for _ in range(3):
        scene.publish(target, 7)
    scene.publish(scene.target(), 7)
    scene.expect_versions([7])
    expect(target.position(scene.writer) == 7, "publishing again doesn't move the position")


def a_replacement_goes_on(scene: TargetScene) -> None:
    """Another handle sees what the first one published."""
    scene.publish(scene.target(), 3)
    after = scene.target()
    expect(after.position(scene.writer) == 3, "another handle sees the position")
    scene.publish(after, 3)
    scene.publish(after, 4)
    scene.expect_versions([3, 4])


def a_stale_copy_wakes(scene: TargetScene) -> None:
    """A stale copy that looked up the position long ago changes nothing when it continues."""
    stale, replacement = scene.target(), scene.target()
    scene.publish(stale, 1)
    expect(stale.position(scene.writer) == 1, "the position after publishing 1 is 1")
    for version in (2, 3, 4):
        scene.publish(replacement, version)
    for version in (2, 3):
        scene.publish(stale, version)
    expect(replacement.position(scene.writer) == 4, "a stale copy doesn't take the position back")
    expect(scene.target().position(scene.writer) == 4, "a stale copy doesn't take the position back")
    scene.expect_versions([1, 2, 3, 4])


def writers_apart(scene: TargetScene) -> None:
    """Publishing as one writer doesn't affect another, however similar their names are."""
    target = scene.target()
    writers = [f"{scene.writer}{end}" for end in ("", "-2", ".2", "/2", "_2")]
    for number, writer in enumerate(writers):
        scene.publish(target, 10 * number, writer=writer)
    for number, writer in enumerate(writers):
        expect(target.position(writer) == 10 * number, f"the position of {writer} is its own")
        scene.expect_versions([10 * number], writer=writer)


def two_at_once(scene: TargetScene) -> None:
    """A task and its stale copy publish the same versions at the same time: each is visible once."""
    versions = range(1, 11)
    start = threading.Barrier(2)
    failed: list[BaseException] = []

    def run() -> None:
        target = scene.make_target()
        try:
            start.wait(10)
            for version in versions:
                scene.publish(target, version)
        except HeadraceError as error:
            failed.append(error)
        finally:
            target.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    scene.expect_versions(versions)


TARGET_CHECKS: tuple[Callable[[TargetScene], None], ...] = (
    a_new_writer,
    versions_in_order,
    pieces_of_one_version,
    the_same_again,
    a_replacement_goes_on,
    a_stale_copy_wakes,
    writers_apart,
    two_at_once,
)
