"""What growth is measured first, if time runs out."""

from __future__ import annotations

from bench.growth import LARGE, points


def test_every_size_is_measured_and_those_with_the_most_messages_last() -> None:
    found = points(LARGE)
    assert sorted(found) == sorted((what, size) for what, sizes in LARGE.items() for size in sizes)
    assert found[-3:] == [("keys", 10_000_000), ("messages", 100_000_000), ("messages", 1_000_000_000)]
    assert [size for what, size in found if what == "tasks"] == sorted(LARGE["tasks"])
