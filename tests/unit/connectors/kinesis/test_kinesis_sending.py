"""Each record arrives once and in its key's order, whatever is refused, in calls that Kinesis takes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.kinesis.api import PUT_BYTES, PUT_RECORDS, RECORD_BYTES, Put, PutResult
from headrace.connectors.kinesis.target import WAITING_MAX, Sending, size_of

TAKEN = PutResult("shardId-000000000000", 1)
REFUSED = PutResult(error="Rate exceeded")


def puts(keys: list[str], size: int = 8) -> list[Put]:
    return [Put(key, f"{number}".encode().ljust(size)) for number, key in enumerate(keys)]


def sent(sending: Sending, chance: random.Random, refusals: float) -> list[Put]:
    """Everything in the order in which it was taken."""
    found: list[Put] = []
    rounds = 0
    while not sending.done:
        sending.again()
        while call := sending.call():
            rounds += 1
            assert rounds < 100_000, "it doesn't end"
            assert len(call) <= PUT_RECORDS
            assert sum(map(size_of, call)) <= PUT_BYTES
            assert max(Counter(put.key for put in call).values()) == 1
            results = [REFUSED if chance.random() < refusals else TAKEN for _ in call]
            found += [put for put, result in zip(call, results, strict=True) if not result.error]
            sending.answered(call, results)
    return found


@given(
    keys=st.lists(st.sampled_from("abcdefgh"), max_size=60),
    refusals=st.sampled_from([0.0, 0.3, 0.9]),
    seed=st.integers(0, 1 << 32),
)
def test_every_record_is_taken_once_and_keys_keep_their_order(keys: list[str], refusals: float, seed: int) -> None:
    records = puts(keys)
    sending = Sending(records)
    found = sent(sending, random.Random(seed), refusals)
    assert sending.taken == len(records)
    for key in set(keys):
        assert [put for put in found if put.key == key] == [put for put in records if put.key == key]
    assert len(found) == len(records)


def test_a_refused_record_holds_back_its_own_key_only() -> None:
    sending = Sending(puts(["a", "a", "b", "b"]))
    first = sending.call()
    assert [put.key for put in first] == ["a", "b"]
    sending.answered(first, [REFUSED, TAKEN])
    second = sending.call()
    assert [(put.key, put.data.strip()) for put in second] == [("b", b"3")]
    sending.answered(second, [TAKEN])
    assert sending.call() == []
    assert sending.error == "Rate exceeded"
    sending.again()
    assert sending.call() == first[:1]


def test_nothing_of_a_call_that_failed_is_known_to_be_there() -> None:
    sending = Sending(puts(["a", "b"]))
    call = sending.call()
    sending.failed(call, "no answer")
    assert (sending.done, sending.taken, sending.error) == (False, 0, "no answer")
    sending.again()
    assert sending.call() == call


@pytest.mark.parametrize(("size", "calls"), [(8, 3), (RECORD_BYTES - 8, 240)])
def test_calls_are_as_full_as_kinesis_takes_them(size: int, calls: int) -> None:
    data = b"x" * size
    sending = Sending(Put(f"key-{number:04}", data) for number in range(1200))
    count = 0
    while call := sending.call():
        sending.answered(call, [TAKEN] * len(call))
        count += 1
    assert (count, sending.done, sending.taken) == (calls, True, 1200)


def test_records_are_not_all_made_at_once() -> None:
    made = 0

    def records() -> Iterator[Put]:
        nonlocal made
        for number in range(3 * WAITING_MAX):
            made += 1
            yield Put(f"{number}", b"")

    sending = Sending(records())
    assert made == WAITING_MAX
    call = sending.call()
    sending.answered(call, [TAKEN] * len(call))
    assert made == WAITING_MAX + PUT_RECORDS
