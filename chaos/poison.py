"""Poison among the orders: messages that can't be read or don't fit. The app must set each aside once, and go on."""

from __future__ import annotations

import random
import re
from pathlib import Path

import polars as pl

from chaos.committed import committed_rows
from chaos.verdict import Comparison, compare
from headrace.core.frame import Header, Kind, encode
from headrace.rows.ipc import decode_rows, encode_rows
from headrace.streams import StreamWriter
from headrace.systems.log.system import LogSystem

LETTERS = "unreadable"
"""The app's output of what was set aside."""
SHARE = 0.3
"""Before how many of the batches there is poison."""


class PoisonedWriter:
    """Writes rows to a stream of the log, and sometimes poison before them. It is numbered."""

    def __init__(self, stream: str, home: Path, seed: int) -> None:
        system = LogSystem(home / "streams")
        info = system.admin().describe(stream)
        assert info is not None
        self._stream, self._partitions = stream, info.partitions
        self._rows = StreamWriter(stream, home=home)
        self._poison = system.producer()
        self._random = random.Random(seed)
        self.count = 0

    def write(self, rows: pl.DataFrame) -> None:
        """Write rows."""
        if self._random.random() < SHARE:
            payload = _poison(self.count)
            self._poison.send(self._stream, self._random.randrange(self._partitions), payload)
            self._poison.flush()
            self.count += 1
        self._rows.write(rows)

    def seal(self) -> None:
        """End the stream."""
        self._rows.seal()

    def close(self) -> None:
        """Write no more."""
        self._poison.close()
        self._rows.close()


def _poison(number: int) -> bytes:
    mark = f"poison-{number}"
    order = {"order": number, "member": 1, "amount": 1, "ts": 0}
    match number % 5:
        case 0:
            return mark.encode()
        case 1:
            return encode(Header(Kind.USER), mark.encode())
        case 2:
            return encode(Header(Kind.USER), encode_rows(pl.DataFrame([order | {"order": mark}])))
        case 3:
            return encode(Header(Kind.USER), encode_rows(pl.DataFrame([order | {"ts": 2**62}])))
        case _:
            return encode(Header(Kind.USER), encode_rows(pl.DataFrame([order | {"ts": None}])))


def _number(letter: bytes) -> int:
    if marked := re.search(rb"poison-(\d+)", letter):
        return int(marked[1])
    number: int = decode_rows(letter)["order"][0]
    return number


def judge_letters(home: Path, poison: int) -> Comparison:
    """Compare what the app has set aside with what there was."""
    letters, held = committed_rows(home, LETTERS)
    found = pl.DataFrame({"poison": map(_number, letters["raw"])}, schema={"poison": pl.Int64})
    return compare(LETTERS, found, pl.DataFrame({"poison": range(poison)}, schema={"poison": pl.Int64}), held)
