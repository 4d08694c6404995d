"""Committed rows into a target, once each: failures, doubts, restarts, stale copies, long absences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from publishing_scene import Scene, Shelf, away, entry_points

from headrace.core.errors import DataError, InfrastructureError, UnavailableError
from headrace.stores.outbox import timeline_begun
from headrace.task.outputs.publisher import LONGEST_PAUSE_MS
from headrace.task.scope import run


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)


@pytest.fixture(params=[1, 2], ids=["timer-driven", "command-driven"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene("publishing", stages=request.param)
    yield scene
    scene.close()


def test_nothing_is_published_before_its_commit(scene: Scene) -> None:
    scene.feed(10)
    scene.turns(20)
    assert scene.host.metrics.rows_out > 0
    assert scene.shelf.calls == 0
    scene.commit()
    assert sorted(scene.shelf.rows) == scene.fed
    assert all(host.publishing.idle for host in scene.container.hosts)


def test_versions_without_rows_cost_the_target_nothing(scene: Scene) -> None:
    scene.turns(100, 100)
    assert scene.shelf.calls == 0


def test_the_end_waits_for_the_target(scene: Scene) -> None:
    scene.feed(10)
    scene.shelf.trouble = away
    scene.seal()
    for _ in range(200):
        scene.turns(1, 10)
        assert not scene.finished
    assert scene.shelf.rows == []
    scene.shelf.trouble = lambda moment: None
    scene.turns(10, int(LONGEST_PAUSE_MS))
    assert scene.finished
    assert sorted(scene.shelf.rows) == scene.fed


def test_an_ended_app_that_is_started_again_publishes_what_is_missing(scene: Scene) -> None:
    scene.feed(10)
    scene.shelf.trouble = away
    scene.seal()
    scene.turns(200, 10)
    scene.shelf.trouble = lambda moment: None
    scene.restart()
    scene.turns(200, 10)
    assert scene.finished
    assert sorted(scene.shelf.rows) == scene.fed


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_try_that_failed_is_repeated_whether_it_had_worked_or_not(scene: Scene, moment: str) -> None:
    tries = iter([True, True, True])

    def doubtful(now: str) -> None:
        if now == moment and next(tries, False):
            raise UnavailableError("connection lost")

    scene.shelf.trouble = doubtful
    for _ in range(4):
        scene.feed(5)
        scene.commit()
    assert sorted(scene.shelf.rows) == scene.fed
    assert scene.shelf.versions == sorted(scene.shelf.versions)


def test_pauses_grow_and_are_seen(scene: Scene) -> None:
    scene.feed(5)
    scene.shelf.trouble = away
    scene.commit()
    host = next(host for host in scene.container.hosts if not host.publishing.idle)
    ((output, state),) = host.publishing.states()
    assert (output, state.waiting, state.error) == ("out", 1, "connection refused")
    assert state.failures >= 3
    calls, times = scene.shelf.calls, []
    now = scene.clock.monotonic_ms()
    while len(times) < 8:
        pause = host.publishing.pause(now)
        assert pause > 0
        host.publishing.advance(now + pause / 2)
        assert scene.shelf.calls == calls  # not before its time
        now += pause
        host.publishing.advance(now)
        calls += 1
        assert scene.shelf.calls == calls
        times.append(host.publishing.pause(now))
    assert all(LONGEST_PAUSE_MS / 2 <= pause <= LONGEST_PAUSE_MS for pause in times[-2:])
    assert times[0] < LONGEST_PAUSE_MS / 4
    scene.shelf.trouble = lambda moment: None
    host.publishing.advance(now + LONGEST_PAUSE_MS)
    ((_, state),) = host.publishing.states()
    assert (state.waiting, state.failures, state.error) == (0, 0, None)


def test_what_no_retry_can_mend_ends_the_task(scene: Scene) -> None:
    def misfit(moment: str) -> None:
        raise DataError("these rows don't fit")

    scene.feed(5)
    scene.shelf.trouble = misfit
    with pytest.raises(DataError, match=r"output 'out' of app/.*: these rows don't fit"):
        scene.commit()


def test_a_restart_publishes_exactly_the_missing_versions(scene: Scene) -> None:
    scene.feed(5)
    scene.commit()
    assert sorted(scene.shelf.rows) == scene.fed
    scene.shelf.trouble = away
    for _ in range(3):
        scene.feed(5)
        scene.commit()
    done = list(scene.shelf.versions)
    scene.shelf.trouble = lambda moment: None
    calls = scene.shelf.calls
    scene.restart()
    scene.turns(30)  # no time passes: nothing new is committed
    assert sorted(scene.shelf.rows) == scene.fed
    assert len(scene.shelf.versions) > len(done)
    positions = len(scene.shelf.positions)
    published = len(scene.shelf.versions) - len(done)
    assert scene.shelf.calls - calls <= published + 2 * positions  # one look at the position each, and no version twice


def test_a_stale_copy_that_wakes_changes_nothing(scene: Scene) -> None:
    scene.feed(5)
    scene.shelf.trouble = away
    scene.commit()
    stale = scene.container
    scene.shelf.trouble = lambda moment: None
    scene.start()
    scene.feed(5)
    scene.commit()
    versions, positions = list(scene.shelf.versions), dict(scene.shelf.positions)
    assert sorted(scene.shelf.rows) == scene.fed
    for host in stale.hosts:
        for _ in range(5):
            with pytest.MonkeyPatch.context():
                now = scene.clock.monotonic_ms() + LONGEST_PAUSE_MS
                if not host.publishing.idle:
                    try:
                        host.publishing.advance(now)
                    except InfrastructureError as error:
                        assert "stale copy" in str(error)
                        break
    assert (scene.shelf.versions, scene.shelf.positions) == (versions, positions)
    scene.stop(stale)


def test_a_target_that_is_down_for_long_holds_the_reader_back(tmp_path: Path) -> None:
    scene = Scene("patience", home=str(tmp_path), ahead_bytes_max=20_000)
    scene.shelf.trouble = away
    for _ in range(30):
        scene.feed(500)
        scene.commit()
    reason = scene.host.blocked_by or ""
    assert "output out" in reason
    assert "connection refused" in reason
    ((_, state),) = scene.host.publishing.states()
    assert 20_000 < state.waiting_bytes < 60_000
    read = scene.host.metrics.rows_in
    assert read < len(scene.fed)
    scene.commit()
    assert scene.host.metrics.rows_in == read  # it stands, and goes on committing
    scene.restart()
    scene.commit()
    assert scene.host.blocked_by is not None  # what waits is still there
    scene.shelf.trouble = lambda moment: None
    scene.turns(200, 1000)
    assert scene.host.blocked_by is None
    assert scene.shelf.rows == scene.fed
    scene.close()


def test_a_position_from_another_life_is_refused(scene: Scene) -> None:
    """The app's home was deleted, the target was not: versions may begin below what the target has."""
    scene.feed(5)
    scene.turns(20)
    writer = f"app/{scene.host.name}/out"
    others = {f"app/{host.name}/out" for host in scene.container.hosts}
    scene.shelf.positions = dict.fromkeys(others, 10**9)
    with pytest.raises(InfrastructureError, match="its state was deleted, or another app writes under this name"):
        scene.commit()
    assert writer in others


