"""The book of startpoints: written, ordered, granted, and done with, in a store that several processes use."""

from __future__ import annotations

import pytest

from headrace.core.errors import DataError, FencedError, IndeterminateWriteError, UnavailableError, UsageError
from headrace.life.metadata import MemoryMetadata
from headrace.life.startpoints import DONE_MAX, StartpointBook, StartpointKey, fan_out
from headrace.systems.startpoints import (
    Order,
    Outcome,
    StartpointCustom,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
)

VIEWS = StartpointKey("log.views", 0)
PARTITIONS = {("log.views", 0): ("count/0",), ("log.views", 1): ("count/1",), ("log.rates", 0): ("count/0", "count/1")}
POINTS = (
    StartpointSpecific(id="a", created_ms=1, offset=7),
    StartpointTimestamp(id="b", created_ms=2, time_ms=1_700_000_000_000),
    StartpointOldest(id="c", created_ms=3),
    StartpointUpcoming(id="d", created_ms=4),
    StartpointCustom(id="e", created_ms=5, name="after-release", value={"release": "1.2", "deep": [1, {"x": None}]}),
)


def oldest(id_: str = "p") -> StartpointOldest:
    return StartpointOldest(id=id_, created_ms=1)


@pytest.fixture
def store():
    return MemoryMetadata()


@pytest.fixture
def book(store):
    return StartpointBook(store, "shop")


def distribute(book, now_ms=50):
    return book.fan_out(lambda present: fan_out(present, PARTITIONS, now_ms))


def ordered(book, generation=3):
    """Write one, fan it out and grant it; return its order."""
    book.write({VIEWS: oldest()}, 10)
    distribute(book)
    return book.grant({"count/0": generation})["count/0"][0]


def states(book, **options):
    return [(state.task, state.state) for state in book.states(**options)]


# -- writing, reading, deleting


@pytest.mark.parametrize("point", POINTS, ids=lambda point: type(point).__name__)
@pytest.mark.parametrize("task", [None, "count/0"])
def test_every_kind_under_both_kinds_of_key_reads_back_as_it_was_written(book, point, task):
    key = StartpointKey("files.views/of~2 [x]", 4, task)
    assert book.write({key: point}, 10) == {}
    assert book.read(key) == point
    assert book.read(StartpointKey("files.views/of~2 [x]", 5, task)) is None
    (state,) = book.states()
    assert (state.key, state.state, state.at_ms, state.named) == (key, "pending", 10, task is not None)


def test_the_keys_with_and_without_a_task_are_different(book):
    mine = StartpointKey("log.views", 0, "count/0")
    book.write({VIEWS: POINTS[0], mine: POINTS[2]}, 10)
    assert (book.read(VIEWS), book.read(mine)) == (POINTS[0], POINTS[2])
    book.delete(lambda key: key == VIEWS, 11, live=False)
    assert (book.read(VIEWS), book.read(mine)) == (None, POINTS[2])


def test_a_newer_one_replaces_one_that_waits_and_says_so(book):
    book.write({VIEWS: POINTS[0]}, 10)
    replaced = book.write({VIEWS: POINTS[2]}, 11)
    assert [state.startpoint.id for state in replaced.values()] == ["a"]
    assert book.read(VIEWS) == POINTS[2]
    assert [(s.startpoint.id, s.state) for s in book.states(done=True)] == [("a", "replaced"), ("c", "pending")]


def test_apps_have_books_of_their_own(store, book):
    book.write({VIEWS: POINTS[0]}, 10)
    assert StartpointBook(store, "shop2").states() == []


class Contested(MemoryMetadata):
    """Somebody else writes just before the next write."""

    def __init__(self):
        super().__init__()
        self.before = None

    def write(self, namespace, changes):
        before, self.before = self.before, None
        if before is not None:
            before()
        return super().write(namespace, changes)


def test_of_two_commands_at_once_one_is_told_that_nothing_was_changed():
    store = Contested()
    mine, other = StartpointBook(store, "shop"), StartpointBook(store, "shop")
    store.before = lambda: other.write({VIEWS: POINTS[0]}, 10)
    with pytest.raises(UnavailableError, match="another command changed the startpoints of app 'shop'"):
        mine.write({VIEWS: POINTS[2], StartpointKey("log.views", 1): POINTS[2]}, 10)
    assert [state.startpoint.id for state in mine.states()] == ["a"]
    store.before = lambda: other.write({VIEWS: POINTS[3]}, 11)
    with pytest.raises(UnavailableError, match="while they were deleted"):
        mine.delete(lambda key: True, 12, live=False)
    assert mine.read(VIEWS) == POINTS[3]


