"""Startpoints, cuts and foundings, as conversations between the machine and its host."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from machine_host import A0, Host, checkpoint, restore, user
from test_machine import COMMIT, FINAL, START, introduced

from headrace.core.frame import END_VERSION, Kind
from headrace.protocol.instructions import Keep, Verdict
from headrace.protocol.machine import TaskOrders
from headrace.protocol.record import CommitRecord, OutputSeq, SourceEntry, decode_commit
from headrace.systems.startpoints import Order, StartpointOldest

ENTRY = SourceEntry(stream="log.s", partition=0, offset=7)


def order(id_: str, partition: int = 0) -> Order:
    return Order(stream="log.s", partition=partition, startpoint=StartpointOldest(id=id_, created_ms=0))


def record(*sources: SourceEntry) -> CommitRecord:
    return CommitRecord(generation=1, version=5, next_version=6, sources=sources)


# -- startpoints


def test_an_order_is_due_until_a_record_names_it():
    orders = TaskOrders()
    orders.begin([order("a"), order("b", 1)])
    orders.adopt(record(SourceEntry(stream="log.s", partition=0, offset=7, startpoint="a")))
    assert (orders.due, orders.covered) == ((order("b", 1),), (order("a"),))


@pytest.mark.parametrize("known", ["b", None])
def test_it_is_due_if_the_record_names_another_or_none(known):
    orders = TaskOrders()
    orders.begin([order("a")])
    entry = ENTRY if known is None else SourceEntry(stream="log.s", partition=0, offset=7, startpoint=known)
    orders.adopt(record(entry))
    assert orders.due == (order("a"),)


def test_every_later_record_names_the_last_one_applied():
    orders = TaskOrders()
    orders.begin([order("a")])
    orders.adopt(None)
    (entry,) = orders.stamp([ENTRY])
    assert entry.startpoint == "a"
    orders.committed()
    assert (orders.due, orders.covered) == ((), (order("a"),))
    orders.released()
    assert orders.covered == ()
    again = TaskOrders()
    again.begin([])
    again.adopt(record(entry))
    assert again.stamp([ENTRY]) == (entry,)
    again.begin([order("b")])
    again.adopt(record(entry))
    assert [one.startpoint for one in again.stamp([ENTRY])] == ["b"]


def test_positions_without_a_startpoint_stay_as_they_are():
    orders = TaskOrders()
    orders.begin([order("a")])
    orders.adopt(None)
    other = SourceEntry(stream="log.s", partition=1, offset=7)
    assert orders.stamp([other]) == (other,)


def ordered(source: Host, *orders: Order) -> Host:
    source.orders, source.sources = orders, (ENTRY,)
    return source


def test_an_order_is_released_after_the_commit_that_covers_it(source):
    ordered(source, order("a")).run()
    assert source.take() == START
    assert source.resumed.orders == (order("a"),)
    source.machine.tick(5_000)
    source.run()
    assert source.take() == [*COMMIT, "ReleaseOrders"]
    source.machine.tick(6_000)
    source.run()
    assert source.take() == COMMIT


def test_what_a_commit_covers_is_released_later_if_the_task_died_before(source):
    ordered(source, order("a")).run()
    source.machine.tick(5_000)
    source.run(until="ReleaseOrders")
    again = ordered(Host(source.config, source.changelog, source.local, writer="w2", generations=iter([2])), order("a"))
    again.run()
    assert again.resumed.orders == ()
    again.take()
    again.machine.tick(9_000)
    again.run()
    assert again.take() == [*COMMIT, "ReleaseOrders"]


def test_a_commit_that_does_not_count_covers_nothing(source):
    ordered(source, order("a")).run()
    source.machine.tick(5_000)
    source.run(until="AppendCommit")
    again = ordered(Host(source.config, source.changelog, source.local, writer="w2", generations=iter([2])), order("a"))
    again.run()
    assert again.resumed.orders == (order("a"),)


def test_a_task_starts_over_right_after_a_commit(source):
    source.run()
    source.take()
    source.machine.restart_soon()
    source.run()
    assert source.take() == []
    source.machine.tick(5_000)
    source.run()
    assert source.take() == [*COMMIT, *START]
    assert source.machine.generation == 2
    source.machine.tick(6_000)
    source.run()
    assert source.take() == COMMIT


# -- cuts


def test_a_timer_driven_task_does_not_pass_over_a_cut(source):
    source.machine.tick(5_000)
    source.run()
    source.machine.cut(8_000)
    source.machine.tick(20_000)
    source.take()
    source.run()
    assert source.take() == [*COMMIT, *COMMIT, "Keep"]
    assert (source.machine.version, source.machine.label) == (8_000, 20_000)
    assert source.machine.cut_kept
    assert not source.machine.cut_missed


def test_without_a_cut_it_does(source):
    source.machine.tick(5_000)
    source.run()
    source.machine.tick(20_000)
    source.take()
    source.run()
    assert source.take() == COMMIT
    assert source.machine.label == 20_000


def test_a_command_driven_task_commits_the_cut_before_what_is_closed(reader):
    introduced(reader)
    reader.machine.cut(10)
    reader.run()
    reader.receive(A0, user(1, 1, 2, 4))
    reader.run()
    for producer, seq in ((1, 3), (2, 2)):
        reader.receive(A0, *checkpoint(producer, 1, 30, seq))
        reader.run()
    assert isinstance(reader.kept, Keep)
    assert reader.kept.version == 10
    assert reader.machine.version == 30


def test_frames_beyond_the_cut_wait_until_it_is_committed(reader):
    introduced(reader)
    reader.machine.cut(10)
    reader.run()
    assert reader.receive(A0, user(1, 1, 2, 12)) is Verdict.BUFFER
    reader.run()
    reader.receive(A0, *checkpoint(2, 1, 30, 2))
    reader.run()
    done = reader.take()
    assert done.index("WriteLocal") < done.index("Keep") < done.index("Feed")
    assert reader.kept.version == 10
    assert reader.machine.version == 11


def test_a_cut_that_is_over_is_missed(source):
    source.machine.tick(5_000)
    source.run()
    source.machine.tick(9_000)
    source.run()
    source.machine.cut(4_000)
    source.run()
    assert source.machine.cut_missed
    source.machine.cut(None)
    assert not source.machine.cut_missed


def test_a_cut_is_kept_after_a_restart_at_it(source):
    source.machine.tick(5_000)
    source.run()
    source.machine.cut(8_000)
    source.machine.tick(8_500)
    source.run()
    source.machine.tick(9_000)
    source.run(until="Keep")
    again = Host(source.config, source.changelog, source.local, writer="w2", generations=iter([2]))
    again.machine.cut(8_000)
    again.machine.tick(9_500)
    again.run()
    assert "Keep" in again.done
    assert again.kept.version == 8_000


# -- foundings

FOUNDED = CommitRecord(
    generation=0,
    version=40_000,
    next_version=41_000,
    outputs=(OutputSeq(stream="log.a", partition=0, seq=12, generation=3),),
    sources=(ENTRY,),
)


def test_a_task_commits_what_it_takes_over_and_goes_on_from_there(source):
    founded = Host(replace(source.config, founded=FOUNDED), generations=iter([4]))
    founded.machine.tick(5_000)
    founded.run()
    writes = ["AppendChanges", "AppendCommit", "ReadChangelog", "WriteLocal"]
    assert founded.take() == [*START[:3], "Found", *writes, *START[3:]]
    body = next(body for header, body in founded.changelog if header.kind is Kind.COMMIT)
    assert decode_commit(body) == replace_generation(FOUNDED, 4)
    assert founded.resumed.record == replace_generation(FOUNDED, 4)
    assert (founded.machine.version, founded.machine.label) == (40_000, 41_000)
    (first, _) = founded.sent
    assert (first[1].seq, first[2].seq, first[2].committed_by) == (13, 12, 3)


def replace_generation(founded: CommitRecord, generation: int) -> CommitRecord:
    return msgspec.structs.replace(founded, generation=generation)


def test_it_takes_over_once(source):
    founded = Host(replace(source.config, founded=FOUNDED), generations=iter([4]))
    founded.run()
    again = Host(founded.config, founded.changelog, founded.local, writer="w2", generations=iter([5]))
    again.run()
    assert again.take() == START


@pytest.mark.parametrize("until", ["Found", "AppendChanges", "AppendCommit"])
def test_a_death_before_the_commit_repeats_it(source, until):
    founded = Host(replace(source.config, founded=FOUNDED), generations=iter([4]))
    founded.run(until=until)
    again = Host(founded.config, founded.changelog, founded.local, writer="w2", generations=iter([5]))
    again.run()
    assert "Found" in again.done
    assert again.machine.version == 40_000


def test_a_task_that_had_ended_is_over_at_once(source):
    ended = msgspec.structs.replace(FOUNDED, next_version=END_VERSION, end_of_stream_sent=True)
    founded = Host(replace(source.config, founded=ended), generations=iter([4]))
    founded.run()
    assert founded.done[-3:] == FINAL[-3:]


def test_a_reader_begins_with_new_upstream_tasks(reader):
    founded = Host(replace(reader.config, founded=replace_generation(FOUNDED, 0)), generations=iter([4]))
    founded.run()
    for producer in (1, 2):
        founded.receive(A0, *restore(producer, 4, 40_000, 0, 41_000))
        founded.run()
    assert founded.machine.version == 40_999
    assert founded.receive(A0, user(1, 4, 2, 41_000)) is Verdict.PROCESS