def lose_what_is_published(scene: Scene) -> None:
    """The target is emptied, or comes from an older backup, while the app is away."""
    scene.feed(5)
    scene.commit()
    scene.feed(5)
    scene.commit()  # a commit that knows what the target has
    assert sorted(scene.shelf.rows) == scene.fed
    scene.shelf.rows.clear()
    scene.shelf.positions = {writer: version - 1 for writer, version in scene.shelf.positions.items() if version % 2}
    scene.restart()
    scene.feed(5)


def test_a_target_that_has_lost_rows_is_refused(scene: Scene) -> None:
    lose_what_is_published(scene)
    with pytest.raises(InfrastructureError, match=r"output 'out' of app/.*: the target .* it has lost rows") as caught:
        scene.commit()
    assert "start the app with lost_results" in caught.value.hint


def test_what_a_target_has_lost_may_be_given_up() -> None:
    scene = Scene("losing", lost_results="accept")
    lose_what_is_published(scene)
    scene.commit()
    assert set(scene.fed[10:]) <= set(scene.shelf.rows) < set(scene.fed)
    assert any("it has lost rows, which lost_results accepts" in text for text in scene.host.metrics.warnings)
    scene.close()


def test_draining_publishes_what_it_commits(scene: Scene) -> None:
    scene.feed(5)
    scene.turns(20)
    assert scene.shelf.rows == []
    scene.container.drain()
    for host in scene.container.hosts:
        host.ask_for_commit()
        run(host.performing())
    scene.turns(30)
    assert sorted(scene.shelf.rows) == scene.fed


