"""Timelines: one compare-and-set begins one, another takes it back, and no number is used twice."""

from __future__ import annotations

import pytest

from headrace.core.errors import DataError, UnavailableError, UsageError
from headrace.life.metadata import MemoryMetadata, MetadataStore
from headrace.life.timelines import NAMESPACE, Timeline, Timelines, current_timeline


def _timeline(number: int, before: int) -> Timeline:
    return Timeline(
        number=number,
        before=before,
        savepoint="monday",
        from_app="shop",
        savepoint_version=5000,
        created_ms=1,
        version=9000,
        partitions={"by-member": 8},
        system="kafka",
    )


def _begun(store: MetadataStore) -> Timelines:
    timelines = Timelines(store, "shop")
    timelines.begin(_timeline(timelines.next, timelines.current))
    return timelines


def test_an_app_begins_in_its_first_timeline() -> None:
    timelines = Timelines(MemoryMetadata(), "shop")
    assert (timelines.current, timelines.next, timelines.all, timelines.numbers) == (1, 2, (), (1,))
    assert current_timeline(None, "shop") == 1


def test_what_begins_is_current_and_kept() -> None:
    store = MemoryMetadata()
    _begun(store)
    again = Timelines(store, "shop")
    assert (again.current, again.next, again.numbers) == (2, 3, (1, 2))
    assert again.get(2) == _timeline(2, 1)
    assert current_timeline(store, "other") == 1


def test_taking_one_back_returns_to_the_one_before_and_uses_no_number_twice() -> None:
    store = MemoryMetadata()
    assert _begun(store).take_back() == _timeline(2, 1)
    timelines = Timelines(store, "shop")
    assert (timelines.current, timelines.next, timelines.numbers) == (1, 3, (1,))
    with pytest.raises(UsageError, match="first timeline"):
        timelines.take_back()


def test_a_command_that_was_overtaken_changes_nothing() -> None:
    store = MemoryMetadata()
    slow = Timelines(store, "shop")
    _begun(store)
    with pytest.raises(UnavailableError, match="at the same time"):
        slow.begin(_timeline(2, 1))
    assert Timelines(store, "shop").numbers == (1, 2)


def test_an_old_one_can_be_forgotten_and_then_not_be_returned_to() -> None:
    store = MemoryMetadata()
    timelines = _begun(store)
    with pytest.raises(UsageError, match="the current one"):
        timelines.forget(2)
    timelines.forget(1)
    assert timelines.numbers == (2,)
    with pytest.raises(UsageError, match="deleted"):
        timelines.take_back()


@pytest.mark.parametrize("value", [b"{", b'{"format": 7}'])
def test_a_record_that_cannot_be_read_is_named(value: bytes) -> None:
    store = MemoryMetadata()
    store.put_if(NAMESPACE, "shop", value, None)
    with pytest.raises(DataError, match="timelines of app 'shop'"):
        Timelines(store, "shop")


def test_golden_bytes() -> None:
    store = MemoryMetadata()
    _begun(store)
    entry = store.get(NAMESPACE, "shop")
    assert entry is not None
    assert entry.value == (
        b'{"format":2,"current":2,"highest":2,"timelines":[{"number":2,"before":1,"savepoint":"monday",'
        b'"fromApp":"shop","savepointVersion":5000,"createdMs":1,"version":9000,"outputs":"again","spoken":false,'
        b'"partitions":{"by-member":8},"system":"kafka"}]}'
    )
