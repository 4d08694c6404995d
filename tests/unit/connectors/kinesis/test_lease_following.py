"""What is written into a lease table, as a table of cases: the row, the commits, what else is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.connectors.kinesis.api import FAILOVER_MS, Shard
from headrace.connectors.kinesis.leases import RENEW_MS, SHARD_END, Checkpoint, Committed, Lease, Row, followed, writes
from headrace.systems.slot_reports import SlotReport

P = Shard("p", 0, 99, closed=True)
A = Shard("a", 0, 49, ("p",))
B = Shard("b", 50, 99, ("p",))
LISTED = (P, A, B)

BEGUN = {"a": "1", "b": "1"}
FREE = Lease("p", Checkpoint("10"), None, 4)
MINE = replace(FREE, owner="app/0")
OTHER_SLOTS = replace(FREE, owner="app/1")
STRANGERS = replace(FREE, owner="kcl")
HANDED = replace(STRANGERS, checkpoint_owner="app/0")
ENDED = replace(MINE, checkpoint=SHARD_END, children=("a", "b"))


def report(**shards: str) -> SlotReport:
    return SlotReport(1, shards)


def kinds(lease: Lease | None, *slots: SlotReport | None, age: float = 0, listed: tuple[Shard, ...] = LISTED) -> str:
    """What is written for shard p; the rows of its children are as they should be."""
    now = 1_000_000.0
    rows = {} if lease is None else {"p": Row(lease, now - age)}
    found = writes(followed("app", slots, listed), rows, now)
    return " ".join(one.kind.value for one in found if one.shard == "p") or "-"


@pytest.mark.parametrize(
    ("lease", "state", "age", "written"),
    [
        (None, "10", 0, "create"),
        (None, "SHARD_END", 0, "create"),
        (None, "EXPECTED", 0, "-"),
        (FREE, "10", 0, "take"),
        (OTHER_SLOTS, "10", 0, "take"),
        (STRANGERS, "10", 0, "take"),
        (HANDED, "10", 0, "take"),
        (STRANGERS, "SHARD_END", 0, "children"),
        (replace(STRANGERS, children=("a", "b")), "SHARD_END", 0, "take"),
        (MINE, "10 0", 0, "-"),
        (MINE, "11", 0, "-"),
        (MINE, "11", RENEW_MS, "checkpoint"),
        (MINE, "9", RENEW_MS, "checkpoint"),
        (MINE, "10 0", RENEW_MS, "renew"),
        (MINE, "RELEASED 1 10 0", RENEW_MS, "renew"),
        (MINE, "SHARD_END", 0, "children"),
        (replace(MINE, children=("a",)), "SHARD_END", 0, "children"),
        (replace(MINE, children=("a", "b")), "SHARD_END", 0, "checkpoint"),
        (ENDED, "SHARD_END", FAILOVER_MS, "-"),
        (replace(ENDED, children=()), "SHARD_END", 0, "children"),
        (replace(ENDED, owner="kcl"), "SHARD_END", FAILOVER_MS, "-"),
        (ENDED, "10", RENEW_MS, "checkpoint"),
    ],
)
def test_a_shard_that_a_slot_has(lease: Lease | None, state: str, age: float, written: str) -> None:
    for others in ((report(**BEGUN),), (None,)):
        assert kinds(lease, report(p=state), *others, age=age) == written


@pytest.mark.parametrize(
    ("lease", "others", "age", "written"),
    [
        (None, BEGUN, 0, "-"),
        (ENDED, BEGUN, 0, "delete"),
        (replace(ENDED, owner=None), BEGUN, 0, "delete"),
        (replace(ENDED, owner="kcl"), BEGUN, 0, "delete"),
        (ENDED, {"a": "1", "b": "SHARD_END"}, 0, "delete"),
        (ENDED, {"a": "1", "b": "TRIM_HORIZON"}, 0, "-"),
        (ENDED, {"a": "1", "b": "EXPECTED"}, 0, "-"),
        (ENDED, {"a": "1"}, 0, "-"),
        (MINE, BEGUN, 0, "evict"),
        (FREE, BEGUN, RENEW_MS, "-"),
        (STRANGERS, BEGUN, FAILOVER_MS, "-"),
    ],
)
def test_a_shard_that_no_slot_has(lease: Lease | None, others: dict[str, str], age: float, written: str) -> None:
    assert kinds(lease, report(**others), age=age) == written


@pytest.mark.parametrize(
    ("lease", "age", "written"),
    [(MINE, 0, "-"), (MINE, RENEW_MS, "renew"), (ENDED, 0, "-"), (STRANGERS, RENEW_MS, "-")],
)
def test_a_shard_that_may_be_in_a_slot_that_has_not_reported(lease: Lease, age: float, written: str) -> None:
    assert kinds(lease, None, report(**BEGUN), age=age) == written


@pytest.mark.parametrize(("lease", "written"), [(MINE, "delete"), (ENDED, "delete"), (STRANGERS, "-"), (FREE, "-")])
def test_a_shard_that_is_not_listed_any_more(lease: Lease, written: str) -> None:
    assert kinds(lease, report(**BEGUN), listed=(A, B)) == written


def test_nothing_is_deleted_because_the_list_is_empty() -> None:
    assert kinds(MINE, report(), listed=()) == "evict"


def test_a_finished_lease_outlives_its_parents() -> None:
    grown = replace(ENDED, parents=("g",))
    rows = {"p": Row(grown, 0), "g": Row(Lease("g", SHARD_END, children=("p",)), 0)}
    found = writes(followed("app", [report(**BEGUN)], LISTED), rows, 0)
    assert [str(one) for one in found if one.shard in "pg"] == ["delete g"]


def test_a_shard_that_moves_belongs_to_the_slot_that_reads_it() -> None:
    given, taken = report(p="RELEASED 1 5"), report(p="5")
    for slots, owner in (
        ((given, taken), "app/1"),
        ((taken, given), "app/0"),
        ((given, report(p="EXPECTED")), "app/0"),
    ):
        assert followed("app", slots, LISTED).committed["p"].worker == owner
    again = followed("app", [given, report(p="RELEASED 0 9")], LISTED)
    assert again.committed["p"].worker == "app/1", "it moved, and is about to move back"
    ended = followed("app", [report(p="SHARD_END"), given], LISTED)
    assert ended.committed["p"] == Committed("app/0", SHARD_END)


def test_what_changes_hands_comes_first_and_tidying_last() -> None:
    shards = [Shard(name, 0, 1) for name in ("new", "late", "later", "left", "end")]
    rows = {
        "late": Row(Lease("late", Checkpoint("1", 0), "app/0"), 100),
        "later": Row(Lease("later", Checkpoint("1", 0), "app/0"), 0),
        "left": Row(Lease("left", Checkpoint("1", 0), "app/0"), 0),
        "end": Row(Lease("end", Checkpoint("1", 0), "app/0"), 200),
    }
    slot = report(new="1", late="1 0", later="2", end="SHARD_END")
    found = writes(followed("app", [slot], shards), rows, 1_000_000)
    assert [str(one) for one in found] == [
        "create new",
        "checkpoint end",
        "checkpoint later",
        "renew late",
        "evict left",
    ]


def test_a_new_row_names_parents_and_hashes() -> None:
    slots = [report(a="AT_TIMESTAMP 5"), report(gone="8")]
    first, second = writes(followed("app", slots, LISTED), {}, 0)
    marked = {"a": "AT_TIMESTAMP 0 app", "gone": f"8 {2**63 - 1} app"}
    at = Checkpoint("AT_TIMESTAMP")
    assert first.put == Lease("a", at, "app/0", parents=("p",), hashes=(0, 49), mark=marked["a"]).item()
    assert second.put == Lease("gone", Checkpoint("8", 2**63 - 1), "app/1", mark=marked["gone"]).item()


def test_a_new_row_of_a_finished_shard_has_no_owner() -> None:
    (found,) = writes(followed("app", [report(p="SHARD_END")], LISTED), {}, 0)
    assert found.put == Lease("p", SHARD_END, children=("a", "b"), hashes=(0, 99), mark="SHARD_END 0 app").item()


def test_apps_whose_names_begin_alike_are_strangers() -> None:
    nothing = followed("app", [], [])
    owners = ("app/0", "app/17", "app2/0", "ap", "app", None)
    assert [owner for owner in owners if nothing.ours(owner)] == ["app/0", "app/17"]
