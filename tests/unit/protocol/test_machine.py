"""Start, commit, end and rollback of one task, as conversations between the machine and its host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from machine_host import A0, END, A, B, Host, checkpoint, restore, user

from headrace.core.errors import FencedError, ProtocolError
from headrace.core.frame import UNVERSIONED, Header, Kind
from headrace.protocol.instructions import AppendCommit, FlushOutputs, Verdict
from headrace.protocol.machine import MachineConfig
from headrace.protocol.protocol import Phase
from headrace.protocol.record import encode_record

START = ["TakeGeneration", "AppendAbort", "ReadChangelog", "Resume", "SendControl", "ScanAhead"]
COMMIT = ["FlushOutputs", "AppendChanges", "AppendCommit", "ReadChangelog", "WriteLocal", "SendControl", "Report"]
FINAL = [*COMMIT[:-1], "FlushOutputs", "Report", "End"]


def introduced(host: Host, following: int = 0) -> Host:
    """The reader after the first restore of both producers."""
    host.run()
    for producer in (1, 2):
        host.receive(A0, *restore(producer, 1, -1, 0, following))
        host.run()
    host.take()
    return host


def test_a_first_start_fences_and_introduces_itself(source):
    source.machine.tick(5_999)
    source.run()
    assert source.take() == START
    assert [(p, h.kind, h.generation, h.version, h.seq, m.seq, m.next_version) for p, h, m in source.sent] == [
        (0, Kind.RESTORE, 1, -1, 1, 0, 5_000),
        (1, Kind.RESTORE, 1, -1, 1, 0, 5_000),
    ]
    assert [h.kind for h, _ in source.changelog] == [Kind.ABORT]


def test_a_timer_driven_task_commits_when_the_clock_passes_its_label_and_not_before(source):
    source.machine.tick(5_000)
    source.run()
    source.take()
    source.machine.tick(5_999)
    source.run()
    assert source.take() == []
    source.machine.tick(8_000)
    source.run()
    assert source.take() == COMMIT
    (_, header, message) = source.sent[-1]
    assert (header.kind, header.version, message.next_version) == (Kind.CHECKPOINT, 5_000, 8_000)
    assert source.machine.label == 8_000


def test_labels_do_not_follow_the_clock_between_commits(source):
    source.machine.tick(5_000)
    source.run()
    source.machine.tick(9_000)
    assert source.machine.stamp(A, 0).version == 5_000


def test_a_clock_that_falls_behind_holds_back_no_version(source):
    source.machine.tick(5_000)
    source.run()
    source.machine.tick(6_000)
    source.run()
    source.machine.tick(1_000)
    source.machine.abandon()
    source.run()
    assert source.machine.label == 6_000


def test_a_longer_interval_after_a_restart_keeps_versions_coming(source):
    source.machine.tick(5_000)
    source.run()
    longer = replace(source.config, interval_ms=60_000)
    again = Host(longer, source.changelog, writer="w2", generations=iter([2]))
    again.machine.tick(5_999)
    again.run()
    again.take()
    again.machine.tick(120_000)
    again.run()
    assert again.take() == COMMIT


def test_a_command_driven_task_commits_when_all_parents_have_closed(reader):
    introduced(reader)
    assert reader.receive(A0, user(1, 1, 2)) is Verdict.PROCESS
    assert reader.receive(A0, *checkpoint(1, 1, 0, 3)) is Verdict.TAKEN
    reader.run()
    assert reader.take() == []
    assert reader.machine.waiting_for() == [(A0, 2)]
    reader.receive(A0, *checkpoint(2, 1, 0, 2))
    reader.run()
    assert reader.take() == COMMIT
    assert reader.machine.version == 0


def test_what_leaves_before_outputs_are_flushed_belongs_to_the_version_that_is_committed(reader):
    """The results of a step that waited for answers until then."""
    introduced(reader)
    reader.receive(A0, user(1, 1, 2))
    reader.receive(A0, *checkpoint(1, 1, 0, 3))
    reader.receive(A0, *checkpoint(2, 1, 0, 2))
    reader.run(until="FlushOutputs")
    stamped = reader.machine.stamp(B, 0)
    assert stamped.version == 0
    reader.machine.performed()
    with pytest.raises(ProtocolError, match="stamp was called while appending"):
        reader.machine.stamp(B, 0)
    reader.run(until="ReadChangelog")
    (output,) = (one for one in reader.machine._sealed[1].outputs if one.partition == 0)
    assert output.seq == stamped.seq


def test_early_frames_are_processed_before_and_after_the_commit_in_the_order_of_labels(reader):
    introduced(reader)
    for seq, label in ((2, 3), (3, 7), (4, 8)):
        assert reader.receive(A0, user(1, 1, seq, label)) is Verdict.BUFFER
    reader.receive(A0, *checkpoint(2, 1, 6, 2))
    fed = []
    while (step := reader.run(until="Feed")) is not None:
        fed.append((step.label, reader.machine.version))
        reader.machine.performed()
    assert fed == [(3, -1), (7, 6)]
    assert reader.machine.version == 6


def test_the_record_covers_the_prefix_before_the_first_early_arrival(reader):
    introduced(reader)
    reader.receive(A0, user(1, 1, 2, 0))
    reader.receive(A0, user(1, 1, 3, 1))
    reader.receive(A0, *checkpoint(2, 1, 0, 2))
    reader.run(until="ReadChangelog")
    record = reader.machine._sealed[1]
    (entry,) = record.inputs
    assert [(p.producer, p.generation, p.seq, p.version, p.resume_offset) for p in entry.parents] == [
        (1, 1, 2, 0, 3),
        (2, 1, 2, 0, 5),
    ]
    assert entry.offset == 3


def test_a_restart_continues_from_the_record(reader):
    introduced(reader)
    reader.receive(A0, user(1, 1, 2))
    reader.machine.stamp(B, 0)
    reader.receive(A0, *checkpoint(1, 1, 0, 3))
    reader.receive(A0, *checkpoint(2, 1, 0, 2))
    reader.run()
    reader.machine.stamp(B, 0)
    again = Host(reader.config, reader.changelog, reader.local, writer="w2", generations=iter([2]))
    again.run()
    (_, header, message), *_ = again.sent
    assert (header.generation, header.seq, message.seq, message.next_version, message.committed_by) == (2, 3, 2, 1, 1)
    assert again.receive(A0, user(1, 1, 3)) is Verdict.DROP
    assert again.receive(A0, user(1, 1, 4, 1)) is Verdict.PROCESS


def test_a_rollback_is_a_restart_in_place_that_remembers_the_fence(reader):
    introduced(reader)
    assert reader.receive(A0, user(1, 1, 2)) is Verdict.PROCESS
    assert reader.receive(A0, *restore(1, 2, -1, 0, 0)) is Verdict.ROLLBACK
    reader.run()
    assert reader.take() == START
    for header, control in ((user(1, 1, 1), None), (user(1, 1, 2), None)):
        assert reader.receive(A0, header, control) is Verdict.DROP
    assert reader.receive(A0, *restore(1, 2, -1, 0, 0)) is Verdict.TAKEN
    assert reader.machine.rollbacks == 1


def test_a_newer_generation_in_the_changelog_stops_a_start_and_a_commit(source):
    source.machine.tick(0)
    source.run()
    rival = Host(source.config, source.changelog, writer="x", generations=iter([3]))
    rival.run()
    source.machine.tick(10_000)
    stop = source.run()
    with pytest.raises(FencedError, match="generation 1 was replaced by generation 3"):
        raise stop.error
    assert source.machine.phase is Phase.STOPPED
    assert not any(h.kind is Kind.CHECKPOINT for _, h, _ in source.sent)
    rival.machine.tick(10_000)
    rival.run()
    assert rival.machine.version == 0
    late = Host(source.config, source.changelog, writer="y", generations=iter([2]))
    assert isinstance(late.run().error, FencedError)


def test_a_commit_before_the_fence_counts_and_is_adopted(source):
    source.machine.tick(0)
    source.run()
    source.machine.tick(10_000)
    source.run(until="ReadChangelog")
    again = Host(source.config, source.changelog, writer="w2", generations=iter([2]))
    again.run()
    assert again.machine.version == 0
    assert source.run() is None
    assert source.machine.version == 0
    source.machine.tick(20_000)
    assert isinstance(source.run().error, FencedError)


def test_two_writers_of_one_generation_stop(source):
    source.run()
    rival = Host(source.config, source.changelog, writer="x", generations=iter([1]))
    stop = rival.run()
    with pytest.raises(ProtocolError, match="was issued twice, also to writer w"):
        raise stop.error
    source.machine.tick(10_000)
    with pytest.raises(ProtocolError, match="was issued twice, also to writer x"):
        raise source.run().error


def test_a_source_task_ends(source):
    source.run()
    source.take()
    source.machine.inputs_ended()
    source.run()
    assert source.take() == ["Finish", *FINAL]
    (_, header, message) = source.sent[-1]
    assert (header.kind, message.next_version) == (Kind.CHECKPOINT, END)
    again = Host(source.config, source.changelog, source.local, writer="w2", generations=iter([2]))
    again.run()
    assert again.take() == [*START[:-1], "FlushOutputs", "Report", "End"]
    assert [(h.kind, m.next_version) for _, h, m in again.sent] == [(Kind.RESTORE, END)] * 2


def test_the_final_version_is_not_below_the_parents(reader):
    introduced(reader)
    reader.receive(A0, Header(Kind.END_OF_STREAM, 1, 1, 0, 2))
    reader.receive(A0, Header(Kind.END_OF_STREAM, 2, 1, 0, 2))
    reader.machine.inputs_ended()
    reader.run()
    assert reader.take() == ["Finish"]
    reader.receive(A0, *checkpoint(1, 1, 70, 3, END))
    reader.receive(A0, *checkpoint(2, 1, 50, 3, END))
    reader.run()
    assert reader.take() == FINAL
    assert reader.machine.version == 70


def test_a_task_is_timer_driven_once_its_parents_have_ended(reader):
    introduced(reader)
    reader.receive(A0, *checkpoint(1, 1, 4, 2, END))
    reader.receive(A0, *checkpoint(2, 1, 4, 2, END))
    reader.machine.tick(9_000)
    reader.run()
    assert reader.take() == COMMIT
    assert (reader.machine.version, reader.machine.label) == (0, 9_000)
    again = Host(reader.config, reader.changelog, reader.local, writer="w2", generations=iter([2]))
    again.machine.tick(20_000)
    again.run()
    assert again.machine.label == 20_000


def test_a_task_that_was_timer_driven_waits_for_the_label_that_it_has_announced(reader):
    """Its parents were at-least-once when it started, and announce labels below its own."""

    def hear(announced):
        for producer in (1, 2):
            reader.receive(A0, *announced(producer))
            reader.run()

    reader.run()
    hear(lambda producer: restore(producer, 1, -1, 0, UNVERSIONED))
    reader.machine.tick(9_000)
    reader.run()
    assert (reader.machine.version, reader.machine.label) == (0, 9_000)
    hear(lambda producer: restore(producer, 2, UNVERSIONED, 1, 3_000))
    assert (reader.machine.version, reader.machine.label) == (0, 9_000)
    hear(lambda producer: checkpoint(producer, 2, 9_500, 3))
    assert (reader.machine.version, reader.machine.label) == (9_500, 9_501)


def test_without_barriers_nothing_is_labelled_held_back_or_rolled_back(reader):
    config = MachineConfig(**{f: getattr(reader.config, f) for f in CONFIG}, exactly_once=False)
    host = Host(config)
    host.run()
    assert host.sent[0][1].version == host.sent[0][2].next_version == UNVERSIONED
    host.receive(A0, *restore(1, 1, -1, 0, UNVERSIONED))
    host.run()
    assert host.receive(A0, user(1, 1, 2, UNVERSIONED)) is Verdict.PROCESS
    assert host.receive(A0, *restore(1, 2, UNVERSIONED, 0, UNVERSIONED)) is Verdict.TAKEN
    host.run()
    host.take()
    host.machine.tick(5_000)
    host.run()
    assert host.take() == COMMIT
    assert [h.kind for _, h, _ in host.sent] == [Kind.RESTORE]


@pytest.mark.parametrize("before", [True, False])
def test_the_guarantee_may_change_between_two_starts(reader, before):
    next_version = 0 if before else UNVERSIONED
    host = Host(replace(reader.config, exactly_once=before))
    host.run()
    for producer in (1, 2):
        host.receive(A0, *restore(producer, 1, UNVERSIONED if not before else -1, 0, next_version))
        host.run()
    for producer in (1, 2) if before else ():
        host.receive(A0, *checkpoint(producer, 1, 4, 2, 5))
        host.run()
    host.machine.tick(5_000)
    host.run()
    assert host.machine.version >= 0
    again = Host(replace(host.config, exactly_once=not before), host.changelog, writer="w2", generations=iter([2]))
    again.machine.tick(20_000)
    again.run()
    again.take()
    again.machine.tick(40_000)
    again.run()
    assert again.take() == COMMIT


CONFIG = ("task", "task_count", "producer", "inputs", "outputs", "interval_ms")


def test_unversioned_parents_never_roll_back_or_hold_up_an_exactly_once_task(reader):
    reader.run()
    for producer in (1, 2):
        reader.receive(A0, *restore(producer, 1, UNVERSIONED, 0, UNVERSIONED))
        reader.run()
    assert reader.receive(A0, user(1, 1, 2, UNVERSIONED)) is Verdict.PROCESS
    assert reader.receive(A0, *restore(1, 2, UNVERSIONED, 0, UNVERSIONED)) is Verdict.TAKEN
    assert reader.machine.waiting_for() == []


def test_giving_up_in_mid_commit_asks_for_a_new_generation_and_adopts_what_was_written(source):
    source.run()
    source.machine.tick(10_000)
    assert isinstance(source.run(until="AppendCommit"), AppendCommit)
    header, record = source.machine.seal()
    source.append(header, encode_record(record))
    source.machine.abandon()
    source.run()
    assert (source.machine.generation, source.machine.version) == (2, 0)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda machine: machine.performed(), "there is no instruction to perform"),
        (lambda machine: machine.start(1, None), "generation 1 can't start while generation 1 is running"),
        (lambda machine: machine.seal(), "seal was called while running"),
        (lambda machine: machine.rebase(None), "rebase was called while running"),
    ],
)
def test_a_call_of_the_host_out_of_turn_is_refused(source, act, says):
    source.run()
    with pytest.raises(ProtocolError, match=says):
        act(source.machine)


def test_no_frame_is_received_during_a_commit(reader):
    introduced(reader)
    reader.receive(A0, *checkpoint(1, 1, 0, 2))
    reader.receive(A0, *checkpoint(2, 1, 0, 2))
    with pytest.raises(ProtocolError, match="before the instruction was performed"):
        reader.receive(A0, user(1, 1, 3, 1))
    assert isinstance(reader.run(until="FlushOutputs"), FlushOutputs)
    with pytest.raises(ProtocolError, match="flushing"):
        reader.receive(A0, user(1, 1, 3, 1))


# -- upstream tasks that are late


def late(host: Host, *frames) -> Host:
    """The reader after the first restores, when producer 1 has closed 30 and producer 2 has sent only ``frames``."""
    introduced(host)
    for header, control in frames:
        host.receive(A0, header, control)
        host.run()
    host.receive(A0, user(1, 1, 2))
    host.receive(A0, *checkpoint(1, 1, 30, 3))
    host.run()
    assert host.take() == []
    return host


def test_what_others_have_closed_is_committed_without_a_task_that_is_late(reader):
    late(reader)
    assert reader.machine.lagging
    assert reader.machine.set_aside()
    reader.run()
    assert (reader.take(), reader.machine.version) == (COMMIT, 30)
    assert not reader.machine.lagging
    assert not reader.machine.whole
    assert reader.machine.waiting_for() == [(A0, 1), (A0, 2)]


def test_what_a_late_task_has_not_committed_is_undone_and_held(reader):
    late(reader, (user(2, 1, 2), None))
    assert reader.machine.set_aside()
    reader.run()
    assert reader.take() == START
    assert reader.machine.rollbacks == 1
    introduced(reader)
    assert reader.receive(A0, user(2, 1, 2)) is Verdict.BUFFER
    reader.receive(A0, user(1, 1, 2))
    reader.receive(A0, *checkpoint(1, 1, 30, 3))
    reader.run()
    assert (reader.take(), reader.machine.version) == (COMMIT, 30)
    (entry,) = reader.machine.record.inputs
    assert [(parent.producer, parent.seq, parent.version) for parent in entry.parents] == [(1, 3, 30), (2, 1, -1)]
    # It comes back, and says that it had committed that.
    reader.receive(A0, *restore(2, 2, 0, 2, 50))
    reader.run()
    assert reader.take() == ["Feed"]
    assert reader.receive(A0, user(2, 2, 4, 50)) is Verdict.BUFFER  # as of everybody else: 50 is early
    reader.receive(A0, *checkpoint(1, 1, 60, 4))
    reader.run()
    assert (reader.take(), reader.machine.version, reader.machine.whole) == ([*COMMIT, "Feed"], 49, True)


def test_a_late_task_that_has_not_caught_up_yet_is_heard_but_not_waited_for(reader):
    late(reader)
    reader.machine.set_aside()
    reader.run()
    assert reader.receive(A0, user(2, 1, 2, 7)) is Verdict.BUFFER
    reader.run()
    reader.take()
    reader.receive(A0, *checkpoint(2, 1, 7, 3))
    reader.run()
    assert reader.take() == ["Feed"]
    assert reader.receive(A0, user(2, 1, 4, 8)) is Verdict.BUFFER
    reader.receive(A0, *checkpoint(1, 1, 40, 4))
    reader.run()
    assert (reader.take(), reader.machine.version) == (COMMIT, 40)
    assert reader.receive(A0, *checkpoint(2, 1, 40, 5)) is Verdict.TAKEN
    reader.run()
    assert reader.take() == ["Feed"]
    assert reader.receive(A0, user(2, 1, 6, 41)) is Verdict.PROCESS
    reader.receive(A0, *checkpoint(1, 1, 41, 5))
    reader.run()
    assert reader.take() == []  # it is awaited again


def test_a_restart_knows_from_the_record_who_was_set_aside(reader):
    late(reader)
    reader.machine.set_aside()
    reader.run()
    again = Host(reader.config, reader.changelog, writer="w2", generations=iter([2]))
    again.run()
    again.take()
    again.receive(A0, *checkpoint(1, 1, 40, 4))
    again.run()
    assert (again.take(), again.machine.version) == (COMMIT, 40)
    assert again.receive(A0, user(2, 1, 2, 7)) is Verdict.BUFFER


def test_nobody_is_set_aside_if_that_gains_nothing(reader):
    introduced(reader)
    assert not reader.machine.lagging
    assert not reader.machine.set_aside()
    reader.run()
    assert reader.take() == []


def test_when_the_others_have_ended_what_they_sent_is_committed(reader):
    introduced(reader)
    reader.receive(A0, user(1, 1, 2, 8))
    reader.receive(A0, *checkpoint(1, 1, 8, 3, END))
    reader.run()
    reader.take()
    assert reader.machine.set_aside()
    reader.run()
    assert (reader.take(), reader.machine.version) == (["Feed", *COMMIT], 8)


def test_a_cut_waits_for_those_that_are_late(reader):
    reader.machine.cut(20)
    late(reader)
    reader.machine.set_aside()
    reader.run()
    assert (reader.take(), reader.machine.version) == (COMMIT, 19)
    reader.receive(A0, *checkpoint(2, 1, 30, 2))
    reader.run()
    assert (reader.machine.version, reader.kept.version) == (30, 20)


def test_a_cut_that_is_committed_without_one_is_missed(reader):
    late(reader)
    reader.machine.set_aside()
    reader.run()
    reader.machine.cut(30)
    reader.run()
    assert reader.kept is None
    assert reader.machine.cut_missed
