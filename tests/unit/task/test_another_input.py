"""An app notices when it starts that an input isn't the stream any more that it has read."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest
from driven_app import INTERVAL_MS, DrivenApp

import headrace as hr
from headrace.core.errors import StreamNotFoundError


def test_an_input_that_was_cut_and_has_grown_back_is_refused(tmp_path: Path) -> None:
    """All records have the same size, so the position of the checkpoint begins one again."""
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64}, home=tmp_path)
    file = tmp_path / "streams" / "numbers" / "p00000.log"

    def write(*numbers: int) -> None:
        with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
            for number in numbers:
                writer.write(pl.DataFrame({"n": [number]}))

    app = hr.App("copying", home=str(tmp_path), checkpoint_interval=f"{INTERVAL_MS}ms")
    app.input("numbers", {"n": pl.Int64}).send_to(app.output("copies"))
    write(1)
    cut = file.stat().st_size
    write(2, 3)
    with DrivenApp(app) as driven:
        driven.start()
        driven.run(3 * INTERVAL_MS)
        assert driven.rows("copies")["n"].to_list() == [1, 2, 3]
    with DrivenApp(app) as driven:
        driven.start()  # nothing has changed
        driven.run(3 * INTERVAL_MS)
    size = file.stat().st_size
    os.truncate(file, cut)
    write(4, 5, 6)
    assert file.stat().st_size > size
    with DrivenApp(app) as driven, pytest.raises(StreamNotFoundError, match=r"the record before offset \d+ is missing"):
        driven.start()