def test_a_startpoint_of_another_format_is_refused(store, book):
    book.write({VIEWS: POINTS[0]}, 10)
    ((key, entry),) = store.scan("startpoints/shop").items()
    store.put_if("startpoints/shop", key, entry.value.replace(b'"format":2', b'"format":3'), entry.version)
    with pytest.raises(DataError, match="is of format 3"):
        book.states()
    store.put_if("startpoints/shop", key, b"{}", store.get("startpoints/shop", key).version)
    with pytest.raises(DataError, match="is unreadable"):
        book.states()


def test_the_bytes_are_golden(store, book):
    book.write({StartpointKey("log.views", 0, "count/0"): POINTS[0]}, 10, by="ann@laptop", note="OPS-7")
    assert {key: entry.value for key, entry in store.scan("startpoints/shop").items()} == {
        "written/log.views/0/count%2F0": b'{"format":2,"startpoint":{"stream":"log.views","partition":0,'
        b'"task":"count/0","startpoint":{"kind":"specific","id":"a","createdMs":1,"offset":7},'
        b'"state":"pending","atMs":10,"named":true,"by":"ann@laptop","note":"OPS-7"}}'
    }


def test_who_set_one_and_why_stays_with_it_until_it_is_done_with(book):
    book.write({VIEWS: oldest()}, 10, by="ann@laptop", note="OPS-7")
    distribute(book)
    (order,) = book.grant({"count/0": 3})["count/0"]
    book.note("count/0", Outcome(order=order, state="released", generation=3, version=90), 70)
    (done,) = book.states(done=True)
    assert (done.by, done.note, done.state) == ("ann@laptop", "OPS-7", "released")


# -- the life of one


def test_from_pending_to_released(book):
    order = ordered(book)
    assert order == Order(stream="log.views", partition=0, startpoint=oldest())
    assert book.read(VIEWS) is None
    assert book.read(StartpointKey("log.views", 0, "count/0")) == oldest()
    book.note("count/0", Outcome(order=order, state="applied", generation=3, offset=0), 60)
    (applied,) = book.states()
    assert (applied.state, applied.offset, applied.generation) == ("applied", 0, 3)
    book.note("count/0", Outcome(order=order, state="released", generation=3, version=90), 70)
    assert book.states() == []
    (done,) = book.states(done=True)
    assert (done.state, done.offset, done.version, done.at_ms) == ("released", 0, 90, 70)


def test_one_is_granted_again_to_each_generation_until_it_is_released(book):
    order = ordered(book)
    assert book.grant({"count/0": 4, "count/1": 4}) == {"count/0": (order,), "count/1": ()}
    book.note("count/0", Outcome(order=order, state="applied", generation=4, offset=0), 60)
    again = Order(stream="log.views", partition=0, startpoint=oldest(), offset=0)  # it means the same
    assert book.grant({"count/0": 5})["count/0"] == (again,)
    (state,) = book.states()
    assert (state.state, state.generation, state.offset) == ("ordered", 5, 0)
    book.note("count/0", Outcome(order=order, state="released", generation=5, version=9), 61)
    assert book.grant({"count/0": 6})["count/0"] == ()


def test_a_repeated_report_changes_nothing(book):
    order = ordered(book)
    for outcome in (
        Outcome(order=order, state="released", generation=3, version=90),
        Outcome(order=order, state="released", generation=3, version=90),
        Outcome(order=order, state="applied", generation=3, offset=0),  # it was on its way
    ):
        book.note("count/0", outcome, 70)
    assert [(s.state, s.version) for s in book.states(done=True)] == [("released", 90)]


def test_a_failed_one_is_kept_with_its_reason_and_granted_again(book):
    order = ordered(book)
    book.note("count/0", Outcome(order=order, state="failed", generation=3, reason="offset 7 is gone"), 60)
    assert book.grant({"count/0": 4})["count/0"] == (order,)
    (state,) = book.states()
    assert (state.state, state.reason, state.generation) == ("failed", "offset 7 is gone", 4)


def test_a_newer_one_written_meanwhile_stays_when_the_older_one_is_released(book):
    order = ordered(book)
    book.write({VIEWS: oldest("newer")}, 20)
    book.note("count/0", Outcome(order=order, state="released", generation=3, version=90), 70)
    assert [state.startpoint.id for state in book.states()] == ["newer"]


