"""What growth is measured first, if time runs out."""

from __future__ import annotations

from bench.growth import LARGE, points


def test_every_size_is_measured_and_what_takes_longest_last() -> None:
    found = points(LARGE)
    assert sorted(found) == sorted((what, size) for what, sizes in LARGE.items() for size in sizes)
    assert found[-2:] == [("partitions", 5_000), ("messages", 1_000_000_000)]
    assert [size for what, size in found if what == "tasks"] == sorted(LARGE["tasks"])
