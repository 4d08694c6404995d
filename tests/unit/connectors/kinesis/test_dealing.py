"""Dealing: each rule by an example, and the counterexamples by which rules were chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from dealing_world import shard_id
from msgspec import structs

from headrace.connectors.kinesis import dealing
from headrace.connectors.kinesis import dealing as moves
from headrace.connectors.kinesis.api import DONE, HASH_END, OLDEST, Position, Shard, reading
from headrace.connectors.kinesis.dealing import Dealing
from headrace.systems.slot_reports import SlotReport

A, B, C, D, E, F = (shard_id(number) for number in range(6))
HALF = HASH_END // 2
TWO = [Shard(A, 0, HALF - 1), Shard(B, HALF, HASH_END - 1)]
SPLIT = [
    Shard(A, 0, HALF - 1, closed=True),
    TWO[1],
    Shard(C, 0, HALF // 2 - 1, (A,)),
    Shard(D, HALF // 2, HALF - 1, (A,)),
]
MERGED = [replace(TWO[0], closed=True), replace(TWO[1], closed=True), Shard(C, 0, HASH_END - 1, (A, B))]


def say(*slots: Mapping[str, str], times: Sequence[int | None] = (), generation: int = 1) -> list[SlotReport]:
    times = times or [None] * len(slots)
    return [SlotReport(generation, shards, time) for shards, time in zip(slots, times, strict=True)]


def deal(shards: Sequence[Shard], *slots: Mapping[str, str], now_ms: int = 0, **options: object) -> list[object]:
    """What a dealer says that knows nothing but these reports."""
    return list(Dealing(len(slots), **options).deal(shards, say(*slots), now_ms))  # type: ignore[arg-type]


# -- where shards begin -----------------------------------------------------------------------------


def test_nothing_is_said_before_every_slot_has_reported() -> None:
    dealer = Dealing(2)
    assert dealer.deal(TWO, [None, SlotReport(1, {})], 0) == [None, None]
    assert dealer.deal(TWO, say({}, {}), 0) == [{A: "READ TRIM_HORIZON"}, {B: "READ TRIM_HORIZON"}]


def test_a_slot_that_is_silent_again_still_has_what_it_reported() -> None:
    dealer = Dealing(2)
    dealer.deal(TWO, say({A: "5"}, {B: "5"}), 0)
    assert dealer.deal(TWO, [None, SlotReport(1, {B: "6"})], 0) == [{}, {}]


def test_an_earlier_generation_has_nothing_more_to_say() -> None:
    dealer = Dealing(1)
    dealer.deal(TWO, say({A: "SHARD_END", B: "5"}, generation=2), 0)
    assert dealer.deal(SPLIT, say({A: "5", B: "5"}, generation=1), 0) == [
        {C: "READ TRIM_HORIZON", D: "READ TRIM_HORIZON"}
    ]


def test_slots_share_what_there_is_and_have_none_if_there_are_too_few() -> None:
    read = "READ TRIM_HORIZON"
    assert deal(TWO, {}, {}, {}) == [{A: read}, {B: read}, {}]
    assert deal(TWO, {}) == [{A: read, B: read}]


def test_shards_begin_where_the_input_starts() -> None:
    assert deal(TWO, {}, start=Position(time_ms=5)) == [{A: "READ AT_TIMESTAMP 5", B: "READ AT_TIMESTAMP 5"}]


def test_children_wait_for_their_parent_and_begin_in_its_slot() -> None:
    read = "READ TRIM_HORIZON"
    assert deal(SPLIT, {}, {}) == [{A: read}, {B: read}]
    assert deal(SPLIT, {A: "7"}, {B: "7"}) == [{}, {}]
    assert deal(SPLIT, {B: "7"}, {A: "SHARD_END"}) == [{}, {C: read, D: read}]


def test_a_merged_shard_waits_for_both_parents() -> None:
    assert deal(MERGED, {A: "7"}, {B: "SHARD_END"}) == [{}, {}]
    assert deal(MERGED, {A: "SHARD_END"}, {B: "SHARD_END"}) == [{C: "READ TRIM_HORIZON"}, {}]


def test_a_merged_shard_belongs_to_the_same_slot_whatever_else_that_has() -> None:
    """Counterexample to: it goes to the parent's slot with fewer shards. Meanwhile that may be the other one."""
    more = [*MERGED, Shard(D, 0, 0), Shard(E, 0, 0), Shard(F, 0, 0)]
    first = deal(more, {A: "SHARD_END"}, {B: "SHARD_END", D: "1", E: "1"})
    later = deal(more, {A: "SHARD_END", D: "1", E: "1", F: "1"}, {B: "SHARD_END"})
    for orders in (first, later):
        assert isinstance(orders[0], dict) and orders[0].get(C) == "READ TRIM_HORIZON"


