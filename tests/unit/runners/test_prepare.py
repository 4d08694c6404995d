"""What is created and checked before an app runs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import StreamSealedError
from headrace.plan.planner import plan
from headrace.runners.facts import gather_facts
from headrace.runners.prepare import prepare_streams
from headrace.streams.place import open_log

COLUMNS = {"n": pl.Int64}


@pytest.fixture
def app(tmp_path: Path) -> hr.App:
    hr.streams.create_stream("numbers", 2, COLUMNS, home=tmp_path)
    app = hr.App("doubles", home=tmp_path)
    dealt = app.input("numbers", COLUMNS).partition_by("n", id="dealt")
    dealt.select(pl.col("n") * 2).send_to(app.output("doubles"))
    dealt.send_to(app.output("report", system=hr.io.files(str(tmp_path / "report"), format="jsonl")))
    return app


def prepare(app: hr.App, *stages: str) -> None:
    prepare_streams(plan(app.graph(), gather_facts(app.graph())), stages)


@pytest.mark.parametrize(
    ("stream", "told", "stage", "other"),
    [
        ("doubles", r"sink stream 'doubles' \(log\.doubles, .*\) is sealed, and stage 'dealt'", "dealt", "numbers"),
        ("dealt", r"intermediate stream 'dealt' \(log\.doubles-dealt, .*\) is sealed", "numbers", "dealt"),
    ],
)
def test_a_sealed_stream_is_found_before_its_writers_start(
    tmp_path: Path, app: hr.App, stream: str, told: str, stage: str, other: str
) -> None:
    prepare(app)
    name = next(spec.stream.name for spec in app.graph().streams.values() if spec.id == stream)
    open_log(tmp_path).admin().seal(name)
    with pytest.raises(StreamSealedError, match=told) as caught:
        prepare(app)
    assert "a seal is permanent" in (caught.value.hint or "")
    with pytest.raises(StreamSealedError):
        prepare(app, stage)
    prepare(app, other)


def test_a_sealed_input_is_as_good_as_any(tmp_path: Path, app: hr.App) -> None:
    open_log(tmp_path).admin().seal("numbers")
    prepare(app)
