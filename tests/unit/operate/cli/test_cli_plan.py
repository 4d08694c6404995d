from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("clean_modules")

PIPELINE = """
import polars as pl
import headrace as hr

app = hr.App("page-views", home={home!r})
views = app.input("views", schema={{"member": pl.String, "ts": pl.Int64}}, event_time="ts")
(views.partition_by("member", id="by-member")
      .window(hr.tumbling("10s"), key="member", id="per-10s").agg(views=pl.len())
      .send_to(app.output("counts")))
"""


@pytest.fixture
def pipeline(tmp_path: Path, home: Path) -> Path:
    file = tmp_path / "pipeline.py"
    file.write_text(PIPELINE.format(home=str(home)))
    return file


@pytest.fixture
def views(cli: Cli) -> None:
    cli("stream", "create", "views", "--partitions", 3, "--schema", "member:str,ts:i64")


@pytest.mark.usefixtures("views")
def test_the_plan_as_text_names_stages_counts_and_lines(cli: Cli, pipeline: Path) -> None:
    shown = cli("plan", pipeline)
    assert shown.code == 0
    assert shown.out.startswith("page-views: 2 stages, 6 tasks")
    assert "3 partitions" in shown.out
    assert "pipeline.py:6" in shown.out


@pytest.mark.usefixtures("views")
def test_the_plan_as_json(cli: Cli, pipeline: Path, home: Path) -> None:
    plan = cli("plan", pipeline, "--json").json()
    assert plan["applicationName"] == "page-views"
    assert [job["jobName"] for job in plan["jobs"]]
    assert set(plan["sourceStreams"]) == {"views"}
    assert [path.name for path in (home / "streams").iterdir()] == ["views"], "planning creates nothing"


@pytest.mark.usefixtures("views")
def test_the_plan_as_a_page(cli: Cli, pipeline: Path, tmp_path: Path) -> None:
    done = cli("plan", pipeline, "--html", tmp_path / "plan.html")
    assert (done.code, done.out, done.err) == (0, "", f"wrote {tmp_path}/plan.html\n")
    assert "by-member" in (tmp_path / "plan.html").read_text()
    failed = cli("plan", pipeline, "--html", tmp_path / "none" / "plan.html")
    assert failed.code == 2
    assert "can't be written: No such file or directory" in failed.err


def test_a_missing_input_is_an_error_with_the_line(cli: Cli, pipeline: Path) -> None:
    failed = cli("plan", pipeline)
    assert failed.code == 2
    assert "source 'views'" in failed.err
    assert "pipeline.py:6" in failed.err
    assert "headrace stream create views" in failed.err


@pytest.mark.usefixtures("views")
def test_the_plan_of_an_app_that_a_function_makes(cli: Cli, tmp_path: Path, home: Path) -> None:
    (tmp_path / "made.py").write_text(
        "import polars as pl\nimport headrace as hr\n\n"
        "def make(name):\n"
        f"    app = hr.App(name, home={str(home)!r})\n"
        "    app.input('views', {'member': pl.String}).send_to(app.output('copies'))\n"
        "    return app\n"
    )
    refused = cli("plan", f"{tmp_path}/made.py:make")
    assert (refused.code, "made.py:make(name) needs name" in refused.err) == (2, True)
    assert cli("plan", f"{tmp_path}/made.py:make", "--arg", "name=copier").out.startswith("copier: 1 stage, 3 tasks")


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("def f(:", 1, "is not valid Python"),
        ("x = 1", 2, "has no app at its top level"),
        ("import headrace as hr\nhr.App('a b')", 2, "'a b' is not a usable id"),
    ],
)
def test_a_file_that_declares_no_app(cli: Cli, tmp_path: Path, text: str, code: int, message: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    failed = cli("plan", tmp_path / "bad.py")
    assert failed.code == code
    assert message in failed.err
    assert "headrace/cli" not in failed.err
