from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, ClassVar

import pytest
from publishing_broker import OTHER, PROGRESS, ROWS, Broker, last_of
from publishing_world import Life, Request, Sending, World, rows_of

from headrace.connectors.kafka.publishing import (
    GRACE_MS,
    HOLDING,
    LOOKS,
    TABLE,
    TAKEOVERS_MAX,
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
    WINDOW_MS,
    Action,
    Event,
    Progress,
    Publishing,
    State,
    WantedVersion,
)

FEW = 1_000
"""So many seeds the right code has to come through each time."""
SEEDS = 3_000


def wrong(make: type[Life], seeds: Iterable[int], *, unstable: bool = True) -> str:
    """What goes wrong first; empty if nothing does."""
    for seed in seeds:
        world = World(seed, make, unstable=unstable)
        world.run()
        if world.leads:
            return f"seed {seed}: {world.leads}"
        if world.visible() != world.expected():
            return f"seed {seed}: {world.visible()} instead of {world.expected()}"
        if world.life.outbox:
            return f"seed {seed}: {world.life.outbox} stay in the outbox in state {world.life.machine.state.name}"
    return ""


@pytest.mark.parametrize("seeds", [range(FEW), pytest.param(range(FEW, SEEDS), marks=pytest.mark.soak)])
def test_each_row_is_published_once_whatever_happens(seeds: range) -> None:
    assert wrong(Life, seeds) == ""


# -- mistakes that the simulation has to find


class ReadsNoPosition(Life):
    """Trusts what the commits say."""

    def find(self) -> Progress | None:
        return Progress(self.machine.floor)


class StopsAtTheEnd(Life):
    """Stops where a reader of committed records finds no more, without the high watermark."""

    def find(self) -> Progress | None:
        records, _ = self.broker.committed(PROGRESS)
        return last_of(records)


class HasANewId(Life):
    """Has another transactional id in each life, so nobody is fenced."""

    @property
    def id(self) -> str:
        return self.name


class SendsTheVersionFirst(Life):
    """Commits the version before the rows."""

    def send(self) -> Generator[Request, Any, None]:
        yield self.produce(PROGRESS, ("app/stage/0/out", self.progress()))
        yield lambda: self.broker.commit(self.id, self.held)
        for row in rows_of(self.version or 0):
            yield self.produce(ROWS, row)


class SendsTheVersionLater(Life):
    """Commits the rows before the version."""

    def send(self) -> Generator[Request, Any, None]:
        for row in rows_of(self.version or 0):
            yield self.produce(ROWS, row)
        yield lambda: self.broker.commit(self.id, self.held)
        yield self.produce(PROGRESS, ("app/stage/0/out", self.progress()))


def changed(state: State, event: Event, to: State, action: Action) -> dict[State, dict[Event, tuple[State, Action]]]:
    table = {one: dict(rows) for one, rows in TABLE.items()}
    table[state][event] = (to, action)
    return table


class FindsBeforeItTakesOver(Life):
    """Reads the position first, and then takes the id over."""

    table: ClassVar = {
        **changed(State.FENCING, Event.OPENED, State.SENDING, Action.SEND),
        State.UNOPENED: {Event.WANTED: (State.FINDING, Action.FIND), Event.WANTED_OLD: (State.UNOPENED, Action.REST)},
        State.FINDING: {**TABLE[State.FINDING], Event.MISSING: (State.FENCING, Action.OPEN)},
    }


class SendsAgainWhenInDoubt(Life):
    """Takes a commit whose reply is lost for one that didn't happen."""

    table = changed(State.COMMITTING, Event.FAILED, State.IDLE, Action.REST)


class BelievesInItsCommits(Life):
    """Takes a commit whose reply is lost for one that happened."""

    def perform(self, action: Action) -> Generator[Request, Any, Action]:
        try:
            return (yield from super().perform(action))
        finally:
            if action is Action.COMMIT and self.machine.state is State.DOUBTFUL:
                self.machine.position = self.version


class LooksInsteadOfFinding(Life):
    """Takes over after its last look, and relies on that look."""

    table: ClassVar = {
        **changed(State.LOOKING, Event.OVERDUE, State.FENCING, Action.OPEN),
        State.FENCING: {**TABLE[State.FENCING], Event.OPENED: (State.SENDING, Action.SEND)},
        State.DOUBTFUL: {**TABLE[State.DOUBTFUL], Event.WANTED: (State.LOOKING, Action.LOOK)},
        State.UNOPENED: {**TABLE[State.UNOPENED], Event.WANTED: (State.LOOKING, Action.LOOK)},
    }


