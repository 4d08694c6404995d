"""Every row is in the target exactly once, wherever the process dies and whatever the target says.

The real tasks, protocol and stores run in memory or on disk; a fuse ends the process before or after any call that
leaves it. Copies that were replaced live on, and wake when they are least wanted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from publishing_scene import Crash, Scene, entry_points

from drawn import examples
from headrace.core.errors import FencedError, InfrastructureError, UnavailableError
from headrace.task.connections import Connections
from headrace.task.container import Container
from headrace.task.outputs.publisher import LONGEST_PAUSE_MS
from headrace.task.state.changelog import ChangelogPartition
from headrace.task.state.task_state import TaskState

STEPS = [
    (ChangelogPartition, "append"),
    (ChangelogPartition, "flush"),
    (TaskState, "persist"),
    (TaskState, "snapshot_if_due"),
    (Connections, "flush_records"),
]


class Fuse:
    """Burns a step at each boundary, and ends the process when it is burnt down."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.deaths = 0

    def burn(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                self.deaths += 1
                raise Crash

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def fused(*args: Any) -> Any:
            self.burn()
            result = call(*args)
            self.burn()
            return result

        return fused


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Fuse:
    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    fuse = Fuse()
    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, fuse.around(getattr(owner, name)))
    return fuse


class Story:
    """What happens to one scene."""

    def __init__(self, scene: Scene, fuse: Fuse) -> None:
        self.scene = scene
        self.fuse = fuse
        self.stale: list[Container] = []
        self.trouble: list[str] = []
        scene.shelf.trouble = self._trouble

    def _trouble(self, moment: str) -> None:
        self.fuse.burn()
        if self.trouble and self.trouble[0] == moment:
            self.trouble.pop(0)
            raise UnavailableError(f"lost {moment} the answer")

    def run(self, turns: int, ms: int) -> None:
        try:
            self.scene.turns(turns, ms)
        except Crash:
            self.replace(keep=False)

    def replace(self, *, keep: bool) -> None:
        """A new incarnation; the one before is dead, or only stale."""
        self.fuse.left = None
        if keep:
            self.stale.append(self.scene.container)
        else:
            self.scene.stop()
        self.scene.start()

    def wake(self) -> None:
        """A stale copy goes on as if nothing had happened, until it finds out."""
        if self.stale:
            left, self.fuse.left = self.fuse.left, None
            copy = self.stale.pop(0)
            try:
                for host in copy.hosts:
                    host.publishing.advance(self.scene.clock.monotonic_ms() + LONGEST_PAUSE_MS)
                self.scene.turns(30, 100, copy)
            except (FencedError, InfrastructureError):
                pass  # what it was told is what this test is about: it has to stop, having changed nothing
            self.scene.stop(copy)
            self.fuse.left = left

    def finish(self) -> None:
        """No more trouble: everything has to come out."""
        self.fuse.left = None
        self.trouble.clear()
        while self.stale:
            self.wake()
        self.scene.seal()
        self.scene.turns(60, 100)
        self.scene.turns(10, int(LONGEST_PAUSE_MS))
        assert self.scene.finished
        assert sorted(self.scene.shelf.rows) == self.scene.fed


events = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 20)),
        st.tuples(st.just("run"), st.integers(1, 40)),
        st.tuples(st.just("run"), st.integers(1, 40)),
        st.tuples(st.just("fuse"), st.integers(0, 60)),
        st.tuples(st.just("kill"), st.just(0)),
        st.tuples(st.just("forsake"), st.just(0)),
        st.tuples(st.just("wake"), st.just(0)),
        st.tuples(st.just("trouble"), st.sampled_from(["position", "before", "after"])),
    ),
    min_size=5,
    max_size=40,
)


def tell(scene: Scene, fuse: Fuse, happens: list[tuple[str, Any]]) -> None:
    story = Story(scene, fuse)
    try:
        for what, detail in happens:
            match what:
                case "feed":
                    scene.feed(detail)
                case "run":
                    story.run(detail, 100)
                case "fuse":
                    fuse.left = detail
                case "kill":
                    story.replace(keep=False)
                case "forsake":
                    story.replace(keep=True)
                case "wake":
                    story.wake()
                case _:
                    story.trouble.append(detail)
        story.finish()
    finally:
        fuse.left = None
        scene.close()


def unhurried(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(
        max_examples=examples(count),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@unhurried(120)
@given(stages=st.sampled_from([1, 2]), happens=events)
def test_exactly_once_whatever_happens(fuse: Fuse, stages: int, happens: list[tuple[str, Any]]) -> None:
    tell(Scene("crashes", stages=stages), fuse, happens)


@unhurried(25)
@given(happens=events)
def test_exactly_once_with_state_on_disk(
    fuse: Fuse, tmp_path_factory: pytest.TempPathFactory, happens: list[tuple[str, Any]]
) -> None:
    home: Path = tmp_path_factory.mktemp("home")
    tell(Scene("crashes-on-disk", home=str(home)), fuse, happens)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_death_at_every_step_of_a_commit(fuse: Fuse, stages: int) -> None:
    """Not drawn but all of them: one step further each time, until a whole version passes without a death."""
    for step in range(1000):
        before = fuse.deaths
        happens = [("feed", 3), ("run", 15), ("feed", 4), ("fuse", step), ("run", 15), ("run", 15)]
        tell(Scene(f"step-{step}", stages=stages), fuse, happens)
        if fuse.deaths == before:
            break
    assert fuse.deaths == step > 20
