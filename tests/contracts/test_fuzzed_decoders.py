"""Every decoder refuses damaged bytes as data. ``python -m fuzz --minutes 10`` tries many more."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from fuzz.child import Note, tried
from fuzz.decoders import Decoding, decodings
from fuzz.mutations import mutated
from fuzz.parent import in_child
from fuzz.turns import by_inputs, by_time

SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "1"))
INPUTS = 300


def test_no_decoder_lets_anything_else_out() -> None:
    names = list(decodings())
    summary = in_child(names, SEED, INPUTS)
    assert [(finding.decoder, finding.error, finding.trace) for finding in summary.findings] == []
    assert summary.inputs == dict.fromkeys(names, INPUTS)
    assert all(summary.accepted[name] > 0 for name in names)  # else only their first lines are tested


@pytest.mark.parametrize("name", decodings())
def test_good_inputs_are_accepted(name: str) -> None:
    decoding = decodings()[name]
    for data in decoding.samples:
        assert tried(name, decoding, data) == (True, None)


def test_a_foreign_exception_is_found() -> None:
    def fail(data: bytes) -> None:
        raise KeyError(data)

    accepted, finding = tried("it", Decoding([b""], fail), b"x")
    assert not accepted
    assert finding is not None
    assert (finding.decoder, finding.error, finding.data) == ("it", "KeyError: b'x'", b"x")


def test_the_note_survives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "note"
    path.write_bytes(bytes(2 << 20))
    note = Note(path)
    note.write("arrow", b"the first, which is longer")
    note.write("frame", b"the second")
    assert Note.read(path) == ("frame", b"the second")


def test_the_same_seed_damages_alike() -> None:
    made = [[mutated(Random(n), b"some good bytes", b"and others") for n in range(100)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 80


def test_each_decoder_gets_so_many_inputs() -> None:
    assert list(by_inputs(["a", "b"], 7, 6000)) == [("a", 7, 5000), ("b", 7, 5000), ("a", 8, 1000), ("b", 8, 1000)]


def test_each_decoder_gets_as_much_time() -> None:
    a_second = {"quick": 10_000, "slow": 20}
    spent, inputs, seeds = dict.fromkeys(a_second, 0.0), dict.fromkeys(a_second, 0), set[int]()
    for turn in by_time(list(a_second), 1, 3600, lambda: sum(spent.values())):
        took = 2 + turn.inputs / a_second[turn.decoder]
        assert took < 120  # so that a finding is reported soon
        spent[turn.decoder] += took
        inputs[turn.decoder] += turn.inputs
        assert turn.seed not in seeds
        seeds.add(turn.seed)
    assert abs(spent["quick"] - spent["slow"]) < 120
    assert 3600 <= sum(spent.values()) < 3720
    assert inputs["quick"] > 100 * inputs["slow"]
