"""Which versions become traces: once each, whole, and no more than there is room for."""

from __future__ import annotations

from headrace.connectors.otel.telemetry import MOST_TAKEN, QUIET_MS, VersionBook
from headrace.coordinator.messages import CommitParts, TaskStatus


def status(task: str, *versions: int, parts: tuple[str, ...] = ("flush", "changelog")) -> TaskStatus:
    times = {part: (float(number), number + 1.0) for number, part in enumerate(parts)}
    commits = [CommitParts(version=version, began_ms=version, parts=times) for version in versions]
    return TaskStatus(name=task, state="running", commits=commits)


def taken(book: VersionBook, now_ms: float, *, rest: bool = False) -> dict[int, set[str]]:
    return {trace.version: set(trace.commits) for trace in book.take(now_ms, rest=rest)}


def test_a_version_is_taken_once_when_nothing_new_of_it_comes() -> None:
    book = VersionBook()
    book.hear([status("a/0", 10), status("a/1", 10)], 0)
    book.hear([status("a/0", 10, 20)], 1000)
    assert taken(book, QUIET_MS - 1) == {}
    book.hear([status("b/0", 10)], QUIET_MS - 1)
    book.hear([status("a/0", 10, 20), status("a/1", 10), status("b/0", 10)], QUIET_MS + 900)  # all repeat
    assert taken(book, QUIET_MS + 1000) == {20: {"a/0"}}
    assert taken(book, 2 * QUIET_MS) == {10: {"a/0", "a/1", "b/0"}}
    book.hear([status("a/0", 10, 20), status("a/1", 10)], 2 * QUIET_MS)
    assert taken(book, 9 * QUIET_MS, rest=True) == {}


def test_parts_that_come_after_the_commit_belong_to_it() -> None:
    book = VersionBook()
    book.hear([status("a/0", 10)], 0)
    book.hear([status("a/0", 10, parts=("flush", "changelog", "store"))], 2000)
    assert taken(book, QUIET_MS) == {}
    (trace,) = book.take(2000 + QUIET_MS)
    assert set(trace.commits["a/0"].parts) == {"flush", "changelog", "store"}


def test_what_is_left_at_the_end_is_taken_at_once() -> None:
    book = VersionBook()
    book.hear([status("a/0", 10, 20)], 0)
    assert taken(book, 0, rest=True) == {10: {"a/0"}, 20: {"a/0"}}


def test_the_oldest_versions_are_dropped_for_want_of_room() -> None:
    book = VersionBook(room=6)
    for version in range(10):
        book.hear([status("a/0", version), status("a/1", version)], version)
    assert book.dropped == 7
    assert sorted(taken(book, 99, rest=True)) == [7, 8, 9]
    book.hear([status("a/0", 5)], 100)
    assert taken(book, 101, rest=True) == {}


def test_what_is_taken_at_once_is_bounded() -> None:
    book = VersionBook()
    tasks = [f"a/{number}" for number in range(MOST_TAKEN // 2 + 1)]
    for version in range(5):
        book.hear([status(task, version) for task in tasks], 0)
    assert [len(book.take(0, rest=True)) for _ in range(4)] == [2, 2, 1, 0]