MISTAKES = [
    ReadsNoPosition,
    StopsAtTheEnd,
    HasANewId,
    SendsTheVersionFirst,
    SendsTheVersionLater,
    FindsBeforeItTakesOver,
    SendsAgainWhenInDoubt,
    BelievesInItsCommits,
    LooksInsteadOfFinding,
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found(mistake: type[Life]) -> None:
    assert wrong(mistake, range(SEEDS))


# -- mistakes that only brokers find that move leaders, lag, and deliver late what has failed


class AwaitsTheVersionOnly(Life):
    """Commits when the version is acknowledged, which is sent last, whether the rows are or not."""

    def send(self) -> Generator[Request, Any, None]:
        yield Sending(self.records(), awaited=(PROGRESS,))


class StopsWhereAFetchEnds(Life):
    """Proves that no transaction is open, but not that it has read everything."""

    def find(self) -> Progress | None:
        records, _ = self.broker.fetch(PROGRESS)
        _, whole = self.broker.committed(PROGRESS)
        return last_of(records) if whole else None


class KeepsItsProducer(Life):
    """Aborts a version that couldn't be sent and sends it again, without taking the id over."""

    table = changed(State.SENDING, Event.FAILED, State.IDLE, Action.REST)

    def send(self) -> Generator[Request, Any, None]:
        held = self.held
        yield lambda: self.broker.abort(self.id, held)
        yield from super().send()


@pytest.mark.parametrize("mistake", [AwaitsTheVersionOnly, StopsWhereAFetchEnds, KeepsItsProducer])
def test_each_mistake_is_found_by_unstable_brokers_only(mistake: type[Life]) -> None:
    assert wrong(mistake, range(SEEDS))
    assert wrong(mistake, range(FEW // 2), unstable=False) == ""


# -- single cases by name


def drive(life: Life) -> None:
    """Let a life work undisturbed until it rests."""
    while life.request is not None:
        try:
            life.request = life.steps.send(life.request())
        except Exception as error:
            life.request = life.steps.throw(error)
    for producer in life.broker.producers.values():
        life.broker.mark(producer)


def again(life: Life) -> None:
    """Let the run loop ask again."""
    life.request = next(life.steps)
    drive(life)


def test_an_open_transaction_of_another_writer_hides_a_committed_version() -> None:
    broker = Broker()
    first = Life(broker, 0, [], -1)
    drive(first)
    held = broker.init(OTHER)
    broker.produce(OTHER, held, PROGRESS, (OTHER, Progress(1)))
    first.outbox.append(0)
    again(first)
    assert first.outbox == []
    assert broker.committed(PROGRESS) == ([], False)

    heir = Life(broker, 1, [0], -1)
    drive(heir)
    assert (heir.machine.state, heir.machine.position, heir.outbox) == (State.OPENED, None, [0])
    broker.commit(OTHER, held)
    for producer in broker.producers.values():
        broker.mark(producer)
    again(heir)
    assert (heir.machine.state, heir.machine.position, heir.outbox) == (State.IDLE, 0, [])
    assert broker.committed(ROWS) == (rows_of(0), True)


def test_a_position_below_what_a_commit_says_ends_it() -> None:
    broker = Broker()
    life = Life(broker, 0, [5], floor=4)
    drive(life)
    assert (life.machine.state, life.outbox) == (State.LOST, [5])
    again(life)
    assert (life.machine.state, broker.partitions[ROWS]) == (State.LOST, [])


def test_a_progress_topic_lost_between_two_lives_is_noticed_or_harmless() -> None:
    for seed in range(500):
        world = World(seed)
        for _ in range(80):
            world.happen()
        world.broker.partitions[PROGRESS].clear()
        world.spawn()
        known = world.logged
        world.settle()
        if known >= 0:  # a copy that had found its position before may publish the rest
            assert world.life.machine.state is State.LOST or world.visible() == world.expected()
            assert world.visible() == world.expected()[: len(world.visible())]


def test_a_stale_copy_that_wakes_takes_nothing_over() -> None:
    broker = Broker()
    stale = Life(broker, 0, [0], -1)
    drive(stale)
    heir = Life(broker, 1, [0], -1)
    drive(heir)
    epoch = broker.producers[stale.id].epoch
    for version in (1, 2):
        heir.outbox.append(version)
        again(heir)
    for version in (1, 2):
        stale.outbox.append(version)
        again(stale)
    assert (stale.machine.state, stale.machine.other, stale.outbox) == (State.REPLACED, "life-1", [])
    assert broker.producers[stale.id].epoch == epoch


def test_who_was_refused_takes_over_only_after_some_looks() -> None:
    broker = Broker()
    first = Life(broker, 0, [0], -1)
    drive(first)
    broker.init(first.id)  # somebody takes over, and does nothing
    first.outbox.append(1)
    states = []
    while first.outbox:
        again(first)
        states.append(first.machine.state)
        broker.now += GRACE_MS
    assert states == [State.WAITING] * (LOOKS - 1) + [State.IDLE]


def test_two_that_take_the_id_from_each_other_stop() -> None:
    broker = Broker()
    life = Life(broker, 0, [0], -1)
    for version in range(1, TAKEOVERS_MAX + 3):
        broker.init(life.id)
        life.outbox.append(version)
        while life.outbox and life.machine.state is not State.SHARED:
            again(life) if life.request is None else drive(life)
            broker.now += GRACE_MS
    assert life.machine.state is State.SHARED


def test_taking_over_now_and_then_is_fine() -> None:
    broker = Broker()
    life = Life(broker, 0, [0], -1)
    for version in range(1, 5 * TAKEOVERS_MAX):
        broker.init(life.id)
        life.outbox.append(version)
        while life.outbox:
            again(life) if life.request is None else drive(life)
            broker.now += WINDOW_MS / TAKEOVERS_MAX
    assert life.machine.state is State.IDLE


def publishing(*, position: int = 3) -> Publishing:
    """A writer that is ready."""
    machine = Publishing("me")
    assert machine.ask(None, 0) is Action.OPEN
    assert machine.opened() is Action.FIND
    assert machine.read(Progress(position, f"rows of {position}", "somebody"), 0) is Action.REST
    assert machine.ready
    return machine


def test_the_same_version_with_other_rows_is_somebody_elses() -> None:
    machine = publishing()
    assert machine.ask(WantedVersion(4, "mine"), 0) is Action.SEND
    machine.fenced(0)
    machine.read(Progress(4, "theirs", "them"), 0)
    assert (machine.state, machine.other) == (State.SHARED, "them")


def test_who_finds_its_versions_there_for_long_was_not_replaced() -> None:
    machine = publishing()
    machine.ask(WantedVersion(4, "mine"), 0)
    machine.fenced(0)
    machine.read(Progress(900, "theirs", "them"), 0)
    assert machine.state is State.REPLACED
    assert machine.ask(WantedVersion(5, "mine"), WINDOW_MS - 1) is Action.REST
    assert (machine.state, machine.there(5)) == (State.REPLACED, True)
    machine.ask(WantedVersion(6, "mine"), WINDOW_MS)
    assert machine.state is State.SHARED


def test_a_transaction_that_took_too_long_gets_more_time() -> None:
    def after(elapsed_ms: float, timeout_ms: int, refused: bool) -> int:
        machine = publishing()
        machine.timeout_ms = timeout_ms
        machine.ask(WantedVersion(4, "mine"), 0)
        machine.fenced(elapsed_ms) if refused else machine.failed(elapsed_ms)
        return machine.timeout_ms

    for refused in (True, False):
        assert after(TIMEOUT_MS - 1, TIMEOUT_MS, refused) == TIMEOUT_MS
        assert after(TIMEOUT_MS, TIMEOUT_MS, refused) == 2 * TIMEOUT_MS
        assert after(1e9, TIMEOUT_MS_MAX, refused) == TIMEOUT_MS_MAX


# -- the table


def test_the_simulation_comes_through_every_row_of_the_table() -> None:
    seen: set[tuple[State, Event]] = set()

    class Noting(Life):
        def __init__(self, broker: Broker, number: int, outbox: list[int], floor: int) -> None:
            super().__init__(broker, number, outbox, floor)
            step = self.machine._step

            def noted(event: Event) -> Action:
                seen.add((self.machine.state, event))
                return step(event)

            self.machine._step = noted  # type: ignore[method-assign]

    wrong(Noting, range(1_500))
    rows = {(state, event) for state, row in TABLE.items() for event in row}
    assert seen <= rows
    ends = {State.LOST, State.SHARED}
    simulated = {(state, event) for state, event in rows if not ends & {state, TABLE[state][event][0]}}
    assert simulated - seen == set()


def test_actions_fit_states() -> None:
    acting = {
        State.FENCING: Action.OPEN,
        State.FINDING: Action.FIND,
        State.SENDING: Action.SEND,
        State.COMMITTING: Action.COMMIT,
        State.LOOKING: Action.LOOK,
    }
    assert set(TABLE) == set(State)
    for rows in TABLE.values():
        for to, action in rows.values():
            assert action is acting.get(to, Action.REST)
    for state in set(State) - set(acting):
        assert {Event.WANTED, Event.WANTED_OLD} <= set(TABLE[state])
    assert State.SENDING in HOLDING
    assert not HOLDING & {State.DOUBTFUL, State.UNOPENED, State.REPLACED, State.WAITING}