def test_what_has_descendants_in_slots_is_over() -> None:
    grown = [*SPLIT[:2], replace(SPLIT[2], closed=True), SPLIT[3], Shard(E, 0, HALF // 2 - 1, (C,))]
    assert deal(grown, {E: "1", D: "1"}, {B: "1"}) == [{}, {}]


def test_parents_that_ended_before_the_app_began_bind_nobody() -> None:
    listed = [Shard(E, 0, HALF - 1, (A,)), Shard(F, HALF, HASH_END - 1, (A,))]
    bound = deal(listed, {}, {})
    free = deal(listed, {}, {}, known={A: DONE})
    assert bound == [{E: "READ TRIM_HORIZON", F: "READ TRIM_HORIZON"}, {}]
    assert free == [{E: "READ TRIM_HORIZON"}, {F: "READ TRIM_HORIZON"}]


def test_children_of_an_expired_parent_begin_where_it_may_be_about_to_begin() -> None:
    """Counterexample to: what nobody holds begins by its own id. B's slot may be reading B, and reports it later."""
    listed = [TWO[0], Shard(E, HALF, HASH_END - 1, (B,))]
    assert deal(listed, {A: "1"}, {}) == [{}, {E: "READ TRIM_HORIZON"}]
    assert deal(listed, {A: "1"}, {B: "SHARD_END"}) == [{}, {E: "READ TRIM_HORIZON"}]


def test_children_of_an_expired_shard_wait_while_its_parent_may_have_sent_it_elsewhere() -> None:
    """C may be read in slot 1 already, whose A has ended; what slot 1 commits next will show it."""
    listed = [TWO[1], Shard(D, 0, HALF // 2, (A,)), Shard(F, HALF // 2, HALF - 1, (C,))]
    read = "READ TRIM_HORIZON"
    assert deal(listed, {B: "1"}, {A: "SHARD_END"}) == [{}, {D: read}]
    assert deal(listed, {B: "1"}, {A: "SHARD_END", D: "1"}) == [{}, {A: "FORGET"}]
    assert deal(listed, {B: "1"}, {D: "1"}) == [{F: read}, {}]


def test_one_lost_parent_of_a_merge_holds_it_up_no_longer_than_the_other() -> None:
    merged = [Shard(C, 0, HASH_END - 1, (A, B))]
    assert deal(merged, {}, {B: "SHARD_END"}) == [{C: "READ TRIM_HORIZON"}, {}]


def test_another_application_is_gone_on_from() -> None:
    known = {A: DONE, C: reading(Position(40)), D: reading(OLDEST), B: reading(Position(7, 1))}
    assert deal(SPLIT, {}, {}, known=known) == [{C: "READ 40"}, {B: "READ 7 1", D: "READ TRIM_HORIZON"}]
    held = {A: reading(Position(9)), C: reading(OLDEST), D: reading(OLDEST), B: DONE}
    assert deal(SPLIT, {}, {}, known=held) == [{A: "READ 9"}, {}], "its children's leases were created before its end"


# -- lists that are out of date ------------------------------------------------------------------------


def test_a_list_that_is_older_than_the_reports_is_not_used() -> None:
    """Counterexample to: what is listed and held by nobody is new. A is done, and only its children are held."""
    assert deal(TWO, {B: "1"}, {C: "1", D: "1"}) == [None, None]
    assert deal(TWO, {B: "RELEASED 1 5"}, {C: "1", D: "1"}) == [None, {B: "READ 5"}], "this needs no list"


def test_an_empty_list_is_out_of_date() -> None:
    assert deal([], {A: "1"}) == [None]
    assert deal([], {}) == [{}]


# -- ends ------------------------------------------------------------------------------------------------


def test_a_shard_that_has_ended_is_kept_until_all_children_are_held() -> None:
    assert deal(SPLIT, {A: "SHARD_END", C: "1"}, {B: "1"}) == [{D: "READ TRIM_HORIZON"}, {}]
    assert deal(SPLIT, {A: "SHARD_END", C: "1", D: "EXPECTED"}, {B: "1"})[0] == {D: "READ TRIM_HORIZON"}
    assert deal(SPLIT, {A: "SHARD_END", C: "1"}, {B: "1", D: "1"}) == [{A: "FORGET"}, {}]


def test_a_shard_that_has_ended_without_children_is_kept() -> None:
    ended = [replace(TWO[0], closed=True), TWO[1]]
    assert deal(ended, {A: "SHARD_END"}, {B: "1"}) == [{}, {}]


def test_a_shard_that_has_expired_with_its_children_is_dropped() -> None:
    left = [TWO[1], Shard(F, 0, HALF - 1, (E,))]
    assert deal(left, {A: "SHARD_END"}, {B: "1"}) == [{A: "FORGET"}, {}]
    assert deal(left, {}, {B: "1"}) == [{F: "READ TRIM_HORIZON"}, {}]


def test_what_has_ended_is_kept_while_a_slot_has_it_released() -> None:
    """Counterexample to: children that are held are enough. Then only "released" would be left, and A be read again."""
    slots = ({A: "RELEASED 1 5", B: "1"}, {A: "SHARD_END", C: "1", D: "1"})
    assert deal(SPLIT, *slots) == [{A: "FORGET"}, {}]
    assert deal(SPLIT, {B: "1"}, slots[1]) == [{}, {A: "FORGET"}]


# -- moves -----------------------------------------------------------------------------------------------


def test_a_shard_moves_step_by_step() -> None:
    dealer = Dealing(2)

    def after(*slots: Mapping[str, str]) -> object:
        return dealer.deal(TWO, say(*slots), 0)

    assert after({A: "1", B: "1"}, {}) == [{}, {B: "EXPECT"}]
    assert after({A: "2", B: "2"}, {}) == [{}, {B: "EXPECT"}]
    assert after({A: "3", B: "3"}, {B: "EXPECTED"}) == [{B: "RELEASE 1"}, {}]
    assert after({A: "4", B: "RELEASED 1 4"}, {B: "EXPECTED"}) == [{}, {B: "READ 4"}]
    assert after({A: "5", B: "RELEASED 1 4"}, {B: "4"}) == [{B: "FORGET"}, {}]
    assert after({A: "5"}, {B: "5"}) == [{}, {}]


def test_the_slot_that_a_shard_was_released_to_reads_it_whoever_else_expects_it() -> None:
    """Counterexample to: whoever expects it reads it. Slot 2 was told to by a dealer whose word arrived late."""
    slots = ({A: "1", B: "RELEASED 1 4"}, {}, {B: "EXPECTED"})
    assert deal(TWO, *slots) == [{}, {B: "READ 4"}, {B: "FORGET"}]


def test_a_shard_waits_until_event_time_has_come_as_far() -> None:
    dealer = Dealing(2)
    slots = ({A: "1", B: "1"}, {B: "EXPECTED"})
    assert dealer.deal(TWO, say(*slots, times=[None, 10]), 0) == [{}, {}]
    assert dealer.deal(TWO, say(*slots, times=[9, 10]), 0) == [{}, {}]
    assert dealer.deal(TWO, say(*slots, times=[10, 10]), 0) == [{B: "RELEASE 1"}, {}]
    assert dealer.deal(TWO, say(*slots, times=[9, 10]), 10**6) == [{B: "RELEASE 1"}, {}], "no word is taken back"


def test_a_move_that_takes_too_long_is_given_up_and_tried_later_each_time() -> None:
    dealer, expected = Dealing(2), {B: ""}
    tried: list[int] = []
    for second in range(900):
        taker = dict.fromkeys(expected, "EXPECTED")
        orders = dealer.deal(TWO, say({A: "1", B: "1"}, taker, times=[1, 10]), second * 1000)
        assert orders[0] == {}, "event time never comes as far"
        before = set(expected)
        for shard, order in (orders[1] or {}).items():
            assert order in ("EXPECT", "FORGET")
            expected.pop(shard, None) if order == "FORGET" else expected.setdefault(shard, order)
        tried += [second] if B in set(expected) - before else []
        assert len(expected) <= 1
    patience, pause = moves.PATIENCE_MS // 1000, moves.FIRST_PAUSE_MS // 1000
    gaps = [later - sooner for sooner, later in pairwise([0, *tried])]
    assert len(gaps) == 3
    assert all(gap >= patience + pause * 2**i for i, gap in enumerate(gaps))


def test_another_dealer_goes_on_with_a_move() -> None:
    assert deal(TWO, {A: "1", B: "1"}, {B: "EXPECTED"}) == [{B: "RELEASE 1"}, {}]


def test_a_shard_that_ended_meanwhile_is_expected_no_longer() -> None:
    assert deal(SPLIT, {A: "SHARD_END"}, {A: "EXPECTED", B: "1"})[1] == {A: "FORGET"}


def test_free_slots_are_given_shards_at_once_and_each_slot_gives_one_at_a_time() -> None:
    many = [Shard(shard_id(i), HASH_END * i // 8, HASH_END * (i + 1) // 8 - 1) for i in range(8)]
    halves = ({shard_id(i): "1" for i in range(4)}, {shard_id(i): "1" for i in range(4, 8)})
    assert deal(many, *halves, {}, {}) == [{}, {}, {shard_id(3): "EXPECT"}, {shard_id(7): "EXPECT"}]


def test_closed_shards_stay_where_they_are_while_there_are_open_ones() -> None:
    listed = [TWO[0], replace(TWO[1], closed=True), Shard(C, HALF, HASH_END - 1, (B,))]
    assert deal(listed, {A: "1", B: "1"}, {}) == [{}, {A: "EXPECT"}]


# -- warnings --------------------------------------------------------------------------------------------


def test_a_hole_is_reported_after_three_audits() -> None:
    dealer = Dealing(1)
    found = []
    for minute in range(4):
        dealer.deal(TWO[:1], say({A: "1"}), minute * dealing.AUDIT_MS)
        dealer.deal(TWO[:1], say({A: "1"}), minute * dealing.AUDIT_MS + 1)
        found.append(list(dealer.warnings))
    assert found[:2] == [[], []]
    assert (
        found[2]
        == found[3]
        == [f"no open shard covers the hashes {HALF} to {HASH_END - 1}: Kinesis has listed none for minutes"]
    )
    dealer.deal(TWO, say({A: "1"}), 9 * dealing.AUDIT_MS)
    assert dealer.warnings == []


def test_a_shard_that_is_read_twice_is_reported() -> None:
    dealer = Dealing(2)
    dealer.deal(TWO, say({A: "1", B: "1"}, {B: "2"}), 0)
    assert dealer.warnings == [f"shard {B} is read by slots 0 and 1, so its records count twice"]


def test_a_giver_drops_a_shard_only_in_a_version_in_which_readers_know_the_taker() -> None:
    """Readers process versions in order: before, they would pass the event time of the shard that has moved."""
    dealer = Dealing(2)

    def said(giver: int, taker: int) -> list[object]:
        reports = say({A: "5", B: "RELEASED 1 4"}, {B: "6"})
        return list(
            dealer.deal(
                TWO, [structs.replace(reports[0], version=giver), structs.replace(reports[1], version=taker)], 0
            )
        )

    assert said(40, 70) == [{}, {}]
    assert said(60, 90) == [{}, {}]
    assert said(70, 120) == [{B: "FORGET"}, {}]
