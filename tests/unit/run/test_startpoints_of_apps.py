"""Startpoints of an app that runs, or doesn't, on the embedded log: each kind, each way, and every wrong request.

Where the paragraphs of the proposal (seed 002) are tested:

- Goals, "simple and generic interface", "per SSP across all tasks, or per task": here;
  ``operate/cli/test_cli_startpoint.py``; over HTTP for tools on top in ``coordinator/test_startpoints_over_http.py``.
  "Various offset types": here, by kind.
- Non-goals, state isn't moved: ``kit/test_harness_startpoints.py``, windows that have closed stay closed.
- Startpoint takes precedence over checkpoint: here, by kind; on real processes in
  ``tests/local/test_startpoints_first_offsets.py``, which is the proposal's test plan.
- Workflow, loading: fan-out, keys with a task aren't overwritten: the table of ``coordinator/test_fan_out.py``.
- Workflow, committing, "removed at the first checkpoint commit": ``life/test_startpoint_book.py``, the life of one;
  ``kit/test_harness_startpoints.py``, with restarts before and after the commit.
- Startpoint models, StartpointCustom as JSON, creation timestamp: ``life/test_startpoint_book.py``; here.
- StartpointVisitor, "not supported" by a system: ``systems/test_positions.py``, ``test_startpoints_in_files.py``.
- StartpointManager, write, read, delete, both keys: ``life/test_startpoint_book.py``. Unlike the proposal's, its
  fan-out is atomic: there, a fan-out that dies at any write.
- Task count changes: ``coordinator/test_fan_out.py``, orders of tasks that a changed app doesn't have.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest
from startpoint_scene import Scene

import headrace as hr
from headrace.core.errors import DeclarationError, UsageError
from headrace.core.ids import SSP, StreamId
from headrace.systems.log.system import LogSystem


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path / "home")


@pytest.fixture
def ran(scene):
    """The scene after a run over ten messages."""
    scene.write(10)
    scene.rate("EUR", "USD")
    scene.run()
    return scene


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """As ``ran``, for tests that change nothing."""
    scene = Scene(tmp_path_factory.mktemp("once") / "home")
    scene.write(10)
    scene.rate("EUR", "USD")
    scene.run()
    return scene


# -- every kind, at the next start


def test_oldest_reads_everything_again(ran):
    ran.points.set("views", hr.startpoints.oldest())
    assert ran.seen() == list(range(10))
    ran.run()
    assert ran.seen() == sorted([*range(10)] * 2)


def test_upcoming_skips_what_is_there_when_the_app_starts(ran):
    ran.points.set("views", hr.startpoints.upcoming())
    ran.write(5, first=100)
    with ran.running():
        ran.until(ran.caught_up)
        ran.write(2, first=200)
        ran.until(lambda: len(ran.seen()) == 12)
    assert ran.seen() == [*range(10), 200, 201]


def test_an_offset_is_exact(ran):
    before = {one.partition: one.committed for one in ran.points.offsets() if one.input == "views"}
    ran.write(6, first=100)
    ran.run()
    ran.points.set("views", hr.startpoints.offset(before[0]), partition=0)
    answer = ran.points.set("views", hr.startpoints.offset(before[1]), partition=1)
    assert [move.to_offset for move in answer.moves] == [before[1]]
    ran.run()
    assert ran.seen() == sorted([*range(10), *[*range(100, 106)] * 2])


def test_a_time_reads_what_arrived_from_then_on(ran):
    after = ran.write(0)
    ran.until(lambda: ran.write(0) > after + 1)
    ran.write(4, first=100)
    ran.run()
    answer = ran.points.set("views", hr.startpoints.at(after + 1))
    assert sum(move.messages for move in answer.moves) == 4
    ran.run()
    assert ran.seen() == sorted([*range(10), *[*range(100, 104)] * 2])


@dataclass(frozen=True)
class Last(hr.startpoints.CustomStartpoint):
    """The last message only, or from a share of the partition on; raises for a share that makes no sense."""

    kind = "last"
    deep: dict[str, int]

    def offset(self, partition: hr.startpoints.PartitionView) -> int:
        if self.deep["how"] == 0:
            raise ValueError("no such share")
        return partition.oldest if self.deep["how"] == 1 else partition.upcoming


def test_a_kind_of_the_apps_own_is_resolved_by_its_function(ran):
    app = ran.declare(startpoints=[Last])
    points = hr.startpoints.open_startpoints(app)
    answer = points.set("views", Last({"how": 1}), partition=0)
    assert [(move.direction, move.to_offset == move.from_offset) for move in answer.moves] == [("back", False)]
    ran.run(app)
    assert len(ran.seen()) > 10
    (state,) = ran.points.list(done=True)
    assert (state.state, state.startpoint.name, state.startpoint.value) == ("released", "last", {"deep": {"how": 1}})


def test_a_kind_of_the_apps_own_by_name_is_kept_until_the_app_resolves_it(ran):
    app = ran.declare(startpoints=[Last])
    ran.run(app)
    answer = ran.points.set("views", hr.startpoints.custom("last", {"deep": {"how": 1}}), partition=0)
    assert [(move.direction, move.to_offset) for move in answer.moves] == [("unknown", None)]
    assert any("can't be resolved without the app's program" in note for note in answer.notes)
    ran.run(app)
    assert len(ran.seen()) > 10


def test_a_function_that_fails_is_reported_before_anything_is_written(once):
    points = hr.startpoints.open_startpoints(once.declare(startpoints=[Last]))
    with pytest.raises(hr.errors.UserFunctionError, match=r"Last\.offset\(\) .* raised ValueError for log\.views\[0\]"):
        points.set("views", Last({"how": 0}))
    with pytest.raises(UsageError, match="the startpoint 'last' doesn't take"):
        points.set("views", hr.startpoints.custom("last", {"deep": "x"}))
    assert points.list() == []


# -- which keys, which tasks


def test_a_broadcast_input_is_read_again_by_every_task(ran):
    def rates():
        return hr.streams.read_stream("both", home=ran.home).filter(currency="EUR").height

    before = rates()
    assert before == 2
    answer = ran.points.set("rates", hr.startpoints.oldest())
    assert sorted(move.task.rpartition("/")[2] for move in answer.moves) == ["0", "1"]
    assert [state.task for state in answer.written] == [None]
    ran.run()
    assert rates() == 2 * before


def test_with_a_task_one_task_reads_a_broadcast_input_again(ran):
    task = next(one.task for one in ran.points.offsets() if one.input == "rates")
    ran.points.set("rates", hr.startpoints.oldest(), task=task)
    ran.run()
    assert hr.streams.read_stream("both", home=ran.home).filter(currency="EUR").height == 3


def test_the_one_with_a_task_has_precedence(ran):
    task = next(one.task for one in ran.points.offsets() if (one.input, one.partition) == ("views", 0))
    ran.points.set("views", hr.startpoints.upcoming(), partition=0, task=task)
    ran.points.set("views", hr.startpoints.oldest(), partition=0)
    ran.run()
    assert len(ran.seen()) == 10
    assert sorted(state.state for state in ran.points.list(done=True)) == ["released", "replaced"]


def test_a_side_input_can_be_read_again(ran):
    ran.write(3, stream="members")
    ran.run()
    assert ran.points.set("members", hr.startpoints.oldest()).moves
    ran.run()
    assert {state.state for state in ran.points.list(done=True)} == {"released"}


def test_a_startpoint_before_the_first_start_counts_before_the_default(scene):
    scene.write(10)
    points = hr.startpoints.open_startpoints(scene.app)
    answer = points.set("views", hr.startpoints.upcoming())
    assert {(move.direction, move.committed) for move in answer.moves} == {("ahead", False)}
    scene.run()
    assert scene.seen() == []


# -- on a running app


def test_apply_restarts_only_the_tasks_concerned(ran):
    with ran.running():
        ran.until(ran.caught_up)
        before = {task.name: task.generation for task in ran.status().tasks}
        answer = ran.points.set("views", hr.startpoints.oldest(), partition=0, apply=True)
        ran.until(lambda: len(ran.seen()) > 10 and ran.caught_up())
        after = {task.name: task.generation for task in ran.status().tasks}
    moved = {name for name in before if after[name] != before[name]}
    assert moved == set(answer.restarted) == {move.task for move in answer.moves}
    assert len(moved) == 1


def test_without_apply_it_waits_for_the_next_start_and_says_so(ran):
    with ran.running():
        ran.until(ran.caught_up)
        answer = ran.points.set("views", hr.startpoints.oldest())
        assert "it takes effect at the app's next start" in answer.notes
        ran.write(2, first=50)
        ran.until(lambda: len(ran.seen()) == 12)
        assert {state.state for state in ran.points.list()} == {"pending"}
        ran.points.apply()
        ran.until(ran.caught_up)
    assert ran.seen() == sorted([*[*range(10), 50, 51] * 2])


def test_apply_needs_a_running_app(once):
    for apply in (lambda: once.points.set("views", hr.startpoints.oldest(), apply=True), once.points.apply):
        with pytest.raises(
            UsageError, match=r"app 'page-views' isn't running in .*, so a startpoint can't be applied now"
        ):
            apply()
    assert once.points.list() == []


# -- what it shows


def test_a_preview_changes_nothing_and_counts_exactly(ran):
    answer = ran.points.preview("views", hr.startpoints.oldest())
    assert ran.points.list() == []
    assert sum(move.messages for move in answer.moves) == 10
    for move in answer.moves:
        assert (move.direction, move.bytes) == ("back", move.from_offset - move.to_offset)
        assert (move.from_ms, move.to_ms is None) == (None, move.messages == 0)
    ran.write(3, first=70)
    answer = ran.points.preview("views", hr.startpoints.upcoming())
    assert sum(move.messages for move in answer.moves) == 3
    assert {move.direction for move in answer.moves} <= {"ahead", "same"}


def test_offsets_show_where_tasks_are_and_what_there_is(ran):
    early = ran.write(0)
    late = ran.write(4, first=20)
    views = [one for one in ran.points.offsets() if one.input == "views"]
    assert sum(one.lag for one in views) == 4
    for one in views:
        assert one.oldest <= one.committed <= one.newest
        assert one.lag_bytes == one.newest - one.committed
        if one.lag:
            assert early <= one.committed_ms <= one.newest_ms <= late
            assert one.oldest_ms <= one.committed_ms


def test_a_replaced_one_is_named(ran):
    ran.points.set("views", hr.startpoints.oldest(), partition=1)
    answer = ran.points.set("views", hr.startpoints.upcoming(), partition=1)
    assert [type(state.startpoint).__name__ for state in answer.replaced] == ["StartpointOldest"]


def test_each_has_an_id_and_a_time_of_its_own(ran):
    written = ran.points.set("views", hr.startpoints.oldest()).written
    assert len({state.startpoint.id for state in written}) == 2
    assert all(state.startpoint.created_ms > 0 for state in written)


def test_deleted_ones_are_never_applied(ran):
    ran.points.set("views", hr.startpoints.oldest())
    assert len(ran.points.delete("views", partition=0)) == 1
    assert len(ran.points.delete("views")) == 1
    assert ran.points.delete("views") == []
    ran.run()
    assert ran.seen() == list(range(10))


# -- failures


def test_one_that_cant_be_resolved_stops_the_app_and_stays_until_it_is_deleted(ran):
    committed = next(one.committed for one in ran.points.offsets() if (one.input, one.partition) == ("views", 0))
    ran.points.set("views", hr.startpoints.oldest(), partition=1)
    ran.points.set("views", hr.startpoints.offset(32), partition=0)
    trim(ran, 0, committed)
    for _ in range(2):
        with pytest.raises(hr.errors.HeadraceError) as caught:
            ran.app.run(local=True, progress=False)
        assert "can't apply startpoint" in caught.value.message
        assert "headrace startpoint delete page-views" in caught.value.hint
    states = {state.partition: state for state in ran.points.list()}
    assert states[0].state == "failed"
    assert "before the oldest" in states[0].reason
    ran.points.delete("views", partition=0)
    ran.run()


def trim(scene, partition, before):
    LogSystem(scene.home / "streams").admin().trim(SSP(StreamId("log", "views"), partition), before)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (lambda p: p.set("clicks", hr.startpoints.oldest()), "app 'page-views' has no input 'clicks'"),
        (lambda p: p.set("view", hr.startpoints.oldest()), "app 'page-views' has no input 'view'"),
        (lambda p: p.set("by-member", hr.startpoints.oldest()), "'by-member' is an intermediate stream"),
        (lambda p: p.set("seen", hr.startpoints.oldest()), "'seen' is an output of app 'page-views'"),
        (
            lambda p: p.set("page-views-views-changelog", hr.startpoints.oldest()),
            "'page-views-views-changelog' is a changelog",
        ),
        (
            lambda p: p.set("views", hr.startpoints.oldest(), partition=2),
            "has no partition 2; its partitions are 0 to 1",
        ),
        (lambda p: p.set("views", hr.startpoints.oldest(), partition=-1), "has no partition -1"),
        (lambda p: p.set("views", hr.startpoints.oldest(), task="nobody/0"), "task 'nobody/0' .* doesn't read views"),
        (lambda p: p.set("views", hr.startpoints.offset(32)), "has 2 partitions, each with its own offsets"),
        (lambda p: p.set("views", hr.startpoints.offset(10**9), partition=0), "is after the end"),
        (lambda p: p.set("views", hr.startpoints.offset(33), partition=0), "no record begins at offset 33"),
        (lambda p: p.set("views", hr.startpoints.offset(-1), partition=0), "-1 isn't an offset"),
        (lambda p: p.set("views", hr.startpoints.at("2200-01-01T00:00:00Z")), "is in the future"),
        (lambda p: p.set("views", hr.startpoints.at("yesterday")), "'yesterday' isn't a time"),
        (lambda p: p.set("views", hr.startpoints.at(1.5)), "1.5 isn't a time"),
        (lambda p: p.set("views", hr.startpoints.ago(5)), "ago: '5' isn't a duration"),
        (lambda p: p.set("views", hr.startpoints.ago(timedelta(hours=-1))), "below 0 ms"),
        (lambda p: p.set("views", hr.startpoints.custom("nonsense")), "doesn't know positions of the kind 'nonsense'"),
        (lambda p: p.set("views", "oldest"), "'oldest' isn't a startpoint"),
        (lambda p: p.delete("clicks"), "app 'page-views' has no input 'clicks'"),
    ],
)
def test_wrong_requests(once, request_, message):
    with pytest.raises(UsageError, match=message):
        request_(once.points)
    assert once.points.list() == []


def test_a_time_before_the_oldest_message_is_refused_where_messages_are_gone(ran):
    offsets = {one.partition: one for one in ran.points.offsets() if one.input == "views"}
    partition = next(number for number, one in offsets.items() if one.newest_ms is not None)
    early = offsets[partition].oldest_ms - 5
    ran.points.preview("views", hr.startpoints.at(early))  # nothing is gone
    ran.write(4, first=50)
    trim(ran, partition, offsets[partition].committed)
    with pytest.raises(
        hr.errors.TrimmedOffsetError, match=r"has deleted the messages from .*: its oldest one arrived at"
    ):
        ran.points.set("views", hr.startpoints.at(early))
    assert ran.points.list() == []


def test_an_unknown_app(once, tmp_path):
    with pytest.raises(UsageError, match="app 'shop' has never run on"):
        hr.startpoints.open_startpoints("shop", home=once.home).list()
    with pytest.raises(UsageError, match="app 'page-views' has never run on"):
        hr.startpoints.open_startpoints("page-views", home=tmp_path / "elsewhere").offsets()


def test_an_input_that_has_ended(ran):
    for name in ("views", "rates", "members"):
        LogSystem(ran.home / "streams").admin().seal(name)
    ran.app.run(local=True, progress=False)
    with pytest.raises(UsageError, match="has ended: its inputs have, and it has processed them"):
        ran.points.set("views", hr.startpoints.oldest())


def test_kinds_that_an_app_cant_register():
    class Nameless(hr.startpoints.CustomStartpoint):
        def offset(self, partition):
            return 0

    for wrong, message in (
        ([Last({"how": 1})], "isn't a subclass"),
        ([Nameless], "Nameless has no kind"),
        ([Last, Last], "two classes have the kind 'last'"),
    ):
        with pytest.raises(DeclarationError, match=message):
            hr.App("x", startpoints=wrong)