def test_a_newer_order_isnt_touched_by_reports_about_the_older_one(book):
    order = ordered(book)
    book.write({VIEWS: oldest("newer")}, 20)
    distribute(book)
    for state in ("applied", "failed", "released"):
        outcome = Outcome(order=order, state=state, generation=3, reason="x", offset=1, version=2)
        assert book.note("count/0", outcome, 70) is None
    assert [(s.startpoint.id, s.state) for s in book.states()] == [("newer", "ordered")]


def test_one_that_a_task_was_told_to_apply_cant_be_deleted_while_the_app_runs(book):
    order = ordered(book)
    with pytest.raises(UsageError, match=r"log\.views\[0\] can't be deleted: task count/0 is about to apply it"):
        book.delete(lambda key: True, 60, live=True)
    book.note("count/0", Outcome(order=order, state="applied", generation=3, offset=8), 60)
    with pytest.raises(UsageError, match="has applied it: generation 3 reads from offset 8"):
        book.delete(lambda key: True, 60, live=True)
    book.note("count/0", Outcome(order=order, state="failed", generation=3, reason="no"), 61)
    assert [state.state for state in book.delete(lambda key: True, 62, live=True)] == ["deleted"]


def test_a_deleted_one_is_never_applied_afterwards(book):
    order = ordered(book)
    book.delete(lambda key: True, 60, live=False)
    with pytest.raises(FencedError, match="that has been deleted"):
        book.note("count/0", Outcome(order=order, state="applied", generation=3, offset=8), 61)
    assert states(book, done=True) == [("count/0", "deleted")]


def test_deleting_what_isnt_there_deletes_nothing(book):
    assert book.delete(lambda key: True, 60, live=True) == []


def test_only_the_last_ones_that_are_done_with_are_kept(book):
    for number in range(DONE_MAX + 20):
        book.write({VIEWS: oldest(f"p{number}")}, number)
    done = [state for state in book.states(done=True) if state.state == "replaced"]
    assert len(done) == DONE_MAX
    assert [done[0].startpoint.id, done[-1].startpoint.id] == ["p19", f"p{DONE_MAX + 18}"]


# -- all or nothing


class Crashing(MemoryMetadata):
    """The process dies at the n-th write: before it, or after it was made."""

    def __init__(self, at: int, after: bool):
        super().__init__()
        self.left, self.after = at, after

    def write(self, namespace, changes):
        self.left -= 1
        if self.left == 0:
            if self.after:
                super().write(namespace, changes)
            raise IndeterminateWriteError("killed")
        return super().write(namespace, changes)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
def test_a_fan_out_that_dies_at_any_write_loses_nothing_and_repeats_nothing(at, after):
    store = Crashing(at, after)
    tries = 0

    def insist(action):
        nonlocal tries
        try:
            return action()
        except IndeterminateWriteError:
            tries += 1
            return action()

    book = StartpointBook(store, "shop")
    points = {
        VIEWS: oldest("all"),
        StartpointKey("log.rates", 0): oldest("both"),
        StartpointKey("log.rates", 0, "count/1"): oldest("mine"),
    }
    for key, point in points.items():
        insist(lambda key=key, point=point: book.write({key: point}, 1))
    insist(lambda: distribute(book))
    granted = insist(lambda: book.grant({"count/0": 1, "count/1": 1}))
    assert {task: [o.startpoint.id for o in orders] for task, orders in granted.items()} == {
        "count/0": ["both", "all"],
        "count/1": ["mine"],
    }
    for task, orders in granted.items():
        for order in orders:
            outcome = Outcome(order=order, state="released", generation=1, version=5)
            insist(lambda task=task, outcome=outcome: book.note(task, outcome, 9))
    assert book.states() == []
    assert tries == (1 if at <= 8 else 0)


def test_a_fan_out_is_repeated_if_the_book_changes_meanwhile():
    store = Contested()
    book, other = StartpointBook(store, "shop"), StartpointBook(store, "shop")
    book.write({VIEWS: oldest("old")}, 1)
    store.before = lambda: other.write({VIEWS: oldest("new")}, 2)
    assert [state.startpoint.id for state in distribute(book).ordered] == ["new"]
    assert [state.startpoint.id for state in book.states()] == ["new"]


def test_a_fan_out_that_changes_nothing_writes_nothing(store, book):
    assert not distribute(book)
    assert store.scan("startpoints/shop") == {}