def test_a_target_that_is_away_is_reported_once_and_once_when_it_is_back(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="headrace.task.outputs.publisher")
    scene.shelf.trouble = away
    scene.feed(10)
    scene.commit()
    scene.turns(10, int(LONGEST_PAUSE_MS))
    states = {str(host.name): state for host in scene.container.hosts for _, state in host.publishing.states()}
    failures = {task: state.failures for task, state in states.items() if state.failures}
    assert min(failures.values()) > 5
    text = "output 'out' can't be published; trying again: connection refused"
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", text)] * len(failures)
    assert {vars(record)["task"] for record in caplog.records} == failures.keys()
    kept = {str(host.name): list(host.metrics.warnings) for host in scene.container.hosts}
    assert {task: found for task, found in kept.items() if found} == {task: [text] for task in failures}
    caplog.clear()
    scene.shelf.trouble = lambda moment: None
    scene.turns(10, int(LONGEST_PAUSE_MS))
    for back in caplog.records:
        assert (back.levelname, back.getMessage()) == ("INFO", "the target takes rows again")
        assert vars(back)["failures"] == failures.pop(vars(back)["writer"].split("/", 1)[1].rpartition("/")[0])
        assert vars(back)["away_ms"] > LONGEST_PAUSE_MS
    assert not failures


class Slow(Shelf):
    """Needs some time to find a position, and notes what commits say of it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 3
        self.told: list[int] = []

    def prepare(self, writer: str, published: int) -> float | None:
        self.told.append(published)
        self.waits -= 1
        return 5.0 if self.waits > 0 else None


def test_a_position_is_found_in_the_background_and_compared_with_what_a_commit_says() -> None:
    shelf = Slow()
    scene = Scene("slow", shelf=shelf)
    scene.feed(10)
    scene.commit()
    assert (shelf.rows, shelf.told) == (scene.fed, [-1, -1, -1])
    scene.feed(1)
    scene.commit()
    scene.commit()  # says what was published
    [published] = shelf.positions.values()
    scene.restart()
    scene.feed(1)
    scene.commit()
    assert shelf.rows == scene.fed
    assert shelf.told[3:] == [published]
    scene.close()


@pytest.mark.parametrize("replaces", [False, True])
def test_a_task_is_another_writer_in_another_timeline_unless_late_rows_would_replace_newer_ones(
    scene: Scene, replaces: bool
) -> None:
    """Positions of a timeline say nothing about what is pending from another one."""
    scene.shelf.replaces = replaces
    scene.feed(20)
    scene.commit()
    writers = set(scene.shelf.positions)
    begun = max(scene.shelf.positions.values())
    scene.shelf.trouble = away
    scene.feed(20)
    scene.commit()
    last = max(host.machine.version for host in scene.container.hosts)
    for host in scene.container.hosts:
        for outbox in host.publishing.stores().values():
            outbox.apply(timeline_begun(last))
    scene.feed(20)
    scene.commit()
    scene.shelf.trouble = lambda moment: None
    scene.turns(20, int(LONGEST_PAUSE_MS))
    assert sorted(scene.shelf.rows) == scene.fed
    new = set() if replaces else {f"{writer}/{last}" for writer in writers}
    assert set(scene.shelf.positions) == writers | new
    assert begun < last < max(scene.shelf.positions.values())
