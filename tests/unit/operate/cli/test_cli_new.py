"""``headrace new``: what it writes is a project whose tests pass."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
import typer
import yaml
from packaging.requirements import Requirement

import headrace
from headrace import __version__
from headrace.operate.cli.main import app
from headrace.operate.cli.run import PROJECT_FILES

COLUMNS = "member:str,url:str,ts:datetime[ms]"


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


def test_the_views_that_its_readme_writes_give_a_result(cli, tmp_path, clean_modules, monkeypatch):
    assert cli("new", "shop").code == 0
    monkeypatch.syspath_prepend(tmp_path / "shop")
    lines = (tmp_path / "shop" / "README.md").read_text().splitlines()
    views = [json.loads(line.split("'")[1]) for line in lines if line.startswith("$ echo")]
    with importlib.import_module("pipeline").declare().test(partitions=2) as t:
        for partition, view in enumerate(views):
            t.feed("shop-views", [{**view, "ts": datetime.fromisoformat(view["ts"])}], partition=partition)
        assert t.read("shop-views-per-member").height == 0
        t.advance("30s")
        assert t.read("shop-views-per-member")["views"].to_list() == [1]


def test_what_its_files_say(cli, tmp_path):
    assert cli("new", "page-views", "--folder", "app").code == 0
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "page-views"
    assert set(yaml.safe_load((tmp_path / "app" / ".github" / "workflows" / "test.yml").read_text())["jobs"]) == {
        "test"
    }
    assert "{" not in (tmp_path / "app" / "Dockerfile").read_text()


@dataclass
class Image:
    """A Dockerfile's lines, as far as a folder can stand for an image."""

    lines: list[tuple[str, str]]
    folder: Path

    @classmethod
    def of(cls, project: Path, folder: Path) -> Image:
        folder.mkdir()
        text = (project / "Dockerfile").read_text().splitlines()
        lines = [(word, rest) for word, _, rest in (line.partition(" ") for line in text) if word not in ("", "#")]
        for _, what in (line for line in lines if line[0] == "COPY"):
            *files, place = what.split()
            for file in files:
                shutil.copy(project / file, folder / place)
        return cls(lines, folder)

    def all(self, word: str) -> list[str]:
        return [rest for each, rest in self.lines if each == word]

    def pip_install(self) -> list[str]:
        (command,) = (one for one in self.all("RUN") if one.startswith("pip install"))
        return [word for word in shlex.split(command)[2:] if word != "--no-cache-dir"]

    def command(self) -> list[str]:
        (entry,), (default,) = self.all("ENTRYPOINT"), self.all("CMD")
        return [*json.loads(entry), *json.loads(default)]


@pytest.fixture
def image(cli, tmp_path) -> Image:
    assert cli("new", "page-views").code == 0
    return Image.of(tmp_path / "page-views", tmp_path / "image")


def test_the_image_has_what_its_command_needs(cli, image, tmp_path, clean_modules, monkeypatch):
    """From the base image and the system's own commands up to a start: each line but those of Docker itself."""
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in image.lines} == known
    project = tomllib.loads((image.folder / "pyproject.toml").read_text())["project"]
    assert image.all("FROM") == [f"python:{project['requires-python'].removeprefix('>=')}-slim"]
    here, needed = (Requirement(word) if word != "." else word for word in image.pip_install())
    assert (here, needed.name) == (".", "headrace")
    assert needed.specifier.contains(__version__, prereleases=True)
    assert needed.extras <= set(importlib.metadata.metadata("headrace").get_all("Provides-Extra"))
    system, _ = image.all("RUN")
    assert [shutil.which(part.split()[0]) is not None for part in system.split(" && ")] == [True, True]
    (volume,), (user,) = image.all("VOLUME"), image.all("USER")
    assert f"--owner={user} " in system and system.endswith(f" {volume}")  # else only root could write there
    assert image.all("ENV") == [f"HEADRACE_HOME={volume}"]
    assert hasattr(signal, *image.all("STOPSIGNAL"))
    program, verb, *options = image.command()
    run = typer.main.get_command(app).commands[verb]
    given = run.make_context(verb, [*options]).params
    assert (program, given["pipeline"], given["master"]) == ("headrace", "pipeline.py", "local[2]")
    monkeypatch.chdir(image.folder)
    assert cli("stream", "create", "page-views-views", "--partitions", "1", "--schema", COLUMNS).code == 0
    assert cli("plan", given["pipeline"]).code == 0


@pytest.mark.soak
def test_the_project_can_be_installed_and_started_as_the_image_does(image, tmp_path):
    """In an environment of its own, but for what Headrace needs, and in one process."""
    bin_ = tmp_path / "environment" / "bin"
    own = sysconfig.get_path("purelib")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "PYTHON"))}
    environment |= {
        "HEADRACE_HOME": str(tmp_path / "data"),
        "PYTHONPATH": f"{Path(headrace.__file__).parents[1]}:{own}",
    }

    def run(*words: object) -> None:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=image.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    run(sys.executable, "-m", "venv", "--without-pip", bin_.parent)
    pip = ("-m", "pip", "--python", bin_ / "python", "install", "--no-deps", "--no-build-isolation")
    run(sys.executable, *pip, *(word for word in image.pip_install() if word == "."))
    command = (bin_ / "python", "-m", "headrace")
    run(*command, "stream", "create", "page-views-views", "--partitions", "2", "--schema", COLUMNS)
    run(*command, "stream", "seal", "page-views-views")
    verb, file, *_ = image.command()[1:]
    run(*command, verb, file, "--local")
    run(bin_ / "python", "-P", "-c", "import pipeline, sys; sys.exit('site-packages' not in pipeline.__file__)")
    assert (tmp_path / "data" / "streams" / "page-views-views-per-member").is_dir()


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
