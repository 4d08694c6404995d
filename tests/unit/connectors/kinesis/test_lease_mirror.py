"""A lease table that follows an app's commits, in memory and in DynamoDB: starts, faults, other apps, stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from typing_extensions import override

from headrace.connectors.kinesis import leases as to
from headrace.connectors.kinesis.api import DONE, FAILOVER_MS, OLDEST, Position, Shard, reading
from headrace.connectors.kinesis.lease_mirror import CALLS_AT_LEAST, CLOSE_MS, LeaseMirror
from headrace.connectors.kinesis.leases import SHARD_END, Checkpoint, Item, Kind, Lease, LeaseTable, Write, Written
from headrace.core.clock import ManualClock
from headrace.core.errors import InfrastructureError, LeaseHeldError, ThrottledError, UnavailableError
from headrace.systems.slot_reports import SlotReport
from servers.lease_tables import Leases, LeasesInMemory

ROUND_MS = 250
P = Shard("p", 0, 99, closed=True)
A = Shard("a", 0, 49, ("p",))
B = Shard("b", 50, 99, ("p",))
LISTED = (P, A, B)


class WatchedTable(LeaseTable):
    """A table that counts what is written, and can lose calls or their answers."""

    def __init__(self, inner: LeaseTable) -> None:
        self._inner = inner
        self.writes: list[Write] = []
        self.failing: Callable[[Write], Exception | None] = lambda write: None
        self.losing_answers: Callable[[Write], bool] = lambda write: False
        self.closed = False

    @property
    @override
    def name(self) -> str:
        return "orders-leases"

    @override
    def ensure(self) -> None:
        self._inner.ensure()

    @override
    def leases(self) -> list[Lease]:
        return self._inner.leases()

    @override
    def write(self, write: Write) -> Written:
        self.writes.append(write)
        if error := self.failing(write):
            raise error
        written = self._inner.write(write)
        if self.losing_answers(write):
            raise UnavailableError("the answer was lost")
        return written

    @override
    def close(self) -> None:
        self.closed = True
        self._inner.close()


class Run:
    """One run of the app, with a clock of its own."""

    def __init__(self, leases: Leases, app: str = "app", clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.table = WatchedTable(leases.table())
        self.waited_s = 0.0
        self.meanwhile: Callable[[], object] = lambda: None
        self.stopping = False
        self._app = app
        self.leases = leases
        self.listed: tuple[Shard, ...] = LISTED
        self.slots: list[SlotReport | None] = []

    def open(self, failover_ms: int = FAILOVER_MS) -> Run:
        self.mirror = LeaseMirror.open(self.table, self._app, self.clock, self._wait, failover_ms)
        return self

    def _wait(self, seconds: float) -> bool:
        self.waited_s += seconds
        self.clock.advance(round(seconds * 1000))
        self.meanwhile()
        return self.stopping

    def follow(self, *slots: dict[str, str] | None, rounds: int = 1) -> list[str]:
        """Let the dealing thread come by, with these reports; return what was written."""
        if slots:
            self.slots = [None if shards is None else SlotReport(1, shards) for shards in slots]
        before = len(self.table.writes)
        for _ in range(rounds):
            self.mirror.follow(self.slots, self.listed)
            self.clock.advance(ROUND_MS)
        return [str(write) for write in self.table.writes[before:]]

    def row(self, shard: str) -> tuple[object, ...]:
        """Owner, checkpoint and counter of a row."""
        item = self.leases.item(shard)
        return item.get("leaseOwner"), item["checkpoint"], int(str(item["leaseCounter"]))


class KclWorker:
    """Another application on the same table, by the writes of KCL."""

    def __init__(self, leases: Leases, name: str = "ip-10-0-0-7:5b1d") -> None:
        self.name = name
        self._table = leases.table()
        self._table.ensure()

    def has(self, shard: str, checkpoint: Checkpoint) -> None:
        self._table.write(to.create(Lease(shard, checkpoint, self.name, 40)))

    def renew(self, shard: str) -> None:
        assert self._table.write(to.renew(self._seen(shard))).made

    def steal(self, shard: str) -> None:
        assert self._table.write(to.take(self._seen(shard), self.name)).made

    def stop(self) -> None:
        for lease in self._table.leases():
            if lease.owner == self.name:
                assert self._table.write(to.evict(lease)).made

    def delete(self, shard: str) -> None:
        assert self._table.write(to.delete(self._seen(shard))).made

    def _seen(self, shard: str) -> Lease:
        return next(lease for lease in self._table.leases() if lease.shard == shard)

    def close(self) -> None:
        self._table.close()


@pytest.fixture
def run(leases: Leases) -> Iterator[Run]:
    found = Run(leases)
    yield found
    if not found.table.closed:
        found.table.close()


@pytest.fixture
def kcl(leases: Leases) -> Iterator[KclWorker]:
    found = KclWorker(leases)
    yield found
    found.close()


# -- following commits -------------------------------------------------------------------------------


def test_shards_get_rows_when_they_are_in_a_commit(leases: Leases, run: Run) -> None:
    run.open()
    assert run.waited_s == 0
    assert run.follow({}, None) == []
    assert run.follow({"a": "TRIM_HORIZON"}, {"b": "17 3"}) == ["create a", "create b"]
    assert run.row("a") == ("app/0", "TRIM_HORIZON", 0)
    assert run.row("b") == ("app/1", "17", 0)
    assert leases.item("b")["checkpointSubSequenceNumber"] == "3"
    assert leases.item("b")["parentShardId"] == ["p"]
    assert (leases.item("b")["startingHashKey"], leases.item("b")["endingHashKey"]) == ("50", "99")


def test_what_is_only_expected_has_no_row(run: Run) -> None:
    run.open()
    assert run.follow({"a": "EXPECTED"}, {}) == []


def test_each_lease_is_renewed_before_it_expires_and_written_no_more_than_that(run: Run) -> None:
    run.open().follow({"a": "1", "b": "1"})
    times: list[float] = []
    for sequence in range(2, 160):  # a commit in each round, for 40 seconds
        written = run.follow({"a": str(sequence), "b": "1"})
        if "checkpoint a" in written:
            times.append(run.clock.monotonic_ms())
            assert "renew b" in written
    assert len(run.table.writes) == 2 * len(times) + 2
    assert len(times) == 11
    assert max(after - before for before, after in pairwise(times)) < FAILOVER_MS / 2
    assert run.row("b") == ("app/0", "1", 11)


def test_the_end_of_a_shard_is_written_at_once_after_its_children(leases: Leases, run: Run) -> None:
    run.open().follow({"p": "5"}, {})
    assert run.follow({"p": "SHARD_END"}, {}, rounds=3) == ["children p", "checkpoint p"]
    assert run.row("p") == ("app/0", "SHARD_END", 1)
    assert leases.item("p")["childShardIds"] == ["a", "b"]
    assert run.follow(rounds=100) == [], "nobody needs to know who has read a finished shard"


def test_children_that_are_listed_late_are_named_late(leases: Leases, run: Run) -> None:
    run.listed = (P,)
    run.open().follow({"p": "SHARD_END"})
    assert "childShardIds" not in leases.item("p")
    run.listed = (P, A)
    run.follow()
    run.listed = LISTED
    run.follow()
    assert leases.item("p")["childShardIds"] == ["a", "b"]


def test_a_finished_lease_goes_when_its_children_have_begun(leases: Leases, run: Run) -> None:
    run.open().follow({"p": "SHARD_END"}, {})
    assert run.follow({"p": "SHARD_END", "a": "1"}, {"b": "TRIM_HORIZON"}) == ["create a", "create b"]
    assert run.follow({"a": "2"}, {"b": "TRIM_HORIZON"}) == []
    assert run.follow({"a": "2"}, None) == [], "a slot that hasn't reported may have it"
    assert run.follow({"a": "2"}, {"b": "1"}) == ["delete p"]
    assert sorted(leases.items()) == ["a", "b"]
    assert "create p" not in run.follow(rounds=20)


def test_a_shard_that_moves_changes_its_owner_once(leases: Leases, run: Run) -> None:
    run.open().follow({"a": "5"}, {})
    assert run.follow({"a": "5"}, {"a": "EXPECTED"}) == []
    assert run.follow({"a": "RELEASED 1 7"}, {"a": "EXPECTED"}) == []
    assert run.follow({"a": "RELEASED 1 7"}, {"a": "7"}) == ["take a"]
    assert run.follow({}, {"a": "7"}) == []
    assert run.row("a") == ("app/1", "5", 1)
    assert leases.item("a")["ownerSwitchesSinceCheckpoint"] == "1"
    assert run.follow(rounds=20) == ["checkpoint a"]
    assert leases.item("a")["ownerSwitchesSinceCheckpoint"] == "0"


def test_a_shard_that_was_trimmed_loses_its_row(leases: Leases, run: Run) -> None:
    run.open().follow({"a": "5", "b": "5"})
    run.listed = (B,)
    assert run.follow({"b": "5"}) == ["delete a"]
    assert run.follow({"b": "5"}) == []


def test_a_position_that_goes_back_is_followed(run: Run) -> None:
    run.open().follow({"a": "50", "p": "SHARD_END"})
    run.follow({"a": "AT_TIMESTAMP 1700000000000", "p": "TRIM_HORIZON"}, rounds=20)
    assert run.row("a")[:2] == ("app/0", "AT_TIMESTAMP")
    assert run.row("p")[:2] == ("app/0", "TRIM_HORIZON")


def test_a_round_makes_few_calls_and_still_no_lease_expires() -> None:
    run = Run(LeasesInMemory())
    shards = {f"s{n:03}": "1" for n in range(300)}
    run.listed = ()
    run.open()
    assert len(run.follow(shards)) == CALLS_AT_LEAST
    run.follow(rounds=40)
    moved: dict[str, float] = {}
    for _ in range(60):
        written = run.follow()
        assert len(written) <= len(shards) / 10
        for one in written:
            shard = one.removeprefix("renew ")
            assert run.clock.monotonic_ms() - moved.get(shard, run.clock.monotonic_ms()) < FAILOVER_MS
            moved[shard] = run.clock.monotonic_ms()
    assert moved.keys() == shards.keys()


# -- faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
def test_an_answer_that_is_lost_is_noticed(kind: Kind, leases: Leases, run: Run) -> None:
    """The next write of the row fails, because the first one was made: the mirror goes on from there."""
    run.open()
    lost: list[Write] = []

    def lose(write: Write) -> bool:
        if write.kind is not kind or lost:
            return False
        lost.append(write)
        return True

    run.table.losing_answers = lose
    for slots in ([{"p": "5", "a": "3"}, {}], [{"p": "RELEASED 1 6"}, {"p": "6", "a": "3"}], [{}, {"p": "SHARD_END"}]):
        run.follow(*slots, rounds=40)
    run.follow({}, {"a": "9", "b": "4"}, rounds=40)
    run.follow({}, {"a": "9"}, rounds=40)
    assert [write.kind for write in lost] == [kind]
    assert sorted(leases.items()) == ["a", "b"]
    assert run.row("a")[:2] == ("app/1", "9")
    assert run.row("b")[:2] == (None, "4")
    assert run.mirror.trouble is None


@pytest.mark.parametrize(
    "error", [UnavailableError("no answer"), ThrottledError("too much"), InfrastructureError("no")]
)
def test_trouble_with_the_table_is_waited_out(error: Exception, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.open().follow({"a": "1", "b": "1"})
    run.table.failing = lambda write: error
    tries = len(run.follow({"a": "2", "b": "2"}, rounds=480))  # two minutes
    assert 5 <= tries <= 12, "one call in a round, and pauses in between"
    assert run.mirror.trouble == str(error)
    assert run.row("a") == ("app/0", "1", 0)
    run.table.failing = lambda write: None
    run.follow(rounds=130)
    assert run.mirror.trouble is None
    assert run.row("a")[:2] == ("app/0", "2")
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["can't write leases"] * 3, "at once, and each minute"


def test_a_row_that_was_deleted_comes_back(run: Run, kcl: KclWorker) -> None:
    run.open().follow({"a": "5"})
    kcl.delete("a")
    run.follow({"a": "6"}, rounds=20)
    assert run.row("a")[:2] == ("app/0", "6")


def test_rows_of_other_kinds_are_left_alone(leases: Leases, run: Run, kcl: KclWorker) -> None:
    leader: Item = {
        "leaseKey": {"S": "Leader"},
        "entityType": {"S": "LEADER"},
        "leaseOwner": {"S": kcl.name},
        "leaseCounter": {"N": "3"},
    }
    leases.put(leader)
    run.open().follow({"a": "1"}, rounds=20)
    run.mirror.close()
    assert leases.items()["Leader"] == leader
    assert run.waited_s == 0


# -- other applications ------------------------------------------------------------------------------


def test_a_kcl_application_that_was_stopped_is_taken_over_at_once(run: Run, kcl: KclWorker) -> None:
    kcl.has("p", SHARD_END)
    kcl.has("a", Checkpoint("17", 3))
    kcl.has("b", Checkpoint("LATEST"))
    kcl.stop()
    run.open()
    assert run.waited_s == 0
    start = Position(time_ms=1_700_000_000_000)
    assert run.mirror.found(start) == {"p": DONE, "a": reading(Position(17, 3)), "b": reading(start)}
    assert run.row("a") == (None, "17", 41), "nothing is written before there are commits"
    run.follow({"p": "SHARD_END", "a": "17 3"}, {"b": str(start)}, rounds=20)
    assert run.row("a")[:2] == ("app/0", "17")
    assert run.row("b")[:2] == ("app/1", "AT_TIMESTAMP")
    assert run.mirror.found(OLDEST)["a"] == reading(Position(17, 3)), "it is what was found, not what is"


@pytest.mark.parametrize("ms", [FAILOVER_MS, 60_000])
def test_a_kcl_application_that_was_killed_is_taken_over_later(run: Run, kcl: KclWorker, ms: int) -> None:
    kcl.has("a", Checkpoint("17"))
    run.open(failover_ms=ms)
    assert ms < run.waited_s * 1000 < ms + 1000
    assert run.follow({"a": "17 0"}) == ["take a"]
    assert run.row("a") == ("app/0", "17", 41)
    assert len(run.follow(rounds=ms // ROUND_MS)) in (2, 3), "signs of life"


def test_a_living_owner_is_not_robbed(run: Run, kcl: KclWorker) -> None:
    kcl.has("a", Checkpoint("17"))
    run.meanwhile = lambda: kcl.renew("a") if run.waited_s > 3 else None
    with pytest.raises(LeaseHeldError) as caught:
        run.open()
    assert caught.value.message == f"lease table orders-leases: the lease of a belongs to {kcl.name}, which is alive"
    assert caught.value.hint is not None
    assert not caught.value.retry
    assert run.waited_s < 5
    assert run.table.writes == []
    assert run.table.closed


def test_an_owner_that_comes_while_others_are_waited_for_is_alive(run: Run, kcl: KclWorker) -> None:
    kcl.has("a", Checkpoint("17"))
    run.meanwhile = lambda: kcl.has("b", Checkpoint("TRIM_HORIZON"))
    with pytest.raises(LeaseHeldError, match="lease of b"):
        run.open()


def test_owners_that_give_up_are_waited_for_no_longer(run: Run, kcl: KclWorker) -> None:
    kcl.has("a", Checkpoint("17"))
    run.meanwhile = kcl.stop
    run.open()
    assert run.waited_s == 1


def test_finished_leases_are_nobodys(run: Run, kcl: KclWorker) -> None:
    kcl.has("p", SHARD_END)
    run.open()
    assert run.waited_s == 0


def test_the_wait_ends_when_the_app_stops(run: Run, kcl: KclWorker) -> None:
    kcl.has("a", Checkpoint("17"))
    run.stopping = True
    with pytest.raises(UnavailableError, match="stopped before it knew"):
        run.open()
    assert run.waited_s == 1
    assert run.table.closed


def test_a_lease_that_is_stolen_ends_the_run(run: Run, kcl: KclWorker) -> None:
    run.open().follow({"a": "1"})
    kcl.steal("a")
    with pytest.raises(LeaseHeldError, match=f"lease of a belongs to {kcl.name}"):
        run.follow(rounds=20)


def test_an_owner_that_was_given_up_too_early_ends_the_run(run: Run, kcl: KclWorker) -> None:
    kcl.has("a", Checkpoint("17"))
    run.open()
    kcl.renew("a")
    with pytest.raises(LeaseHeldError):
        run.follow({"a": "18"})


def test_a_leader_of_kcl_3_that_hands_a_lease_over_ends_the_run(leases: Leases, run: Run) -> None:
    run.open().follow({"a": "1"})
    leases.put(leases.items()["a"] | {"leaseOwner": {"S": "kcl"}, "checkpointOwner": {"S": "app/0"}})
    with pytest.raises(LeaseHeldError, match="belongs to kcl"):
        run.follow(rounds=20)


def test_a_hand_over_that_is_stuck_is_ended(leases: Leases, run: Run, kcl: KclWorker) -> None:
    kcl.has("a", Checkpoint("17"))
    leases.put(leases.items()["a"] | {"checkpointOwner": {"S": "gone"}})
    run.open()
    run.follow({"a": "18"})
    assert run.row("a")[0] == "app/0"
    assert "checkpointOwner" not in leases.item("a")


def test_another_headrace_app_is_a_stranger(leases: Leases, run: Run) -> None:
    other = Run(leases, "app2").open()
    other.follow({"a": "1"})
    run.meanwhile = lambda: other.follow(rounds=14)
    with pytest.raises(LeaseHeldError, match="belongs to app2/0"):
        run.open()
    other.mirror.close()


# -- stops and restarts ------------------------------------------------------------------------------


def test_a_clean_stop_writes_what_is_left_and_gives_leases_up(run: Run) -> None:
    run.open().follow({"a": "1", "p": "1"}, {"b": "1"})
    run.follow({"a": "2", "p": "SHARD_END"}, {"b": "3", "c": "1"})
    run.mirror.close()
    assert [run.row(shard)[1] for shard in "abcp"] == ["2", "3", "1", "SHARD_END"]
    assert [run.row(shard)[0] for shard in "abcp"] == [None] * 4
    assert run.table.closed


def test_a_kcl_application_goes_on_after_a_clean_stop(run: Run, kcl: KclWorker) -> None:
    run.open().follow({"a": "1"})
    run.mirror.close()
    kcl.steal("a")
    assert run.row("a")[:2] == (kcl.name, "1")


def test_the_same_app_starts_again_without_a_wait(leases: Leases, run: Run) -> None:
    run.open().follow({"a": "1"})
    again = Run(leases).open()
    assert again.waited_s == 0
    assert again.follow(None) == []
    assert again.follow(rounds=20) == ["renew a"]
    assert again.follow({"a": "2"}, rounds=20) == ["checkpoint a"]
    again.mirror.close()


def test_a_stop_without_an_answer_leaves_the_leases_to_expire(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.open().follow({"a": "1", "b": "1"})
    run.table.failing = lambda write: UnavailableError("no answer")
    before = len(run.table.writes)
    run.follow({"a": "2", "b": "2"})
    run.mirror.close()
    assert len(run.table.writes) <= before + 5
    assert run.table.closed
    assert caplog.records[-1].message == "leases weren't released, and have to expire"
    assert run.row("a")[:2] == ("app/0", "1")


def test_a_stop_takes_no_longer_than_it_may(run: Run) -> None:
    run.listed = ()
    run.open()
    run.follow({f"s{n}": "1" for n in range(40)}, rounds=4)

    def slow(write: Write) -> None:
        run.clock.advance(500)

    run.table.failing = slow
    began = run.clock.monotonic_ms()
    run.mirror.close()
    assert CLOSE_MS <= run.clock.monotonic_ms() - began <= CLOSE_MS + 500


def test_a_stop_leaves_stolen_leases_to_the_thief(run: Run, kcl: KclWorker) -> None:
    run.open().follow({"a": "1"})
    kcl.steal("a")
    run.mirror.close()
    assert run.row("a")[0] == kcl.name
    assert run.table.closed
