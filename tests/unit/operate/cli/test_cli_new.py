"""``headrace new``: what it writes is a project whose tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from headrace.operate.cli.run import PROJECT_FILES


def test_a_new_project_passes_its_tests_and_can_be_planned(cli, tmp_path, clean_modules, monkeypatch):
    outcome = cli("new", "page-views")
    assert (outcome.code, outcome.out.split()) == (0, [f"page-views/{file}" for file in PROJECT_FILES])
    project = tmp_path / "page-views"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env=os.environ, check=False)
    assert done.stdout.splitlines()[-1].startswith("3 passed"), done.stdout
    checked = subprocess.run([sys.executable, "-m", "ruff", "check", "--isolated", "."], cwd=project, check=False)
    assert checked.returncode == 0
    monkeypatch.chdir(project)
    made = [
        line.removeprefix("$ headrace ").replace("'", "").split()
        for line in (project / "README.md").read_text().splitlines()
        if line.startswith(("$ headrace stream create", "$ headrace plan"))
    ]
    assert [cli(*words).code for words in sorted(made, reverse=True)] == [0, 0]


def test_what_its_files_say(cli, tmp_path):
    assert cli("new", "page-views", "--folder", "app").code == 0
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "page-views"
    assert set(yaml.safe_load((tmp_path / "app" / ".github" / "workflows" / "test.yml").read_text())["jobs"]) == {
        "test"
    }
    assert "{" not in (tmp_path / "app" / "Dockerfile").read_text()


@pytest.mark.parametrize("name", ["Page Views", "page_views", "../views", "-views", ""])
def test_a_name_that_streams_cannot_have_is_refused(cli, tmp_path, name):
    assert cli("new", "--", name).code == 2
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(cli, tmp_path):
    Path("page-views").mkdir()
    Path("page-views/notes.txt").write_text("keep")
    outcome = cli("new", "page-views")
    assert (outcome.code, "isn't an empty folder" in outcome.err) == (2, True)
    assert [path.name for path in Path("page-views").iterdir()] == ["notes.txt"]
