from __future__ import annotations

import msgspec
import pytest

from headrace.core.errors import DataError
from headrace.core.files import decode_record


class Note(msgspec.Struct):
    format: int
    text: str


DECODER = msgspec.json.Decoder(Note)


def test_a_record_of_the_known_format_is_read():
    assert decode_record(DECODER, b'{"format":2,"text":"a"}', "a note", 2) == Note(2, "a")


@pytest.mark.parametrize("data", [b"", b"{", b'{"format":2}', b'{"format":2,"text":1}', b"\xff"])
def test_what_cannot_be_read_is_shown(data):
    with pytest.raises(DataError, match="a note is unreadable"):
        decode_record(DECODER, data, "a note", 2)


def test_a_record_of_another_format_is_refused_by_its_own_name():
    data = b'{"format":3,"text":"a"}'
    with pytest.raises(DataError, match="note 'a' is of format 3; this version of Headrace reads 2"):
        decode_record(DECODER, data, "a note", 2, lambda note: f"note {note.text!r}")
    with pytest.raises(DataError, match="a note is of format 3") as refused:
        decode_record(DECODER, data, "a note", 2)
    assert refused.value.hint == "use the Headrace that wrote it, or a newer one"
