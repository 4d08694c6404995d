"""An app may be a variable, or what a function makes, in a file or in a module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.errors import UsageError, UserFunctionError
from headrace.operate.cli.loader import MODULE, load_app

pytestmark = pytest.mark.usefixtures("clean_modules")

TEXT = """
from pathlib import Path
import headrace as hr

LIMIT = 3
first = hr.App("first")
second = hr.App("second")


def make_app(name: str, copies: int = 1, *, share: float | None = None, loud: bool = False, folder: Path = Path()):
    return hr.App(f"{name}-{copies!r}-{share!r}-{loud!r}-{folder.name}")


def untyped(name, copies=1):
    return hr.App(f"{name}-{copies!r}")


def anything(**more):
    return hr.App("-".join(more.values()))


def none():
    pass


def runs():
    made = hr.App("made")
    made.run()
    return made


def broken():
    return 1 / 0


def listed(names: list[str]):
    return hr.App(names[0])


def _own():
    return hr.App("own")
"""
PLACES = ["{file}", "headrace_targets_of_a_test.jobs"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    package = tmp_path / "headrace_targets_of_a_test"
    package.mkdir()
    for file in (tmp_path / "pipeline.py", package / "jobs.py"):
        file.write_text(TEXT)
    (package / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    yield request.param.format(file="pipeline.py")
    for name in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[name]


def test_an_app_by_its_variable(place: str) -> None:
    assert load_app(f"{place}:second").name == "second"
    assert load_app(place, "first").name == "first"


@pytest.mark.parametrize(
    ("function", "values", "name"),
    [
        ("make_app", ["name=a"], "a-1-None-False-"),
        ("make_app", ["name=a", "copies=2", "share=0.5", "loud=true", "folder=x/y"], "a-2-0.5-True-y"),
        ("untyped", ["name=a", "copies=2"], "a-2"),
        ("anything", ["x=1", "y=2"], "1-2"),
        ("_own", [], "own"),
    ],
)
def test_an_app_that_a_function_makes(place: str, function: str, values: list[str], name: str) -> None:
    assert load_app(f"{place}:{function}", values=values).name == name
    assert not hasattr(sys.modules.get(MODULE), "__headrace_loading__")


@pytest.mark.parametrize(
    ("target", "values", "says", "remedy"),
    [
        ("thrid", [], "has no 'thrid' at its top level", "it declares first, second, make_app(name: str, copies: int"),
        ("LIMIT", [], "LIMIT is of type int, neither an app nor a function", "it declares first, second, make_app("),
        ("first", ["x=1"], "first is an app, not a function", "leave out --arg"),
        ("make_app", [], "make_app(name: str, copies: int = 1, *, share", "--arg name=VALUE"),
        ("make_app", ["nam=a"], "has no argument 'nam'", "its arguments: name, copies, share, loud, folder"),
        ("none", ["nam=a"], "none() has no argument 'nam'", "the function has no arguments: leave out --arg"),
        ("make_app", ["name=a", "copies=x"], "--arg copies=x: 'x' isn't of type int", "make_app(name: str"),
        ("make_app", ["name=a", "loud=x"], "'x' isn't of type bool; write true or false", "make_app(name: str"),
        ("make_app", ["name"], "--arg name: expected NAME=VALUE", "write --arg topic=orders"),
        ("make_app", ["name=a", "name=b"], "--arg name is given twice: 'a' and 'b'", None),
        (
            "listed",
            ["names=a"],
            "listed(names: list[str]): argument 'names' can't be given on the command line",
            "int, float",
        ),
        ("none", [], "none returned NoneType, not an app", "end the function with: return app"),
        ("runs", [], "runs the app while the file is being loaded", "put app.run() under"),
        ("", ["x=1"], "--arg needs a function that creates the app, but the command names none", ":listed"),
    ],
)
def test_what_cannot_be_called_says_why(
    place: str, target: str, values: list[str], says: str, remedy: str | None
) -> None:
    with pytest.raises(UsageError) as raised:
        load_app(f"{place}:{target}" if target else place, values=values)
    assert says in raised.value.message
    assert (raised.value.hint is None) if remedy is None else (remedy in (raised.value.hint or ""))


def test_a_function_that_raises_shows_its_own_frames_alone(place: str) -> None:
    with pytest.raises(UserFunctionError) as raised:
        load_app(f"{place}:broken")
    story = raised.value.message
    assert story.startswith(f"{place}:broken can't be loaded\nTraceback")
    assert "in broken\n    return 1 / 0" in story
    assert "loader.py" not in story


def test_a_variable_and_a_name_are_too_much(place: str) -> None:
    with pytest.raises(UsageError, match="and --app both name an app"):
        load_app(f"{place}:first", "first")


def test_a_file_without_an_app_names_its_functions(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text("import headrace as hr\ndef make():\n    return hr.App('one')\n")
    with pytest.raises(UsageError, match="has no app at its top level") as raised:
        load_app(file)
    assert raised.value.hint == f"if a function creates the app, name the function: {file}:make"


@pytest.mark.parametrize("target", ["headrace_nowhere", "headrace_nowhere.jobs:app", "headrace.nowhere:app"])
def test_no_module(target: str) -> None:
    with pytest.raises(
        UsageError, match=r"there is no file headrace.nowhere.* and no module headrace.nowhere"
    ) as raised:
        load_app(target)
    assert raised.value.hint == "give the Python file that declares the app"


def test_a_module_whose_import_fails_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "headrace_broken_of_a_test.py").write_text("import headrace_nowhere\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserFunctionError, match="No module named 'headrace_nowhere'") as raised:
        load_app("headrace_broken_of_a_test:app")
    assert 'headrace_broken_of_a_test.py", line 1, in <module>' in raised.value.message
    assert "loader.py" not in raised.value.message
