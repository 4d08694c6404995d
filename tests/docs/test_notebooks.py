"""The notebook in ``examples/notebooks`` runs in a kernel of its own, and shows what it is there to show."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# They are imported only where a notebook is run: all processes of the tests read this file.
for needed in ("nbclient", "nbformat", "ipykernel"):
    if find_spec(needed) is None:
        pytest.skip(f"{needed} isn't installed, so no notebook can be run", allow_module_level=True)

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "examples" / "notebooks"
TIME_MAX_S = 180

Outputs = dict[str, list[Any]]


@pytest.fixture(scope="module")
def page_views(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """What each cell shows when all have been executed."""
    import nbclient
    import nbformat

    folder = tmp_path_factory.mktemp("notebook")
    book = nbformat.read(NOTEBOOKS / "page_views.ipynb", as_version=4)
    place = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(book, timeout=TIME_MAX_S, kernel_name="python3", resources=place)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / "config"))
        client.execute(env=os.environ | {"PYTHONPATH": str(ROOT / "src")})
    return {cell.id: cell.outputs for cell in book.cells if cell.cell_type == "code"}


def test_notebooks_have_no_outputs_in_the_repository() -> None:
    import nbformat

    books = [nbformat.read(path, as_version=4) for path in NOTEBOOKS.glob("*.ipynb")]
    assert books
    assert [cell.id for book in books for cell in book.cells if cell.get("outputs")] == []


def test_progress_is_one_line_that_is_rewritten(page_views: Outputs) -> None:
    (first,), (second,) = page_views["run"], page_views["replaced"]
    assert first["data"]["text/plain"].startswith("views-per-member drained after ")
    assert second["data"]["text/plain"].startswith("views-per-member ended after ")


def test_flows_apps_and_runs_are_shown_as_tables(page_views: Outputs) -> None:
    (plan,), (rows,), (status,) = page_views["plan"], page_views["first-counts"], page_views["end"]
    assert "<b>views-per-member: 2 stages" in plan["data"]["text/html"]
    assert "window_start" in rows["data"]["text/html"]
    assert "<b>views-per-member</b> finished" in status["data"]["text/html"]


def test_the_metrics_are_those_of_an_app_that_has_started(page_views: Outputs) -> None:
    (rows,) = page_views["metrics"]
    assert "checkpoint" in rows["data"]["text/plain"]


def test_a_second_run_is_refused_until_the_first_is_replaced(page_views: Outputs) -> None:
    (refusal,) = page_views["refusal"]
    assert "app 'views-per-member' is already running in this process, since " in refusal["text"]
    assert "app.start(replace=True)" in refusal["text"]


def test_results_are_those_of_both_versions(page_views: Outputs) -> None:
    (result,) = page_views["results"]
    assert [line.split() for line in result["data"]["text/plain"].splitlines()[1:4]] == [
        ["ann", "21"],
        ["bob", "20"],
        ["eve", "20"],
    ]
