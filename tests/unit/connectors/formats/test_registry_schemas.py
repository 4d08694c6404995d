from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from headrace.connectors.formats import registry as module
from headrace.connectors.formats.registry import Fetched, Reference, Registered, SchemaSource
from headrace.core.clock import ManualClock
from headrace.core.errors import DataError, HeadraceError, InfrastructureError, UnavailableError


class Registry:
    """A registry in this process: what it has, and what it answers with instead."""

    url = "http://host"

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self.schemas = {id: Registered(f"schema {id}") for id in ids}
        self.versions: dict[str, Registered] = {}
        self.error: HeadraceError | None = None
        self.asked: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def by_id(self, id: int) -> Registered | None:
        self.asked.append(id)
        self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return self.schemas.get(id)

    def by_version(self, subject: str, version: int) -> Registered:
        if subject not in self.versions:
            raise DataError(f"no version {version} of {subject}")
        return self.versions[subject]


def away() -> UnavailableError:
    return UnavailableError("the registry is away", hint="start it")


def test_a_schema_is_fetched_once() -> None:
    registry = Registry([7, 8])
    source = SchemaSource(registry, ManualClock(), wait_ms=30_000)
    for _ in range(3):
        found = source.schemas([7, 8])
        assert {id: one.schema.text for id, one in found.items() if one} == {7: "schema 7", 8: "schema 8"}
    assert registry.asked == [7, 8]


def test_a_slow_registry_is_waited_for_elsewhere() -> None:
    registry = Registry([7])
    registry.gate.clear()
    source = SchemaSource(registry, ManualClock(), wait_ms=1)
    for _ in range(3):
        with pytest.raises(UnavailableError, match="schema 7 is being fetched from http://host"):
            source.schemas([7])
    registry.gate.set()
    patient = 30.0
    assert source._idle.wait(patient)
    assert source.schemas([7])[7] == Fetched(Registered("schema 7"))
    assert registry.asked == [7]


def test_a_registry_that_is_away_is_asked_again_after_growing_pauses() -> None:
    registry, clock = Registry([7]), ManualClock()
    source = SchemaSource(registry, clock, wait_ms=30_000)
    registry.error = away()
    errors = []
    for _ in range(60_000):
        with pytest.raises(UnavailableError) as caught:
            source.schemas([7])
        errors.append(caught.value)
        clock.advance(100)
        if len(errors) == 600:
            break
    assert 8 <= len(registry.asked) <= 20  # in a minute
    assert {error.hint for error in errors} == {"start it"}
    assert len({id(error) for error in errors}) == len(errors)  # one that is raised again grows with its traceback
    registry.error = None
    clock.advance(10_000)
    assert source.schemas([7])[7] is not None


def test_what_the_registry_refuses_is_no_reason_to_wait() -> None:
    registry = Registry([7])
    registry.error = InfrastructureError("the login is wrong")
    with pytest.raises(InfrastructureError, match="the login is wrong") as caught:
        SchemaSource(registry, ManualClock(), wait_ms=30_000).schemas([7])
    assert not caught.value.retry


def test_an_id_that_is_nowhere_is_asked_for_several_times_and_later_again() -> None:
    registry, clock = Registry([7]), ManualClock()
    source = SchemaSource(registry, clock, wait_ms=30_000)
    for _ in range(2):
        with pytest.raises(UnavailableError, match="has no schema 9 yet"):
            source.schemas([7, 9])
        clock.advance(1000)
    assert source.schemas([7, 9]) == {7: Fetched(Registered("schema 7")), 9: None}
    assert source.schemas([9]) == {9: None}
    assert registry.asked == [7, 9, 9, 9]
    registry.schemas[9] = Registered("late")
    clock.advance(60_000)
    assert source.schemas([9])[9] == Fetched(Registered("late"))


def test_an_id_that_comes_late_is_not_unknown() -> None:
    registry, clock = Registry(), ManualClock()
    source = SchemaSource(registry, clock, wait_ms=30_000)
    with pytest.raises(UnavailableError):
        source.schemas([9])
    registry.schemas[9] = Registered("late")
    clock.advance(1000)
    assert source.schemas([9])[9] == Fetched(Registered("late"))


def test_what_a_schema_refers_to_comes_with_it_and_before_it() -> None:
    registry = Registry()
    registry.schemas[1] = Registered("order", references=(Reference("A", "a", 1), Reference("B", "b", 1)))
    registry.versions["a"] = Registered("a", references=(Reference("B", "b", 1),))
    registry.versions["b"] = Registered("b", references=(Reference("A", "a", 1),))  # a circle, which ends
    fetched = SchemaSource(registry, ManualClock(), wait_ms=30_000).schemas([1])[1]
    assert fetched is not None
    assert [one.text for one in fetched.needed] == ["b", "a"]


def test_a_schema_that_refers_to_nothing_is_incomplete() -> None:
    registry = Registry()
    registry.schemas[1] = Registered("order", references=(Reference("A", "a", 1),))
    fetched = SchemaSource(registry, ManualClock(), wait_ms=30_000).schemas([1])[1]
    assert fetched is not None
    assert fetched.problem == "no version 1 of a"


def test_schemas_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 3)
    registry = Registry(range(10))
    source = SchemaSource(registry, ManualClock(), wait_ms=30_000)
    for id in (0, 1, 2, 0, 3):
        source.schemas([id])
    source.schemas([0, 2, 3])
    assert registry.asked == [0, 1, 2, 3]
    found = source.schemas(range(10))  # more than are kept: all of one batch are there at once
    assert all(found.values())
    source.schemas([9])
    assert len(source._known) == 3
