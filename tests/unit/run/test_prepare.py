"""What is created and checked before an app runs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.api.dataframe import DataFrameInput
from headrace.core.errors import PlanError, StreamExistsError, StreamNotFoundError, StreamSealedError
from headrace.plan.planner import plan
from headrace.run.planning import at_home, gather_facts, held_by_driver, prepare_streams
from headrace.streams.committed_writer import open_log

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


def test_only_stages_that_read_a_dataframe_need_it(tmp_path: Path) -> None:
    app = hr.App("doubles", home=tmp_path)
    dealt = app.input("numbers", system=DataFrameInput(object(), {"n": pl.Int64()})).partition_by("n", id="dealt")
    dealt.send_to(app.output("out"))
    planned = plan(at_home(app.graph()), gather_facts(app.graph()))
    assert [spec.id for spec in held_by_driver(planned)] == ["numbers"]
    assert [spec.id for spec in held_by_driver(planned, ["numbers"])] == ["numbers"]
    assert held_by_driver(planned, ["dealt"]) == []


def test_without_its_copy_a_dataframe_is_no_stream(tmp_path: Path) -> None:
    app = hr.App("doubles", home=tmp_path)
    app.input("numbers", system=DataFrameInput(object(), {"n": pl.Int64()})).send_to(app.output("out"))
    with pytest.raises(StreamNotFoundError, match=r"no file or folder matches .*dataframes/doubles/numbers"):
        prepare(app)


def grown(home: Path, *, reports: bool) -> hr.App:
    """The app; with ``reports`` it has a column more, in its intermediate stream and in its output."""
    app = hr.App("grown", home=home)
    numbers = app.input("numbers", {"n": pl.Int64})
    if reports:
        numbers = numbers.with_columns(half=pl.col("n") / 2)
    numbers.partition_by("n", id="dealt").send_to(app.output("out"))
    return app


def test_a_new_column_reaches_intermediate_stream_and_output(tmp_path: Path) -> None:
    """The first version leaves frames in its intermediate stream; the second one reads them together with its own."""
    hr.streams.create_stream("numbers", 1, COLUMNS, home=tmp_path)
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.write([{"n": 1}, {"n": 2}])
        writer.seal()
    grown(tmp_path, reports=False).run(local=True, stages=["numbers"], progress=False)
    later = grown(tmp_path, reports=True)
    later.run(local=True, stages=["dealt"], progress=False)
    out = hr.streams.read_stream("out", home=tmp_path)
    assert sorted(out.rows()) == [(1, None), (2, None)]
    assert out.schema == {"n": pl.Int64, "half": pl.Float64}
    dealt = hr.streams.StreamReader("grown-dealt", home=tmp_path)
    assert dealt.columns == {"n": pl.Int64, "half": pl.Float64}
    prepare(grown(tmp_path, reports=False))  # an earlier version still runs


def test_a_changed_type_is_refused(tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 1, COLUMNS, home=tmp_path)
    prepare(grown(tmp_path, reports=True))
    app = hr.App("grown", home=tmp_path)
    numbers = app.input("numbers", {"n": pl.Int64}).with_columns(half=pl.col("n") // 2)
    numbers.partition_by("n", id="dealt").send_to(app.output("other"))
    with pytest.raises(StreamExistsError, match="stream 'grown-dealt': column 'half' is Float64, not Int64"):
        prepare(app)


def test_an_input_takes_old_frames_once_the_column_is_added(tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 1, COLUMNS, home=tmp_path)
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.write([{"n": 1}])
        app = hr.App("reads", home=tmp_path)
        app.input("numbers", {"n": pl.Int64, "note": pl.String}).send_to(app.output("seen"))
        with pytest.raises(PlanError, match=r"column 'note' .* is missing") as caught:
            prepare(app)
        assert "headrace stream add-column numbers 'note:str'" in (caught.value.hint or "")
        hr.streams.add_columns("numbers", {"note": pl.String}, home=tmp_path)
        writer.write([{"n": 2}])
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.write([{"n": 3, "note": "new"}])
        writer.seal()
    app.run(local=True, progress=False)
    assert sorted(hr.streams.read_stream("seen", home=tmp_path).rows()) == [(1, None), (2, None), (3, "new")]


def test_a_stream_without_columns_takes_the_rows_of_any_output(tmp_path: Path) -> None:
    hr.streams.create_stream("in", 1, {"member": pl.String}, home=tmp_path)
    hr.streams.create_stream("any", 1, home=tmp_path)
    with hr.streams.StreamWriter("in", home=tmp_path) as writer:
        writer.write([{"member": "ann"}])
        writer.seal()
    app = hr.App("copy", home=tmp_path)
    app.input("in", {"member": pl.String}).send_to(app.output("any"))
    app.run(local=True, progress=False)
    assert hr.streams.read_stream("any", home=tmp_path).rows() == [("ann",)]


def test_containers_dont_get_the_url_of_the_metadata_store(app: hr.App) -> None:
    secret = hr.App("secret", metadata="postgresql://ann:s3cret@db/headrace")
    secret.input("numbers", COLUMNS).send_to(secret.output("doubles"))
    graph = at_home(secret.graph())
    assert "s3cret" in secret.settings.metadata.text
    assert graph.settings.metadata is None
    assert Path(graph.settings.home).is_absolute()
