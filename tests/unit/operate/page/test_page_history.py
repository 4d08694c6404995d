"""The last hour: fine at its end, coarse before, and never more points than that."""

from __future__ import annotations

from headrace.operate.page.view import COARSE_MS, FINE, SPAN_MS, History, merged


def test_late_points_are_fine_and_earlier_ones_stand_for_ten_seconds():
    history = History()
    for second in range(FINE + 20):
        history.add({"t": second * 1000, "in": second})
    points = history.points()
    assert [point["t"] for point in points[:3]] == [0, COARSE_MS, 20_000]
    assert points[0]["in"] == 4.5
    assert len(points) == 2 + FINE
    assert [point["t"] for point in points] == sorted(point["t"] for point in points)


def test_it_never_holds_more_than_an_hour():
    history = History()
    for second in range(2 * SPAN_MS // 1000):
        history.add({"t": second * 1000})
    assert len(history.points()) <= SPAN_MS // COARSE_MS + FINE + 1


def test_points_of_one_moment_are_bounded_too():
    history = History()
    for _ in range(FINE + 10_000):
        history.add({"t": 7})
    assert len(history.points()) <= SPAN_MS // COARSE_MS + FINE + 1


def test_events_are_added_up_and_the_worst_latency_counts():
    one = {"t": 1, "in": 10, "p99": 5.0, "restarts": 1, "parts": {"flush": 2.0}}
    other = {"t": 2, "in": 20, "p99": 50.0, "restarts": 2, "parts": {"flush": 4.0, "store": 1.0}}
    assert merged([one, other, {"t": 3}]) == {
        "t": 1,
        "in": 15,
        "p99": 50.0,
        "restarts": 3,
        "parts": {"flush": 3.0, "store": 1.0},
    }
