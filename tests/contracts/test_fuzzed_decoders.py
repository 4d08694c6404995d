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
