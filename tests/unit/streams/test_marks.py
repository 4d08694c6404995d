"""What the frames of a write with an id carry is durable."""

from headrace.core.frame import decode_header
from headrace.streams.writer import WriteMark


def test_golden_bytes() -> None:
    assert WriteMark("orders-05-01").header(
        700
    ).hex() == "0047c4c245 000002bc ffffffffffffffff 0000000000000000".replace(" ", "")


def test_a_mark_is_never_that_of_a_write_without_an_id() -> None:
    numbers = {decode_header(WriteMark(f"w{n}").header(1)).producer for n in range(1000)}
    assert (len(numbers), min(numbers) > 0, max(numbers) < 2**31) == (1000, True, True)


def test_rows_beyond_what_can_be_counted_are_marked_as_such() -> None:
    assert decode_header(WriteMark("w").header(2**40)).generation == 2**31 - 1
