"""The verdicts on single frames: each row of the table, and the shortcut that most frames take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_host import A0, A1, END, checkpoint, restore, user

from headrace.core.errors import DeploymentError, ProtocolError
from headrace.core.frame import UNVERSIONED, Header, Kind
from headrace.protocol.frame_judge import RULES, FrameJudge
from headrace.protocol.instructions import Forget, Verdict


def frames(receiving, *sequence, ssp=A0):
    """Receive (header, control) pairs at offsets 10 apart, and return the verdicts."""
    out = []
    for header, control in sequence:
        offset = receiving.__dict__.setdefault("next_offset", 0)
        receiving.next_offset = offset + 10
        out.append(receiving.receive(ssp, offset, offset + 10, header, control))
    return out


def plain(*arguments):
    return user(*arguments), None


@pytest.fixture
def one():
    """One partition, and one producer whose first restore has been received."""
    receiving = FrameJudge({A0: (1,)}, barriers=True)
    frames(receiving, restore(1, 1, -1, 0, 0))
    return receiving


def test_the_next_frame_of_the_version_being_made_is_processed(one):
    assert frames(one, plain(1, 1, 2, 0)) == [Verdict.PROCESS]
    assert one.highest_label == 0


def test_pairs_are_compared_as_pairs(one):
    sequence = [plain(1, 1, 2), plain(1, 1, 2), restore(1, 2, 0, 2, 1), plain(1, 1, 4), plain(1, 2, 4, 0)]
    assert [verdict.value for verdict in frames(one, *sequence)] == ["process", "drop", "taken", "drop", "process"]


def refusal(*arguments):
    with pytest.raises(ProtocolError) as caught:
        frames(*arguments)
    return str(caught.value)


def test_what_comes_after_a_gap_is_dropped_until_a_restore_makes_it_void(one):
    sequence = [plain(1, 1, 2), plain(1, 1, 4), plain(1, 1, 5), restore(1, 2, 0, 2, 1), plain(1, 2, 4, 0)]
    assert [verdict.value for verdict in frames(one, *sequence)] == ["process", "drop", "drop", "taken", "process"]


def test_a_gap_that_a_checkpoint_covers_is_an_error(one):
    said = refusal(one, plain(1, 1, 3), checkpoint(1, 1, 0, 4))
    assert "received CHECKPOINT (1, #4) at offset 20 after (1, #1): frames are missing" in said


def test_a_gap_that_a_restore_covers_is_an_error(one):
    said = refusal(one, plain(1, 1, 3), restore(1, 2, 0, 3, 1))
    assert "received RESTORE (2, #4), committed through #3, at offset 20 after (1, #1): frames are missing" in said


def test_a_gap_in_what_is_never_committed_is_an_error(one):
    assert "received USER (1, #3) at offset 10 after (1, #1)" in refusal(one, plain(1, 1, 3, UNVERSIONED))


def test_a_version_of_which_frames_are_missing_is_not_closed(one):
    frames(one, plain(1, 1, 2), plain(1, 1, 4, 5))
    assert one.closed_through == -1


def test_a_generation_whose_restore_is_missing_is_dropped_until_it_is_void(one):
    sequence = [plain(1, 1, 2), plain(1, 2, 4), restore(1, 3, 0, 2, 1)]
    assert [verdict.value for verdict in frames(one, *sequence)] == ["process", "drop", "taken"]


def test_a_restore_above_what_came_is_an_error(one):
    assert "received RESTORE (2, #6), committed through #5, at offset 10" in refusal(one, restore(1, 2, -1, 5, 0))


def test_a_restore_behind_what_was_committed_here_is_an_error(one):
    frames(one, restore(1, 1, -1, 0, 0), plain(1, 1, 2), plain(1, 1, 3), checkpoint(1, 1, 0, 4, 1))
    assert frames(one, restore(1, 2, 0, 3, 1)) == [Verdict.TAKEN]  # nothing is committed here yet
    one.commit(0)
    again = FrameJudge({A0: (1,)}, barriers=True)
    again.load(one.save(0), 0, 0)
    for each in (one, again):
        assert frames(each, restore(1, 3, 0, 3, 1)) == [Verdict.TAKEN]
        said = refusal(each, restore(1, 4, 0, 2, 1))
        assert "generation 4 goes back to #2" in said
        assert "this task has committed input up to #3: commits" in said


def test_what_at_least_once_tasks_repeat_is_no_error():
    relaxed = FrameJudge({A0: (1,)}, barriers=False)
    frames(relaxed, restore(1, 1, -1, 0, UNVERSIONED), plain(1, 1, 2, UNVERSIONED), plain(1, 1, 3, UNVERSIONED))
    relaxed.commit(0)
    assert frames(relaxed, restore(1, 2, -1, 0, UNVERSIONED)) == [Verdict.TAKEN]
    strict = FrameJudge({A0: (1,)}, barriers=True)
    strict.load(relaxed.save(0), 0, 0)
    assert frames(strict, restore(1, 3, -1, 0, 0)) == [Verdict.TAKEN]


def test_a_generation_begins_with_its_restore(one):
    assert "without the restore frame that starts a generation" in refusal(one, checkpoint(1, 2, 0, 2))


def test_an_unknown_producer_is_an_error(one):
    with pytest.raises(DeploymentError, match="written by task number 7, which isn't among the 1 tasks that") as caught:
        frames(one, plain(7, 1, 1))
    assert caught.value.fault == "user"


def test_a_restore_that_undoes_nothing_is_noted(one):
    assert frames(one, plain(1, 1, 2), restore(1, 2, 0, 2, 1)) == [Verdict.PROCESS, Verdict.TAKEN]


def test_a_checkpoint_or_restore_frame_does_not_count_as_processed(one):
    assert frames(one, checkpoint(1, 1, 0, 2), restore(1, 2, 0, 1, 1)) == [Verdict.TAKEN, Verdict.TAKEN]


@pytest.mark.parametrize("kind", [Kind.USER, Kind.WATERMARK, Kind.END_OF_STREAM])
def test_a_restore_that_undoes_something_rolls_back(one, kind):
    assert frames(one, (Header(kind, 1, 1, 0, 2), None), restore(1, 2, -1, 1, 0)) == [
        Verdict.PROCESS,
        Verdict.ROLLBACK,
    ]


def test_after_a_rollback_committed_frames_of_older_generations_pass_and_void_ones_do_not(one):
    frames(one, *[plain(1, 1, seq) for seq in (2, 3, 4)], restore(1, 2, 0, 3, 1))
    one.load((), -1, -1)
    got = frames(one, restore(1, 1, -1, 0, 0), *[plain(1, 1, seq) for seq in (2, 3, 4)], restore(1, 2, 0, 3, 1))
    assert got == [Verdict.TAKEN, Verdict.PROCESS, Verdict.PROCESS, Verdict.DROP, Verdict.TAKEN]


def test_a_fence_concerns_its_own_partition_only():
    receiving = FrameJudge({A0: (1,), A1: (1,)}, barriers=True)
    receiving.learn(A0, *restore(1, 2, -1, 0, 0))
    frames(receiving, restore(1, 1, -1, 0, 0), ssp=A1)
    assert frames(receiving, plain(1, 1, 2), ssp=A1) == [Verdict.PROCESS]
    assert frames(receiving, restore(1, 1, -1, 0, 0)) == [Verdict.DROP]


def test_two_restores_of_one_generation_that_differ_are_an_error(one):
    one.learn(A0, *restore(1, 2, -1, 0, 0))
    with pytest.raises(ProtocolError, match="two restores of generation 2, one to seq 0, one to 1"):
        one.learn(A0, *restore(1, 2, -1, 1, 0))


def test_a_restore_takes_closing_back(one):
    frames(one, checkpoint(1, 1, 4, 2, 9))
    assert one.closed_through == 8
    frames(one, restore(1, 2, 4, 1, 5))
    assert one.closed_through == 4


def test_the_end_closes_everything(one):
    frames(one, checkpoint(1, 1, 4, 2, END))
    assert one.closed_through == END
    assert frames(one, plain(1, 1, 3, 70)) == [Verdict.PROCESS]


def test_a_label_closes_the_version_below(one):
    assert frames(one, plain(1, 1, 2, 5)) == [Verdict.BUFFER]
    assert (one.closed_through, one.lowest_buffered) == (4, 5)


def test_a_restore_forgets_what_is_buffered_and_void(one):
    got = frames(one, plain(1, 1, 2, 5), plain(1, 1, 3, 6), restore(1, 2, 5, 2, 6), restore(1, 3, 5, 2, 6))
    assert got == [Verdict.BUFFER, Verdict.BUFFER, Forget(A0, 1, 2), Verdict.TAKEN]
    (entry,) = one.save(-1)
    assert (entry.parents[0].generation, entry.parents[0].seq, entry.offset) == (1, 1, 10)


def test_labels_do_not_fall_below_what_is_buffered(one):
    assert "the frame at offset 20 is labelled 5, but an earlier frame is labelled 6" in refusal(
        one, plain(1, 1, 2, 6), plain(1, 1, 3, 5)
    )


def test_a_producer_that_has_not_spoken_is_waited_for():
    receiving = FrameJudge({A0: (1, 2)}, barriers=True)
    frames(receiving, restore(1, 1, -1, 0, 9))
    assert receiving.closed_through == -1
    assert receiving.waiting_for() == [(A0, 2)]


def test_control_frames_need_their_message(one):
    assert "CHECKPOINT frame" in refusal(one, (Header(Kind.CHECKPOINT, 1, 1, 0, 2), None))
    assert "a RESTORE frame came without its message" in refusal(one, (Header(Kind.RESTORE, 1, 2, 0, 2), None))


def test_changelog_frames_do_not_belong_in_streams(one):
    assert "a COMMIT frame belongs only in a changelog" in refusal(one, (Header(Kind.COMMIT, 1, 1, 0, 2), None))


def test_every_kind_of_stream_frame_ends_in_a_row_without_condition():
    for kind in (Kind.USER, Kind.WATERMARK, Kind.END_OF_STREAM, Kind.CHECKPOINT, Kind.RESTORE):
        assert [rule for rule in RULES if kind in rule.kinds][-1].when == "always"


class Long(FrameJudge):
    """Without the shortcut."""

    def receive(self, ssp, offset, after, header, control):
        partition = self._inputs[ssp]
        partition.position = after
        parent = partition.parents[header.producer]
        for when, then in self._table[header.kind]:
            if when(parent, header, control):
                return then(parent, header, control, offset)
        raise AssertionError(header)


FRAME = st.one_of(
    st.tuples(st.just("data"), st.integers(0, 2), st.integers(-1, 2), st.integers(-1, 4)),
    st.tuples(st.just("checkpoint"), st.integers(0, 2), st.integers(-1, 2), st.integers(0, 4)),
    st.tuples(st.just("restore"), st.integers(0, 2), st.integers(-2, 1), st.integers(0, 4)),
)


@given(st.lists(FRAME, max_size=30))
def test_the_shortcut_decides_as_the_table_does(script):
    """Any sequence, plausible or not, gets the same verdicts or the same error from both."""
    short, long = FrameJudge({A0: (1,)}, barriers=True), Long({A0: (1,)}, barriers=True)
    for what, newer, off, number in [("restore", 1, 0, 0), *script]:
        (parent,) = short._parents
        generation, seq = parent.generation + (newer if what == "restore" else newer // 2), parent.seq + 1 + off
        if what == "data":
            header, control = user(1, generation, seq, number), None
        elif what == "checkpoint":
            header, control = checkpoint(1, generation, number, seq)
        else:
            header, control = restore(1, generation, number - 1, max(parent.seq + off, 0), number)
        answers = []
        for receiving in (short, long):
            try:
                answers.append(frames(receiving, (header, control)))
            except ProtocolError as error:
                answers.append(str(error))
        assert answers[0] == answers[1]
        assert short.save(9) == long.save(9)
        assert (short.threshold, short.due, short.highest_label) == (long.threshold, long.due, long.highest_label)
        if isinstance(answers[0], str):
            return
        for receiving in (short, long):
            closed, label = receiving.closed_through, receiving.lowest_buffered
            if label is not None and label <= max(closed, receiving.threshold):
                receiving.feed(label)
            if receiving.version < closed < END:
                receiving.commit(closed)
