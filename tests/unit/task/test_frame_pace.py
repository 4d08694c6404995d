"""Wide shuffles: tasks commit and announce less often, so that the number of control frames has a limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from driven_app import INTERVAL_MS, PARTITIONS, DrivenApp, Orders, orders_app

from headrace.task import scope as frame_pace
from headrace.task.scope import (
    COMMIT_FRAMES,
    FRAMES_A_SECOND,
    FREE_FRAMES,
    commit_interval_ms,
    longest_interval_ms,
    watermark_interval_ms,
)


@pytest.mark.parametrize("wanted_ms", [50, 1000, 7000])
@pytest.mark.parametrize("tasks", [1, 200, 5000])
@pytest.mark.parametrize("frames", [0, 1, 49, 10_000, 90_000, 25_000_000])
def test_no_more_frames_than_the_limit_are_written(wanted_ms: int, tasks: int, frames: int) -> None:
    interval_ms = commit_interval_ms(wanted_ms, tasks, frames)
    work = frames + COMMIT_FRAMES * tasks
    assert interval_ms % wanted_ms == 0
    if work <= FREE_FRAMES:
        assert interval_ms == wanted_ms
        return
    assert work * 1000 / interval_ms <= FRAMES_A_SECOND
    assert interval_ms == wanted_ms or work * 1000 / (interval_ms - wanted_ms) > FRAMES_A_SECOND
    assert frames * 1000 / watermark_interval_ms(frames) <= FRAMES_A_SECOND


def test_shuffles_that_are_not_wide_keep_their_intervals() -> None:
    assert commit_interval_ms(1000, 2 * 60, 60 * 60) == 1000
    assert commit_interval_ms(1000, 500, 0) == 1000
    assert watermark_interval_ms(7 * 7) == 10


def test_the_tasks_of_a_wide_shuffle_commit_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The frames of one shuffle between so many partitions are those of four intervals."""
    orders = Orders(tmp_path)
    app = orders_app(tmp_path)
    with DrivenApp(app) as driven:
        shuffles = 2
        monkeypatch.setattr(frame_pace, "COMMIT_FRAMES", 0)
        monkeypatch.setattr(frame_pace, "FREE_FRAMES", 0)
        monkeypatch.setattr(
            frame_pace, "FRAMES_A_SECOND", shuffles * PARTITIONS * PARTITIONS * 1000 // (4 * INTERVAL_MS)
        )
        container = driven.start()
        assert {host.scope.interval_ms for host in container.hosts} == {longest_interval_ms(driven.plan)}
        assert longest_interval_ms(driven.plan) == 4 * INTERVAL_MS
        assert "the checkpoint interval is longer than the app's" in caplog.text
        source = container.hosts[0]
        versions: list[int] = []
        for _ in range(16):
            orders.write()
            driven.run(INTERVAL_MS)
            versions.append(source.machine.version)
        assert 3 <= len(set(versions)) <= 16 / 4 + 2, "one for each long interval, and perhaps one for the start"
        assert all(host.machine.version > 0 for host in container.hosts), "those downstream follow"
    orders.close()
