"""delta: what an app says of a table."""

import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.core.secrets import SecretOptions
from headrace.plan.planner import plan
from headrace.plan.render import render, to_json, to_text
from headrace.systems.base import StreamInfo

WITH_KEY = "s3://host:s3cret-of-mine@bucket/x"
SECRET = {"aws_secret_access_key": "s3cret-of-mine"}


def test_a_table_is_a_system_for_each_stream() -> None:
    spec = hr.io.delta(Path("lake/views"), partition_by="day", new_columns="add").system("views.v1")
    assert (spec.name, spec.kind) == ("delta-views-v1", "delta")
    assert spec.options == {
        "path": "lake/views",
        "partition_by": ("day",),
        "create": True,
        "new_columns": "add",
        "storage": SecretOptions(),
    }
    assert not spec.may_repeat
    assert hr.io.delta("x", partition_by=["a", "b"]).partition_by == ("a", "b")


def test_a_plan_says_exactly_once_and_shows_no_secret() -> None:
    app = hr.App("views")
    views = app.input("views", {"member": pl.String})
    views.send_to(app.output("lake", system=hr.io.delta("s3://bucket/views", storage_options=SECRET)))
    planned = plan(app.graph(), {"views": StreamInfo("views", 2)})
    text = to_text(render(planned))
    assert "into lake (exactly-once)" in text
    for shown in (repr(planned), text, str(to_json(render(planned)))):
        assert "s3cret" not in shown
    spec = planned.graph.streams["lake"].system
    assert pickle.loads(pickle.dumps(spec)).options["storage"].reveal() == SECRET


def test_a_table_is_no_input() -> None:
    with pytest.raises(hr.errors.DeclarationError, match="the Delta table lake/views can't be an input") as caught:
        hr.App("a").input("x", {"n": pl.Int64}, system=hr.io.delta("lake/views"))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hr.io.delta(""), "delta: the path of the table is empty"),
        (lambda: hr.io.delta("file:///lake"), r"delta: a Delta table can't be written to file://\.\.\."),
        (lambda: hr.io.delta(WITH_KEY), "contains credentials"),
        (lambda: hr.io.delta("x", partition_by=["a", "a"]), r"partition_by=\['a', 'a'\] names a column twice"),
        (lambda: hr.io.delta("x", new_columns="maybe"), "new_columns='maybe'"),  # type: ignore[arg-type]
        (lambda: hr.io.delta("x", storage_options=SECRET), "storage_options are for object stores"),
        (lambda: hr.io.delta("s3://bucket/x", storage_options={"n": 1}), "the value of 'n' isn't text"),  # type: ignore[dict-item]
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        make()
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)
