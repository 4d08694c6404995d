"""Whoever reads committed results from their beginning is told when some of them are gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import ProtocolError
from headrace.core.frame import Kind
from headrace.core.ids import SSP, StreamId
from headrace.streams.reader import CommittedGate, Frame, FrameReader
from headrace.systems.base import Edge
from headrace.systems.log.segment import FILE_HEADER_SIZE
from headrace.systems.log.system import Findings, Gap, GapKind, Inspection, repair_stream
from headrace.systems.registry import home_log, open_system


def run(home: Path) -> None:
    """Copy a stream to ``copies``."""
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64}, home=home)
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        writer.write(pl.DataFrame({"n": range(10)}))
        writer.seal()
    app = hr.App("copying", home=home, checkpoint_interval="1h")
    app.input("numbers", {"n": pl.Int64}).send_to(app.output("copies"))
    app.run(local=True, progress=False)


def frames(home: Path) -> list[Frame]:
    stream = StreamId("log", "copies")
    reader = FrameReader(open_system(home_log(home)), stream, CommittedGate(), lambda _: False)
    return [frame for found in reader.read({SSP(stream, 0): Edge.OLDEST}) for frame in found]


def lose(home: Path, frame: Frame) -> None:
    gap = Gap(frame.offset, frame.after, GapKind.DAMAGED)
    repair_stream(home / "streams", Findings("copies", (Inspection(0, 32, 32, 0, sealed=False, gaps=(gap,)),)))


def test_a_committed_result_that_is_gone_is_missed(tmp_path: Path) -> None:
    run(tmp_path)
    assert hr.streams.read_stream("copies", committed=True, home=tmp_path)["n"].to_list() == list(range(10))
    lose(tmp_path, next(frame for frame in frames(tmp_path) if frame.header.kind is Kind.USER))
    with pytest.raises(ProtocolError, match=r"log\.copies\[0\].*frames are missing"):
        hr.streams.read_stream("copies", committed=True, home=tmp_path)


def test_so_is_the_beginning_of_all(tmp_path: Path) -> None:
    run(tmp_path)
    first = frames(tmp_path)[0]
    lose(tmp_path, replace(first, offset=FILE_HEADER_SIZE, after=first.offset))  # its producer's first frame
    with pytest.raises(ProtocolError, match="without the restore frame that starts a generation"):
        hr.streams.read_stream("copies", committed=True, home=tmp_path)


def test_where_the_beginning_was_trimmed_nothing_is_missed(tmp_path: Path) -> None:
    run(tmp_path)
    (frame,) = frames(tmp_path)
    open_system(home_log(tmp_path)).admin().trim(frame.ssp, frame.offset)
    assert hr.streams.read_stream("copies", committed=True, home=tmp_path)["n"].to_list() == list(range(10))
