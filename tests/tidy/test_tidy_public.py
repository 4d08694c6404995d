"""Every public name, setting, command, option and error is documented."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tidy_repository import documents, package, texts

import headrace
from headrace.api.app import Declarations
from headrace.core import errors
from headrace.operate.cli.main import app as command_line

FAULTS = {"user", "data", "environment", "headrace"}

ERRORS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.HeadraceError)]


ELSEWHERE = {
    "headrace.connectors.formats.avro.SchemasDisagree": "becomes a bad payload, or an error of an app",
    "headrace.rows.pieces.RowsUnreadable": "never leaves the files system",
    "headrace.rows.values.UnfitError": "becomes a DataError, or a failure of a function",
    "headrace.task.operators.functions.WrongResult": "becomes an error of an app, or a dead letter",
    "headrace.connectors.kinesis.api.IteratorExpired": "never leaves the Kinesis system",
    "headrace.systems.files.rowfile.SourceBroken": "never leaves the files system",
    "headrace.kit.systems.ContractError": "a failed check, for any test framework",
}


NAMESPACES = {name: one for name in headrace.__all__ if inspect.ismodule(one := getattr(headrace, name))}


def public() -> dict[str, Any]:
    """Every public name by its one place, such as ``App`` or ``windows.sliding``, and what it is."""
    top = {name: getattr(headrace, name) for name in headrace.__all__ if name not in NAMESPACES}
    del top["__version__"]
    spaces = {f"{space}.{name}": getattr(one, name) for space, one in NAMESPACES.items() for name in one.__all__}
    return top | spaces


def mentioned(word: str, text: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


# -- names


@pytest.mark.parametrize("space", [headrace, *NAMESPACES.values()], ids=lambda space: space.__name__)
def test_exports_are_sorted_and_written_by_hand(space: Any) -> None:
    tree = ast.parse(Path(space.__file__).read_text(encoding="utf-8"))
    blocks = {ast.unparse(node.test): node.body for node in tree.body if isinstance(node, ast.If)}
    # What type checkers don't see is the answer to names that don't exist; what only they see is imported when used.
    assert set(blocks) <= {"TYPE_CHECKING", "not TYPE_CHECKING"}
    imports = [node for node in [*tree.body, *blocks.get("TYPE_CHECKING", ())] if isinstance(node, ast.ImportFrom)]
    imported = {a.asname or a.name for node in imports for a in node.names}
    assert space.__all__ == sorted(space.__all__)
    assert set(space.__all__) - {"__version__"} == imported
    others = [node for node in tree.body if not isinstance(node, ast.ImportFrom | ast.Assign | ast.Expr | ast.If)]
    assert not others
    assert space.__doc__


def test_what_is_imported_when_used_is_what_type_checkers_see() -> None:
    tree = ast.parse(Path(headrace.__file__).read_text(encoding="utf-8"))
    (seen,) = [node.body for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    places = {
        name.name: node.module
        for node in seen
        if isinstance(node, ast.ImportFrom) and node.module != "headrace"
        for name in node.names
    }
    assert {name: f"headrace.{module}" for name, module in headrace._MODULES.items()} == places
    assert {one.__name__ for one in NAMESPACES.values()} == {f"headrace.{name}" for name in headrace._NAMESPACES}


def test_every_name_has_one_home() -> None:
    homes: dict[int, list[str]] = {}
    for path, one in public().items():
        homes.setdefault(id(one), []).append(path)
    assert [paths for paths in homes.values() if len(paths) > 1] == []


def test_what_is_at_the_top_is_what_first_programs_use() -> None:
    """So are savepoints, as modules that aren't public have the name ``hr.savepoints``, secrets, and SQL."""
    others = ("savepoint", "secret_env", "secret_file", "sql_app")
    top = [path for path in public() if "." not in path and not path.lower().endswith(others)]
    assert len(top) <= 13


@pytest.mark.parametrize("path", public())
def test_public_names_have_a_docstring_of_their_own(path: str) -> None:
    one = public()[path]
    assert one.__dict__.get("__doc__") if isinstance(one, type) else one.__doc__, path
    if isinstance(one, type):
        bare = [
            member
            for member in dir(one)
            if not member.startswith("_")
            and (inspect.isfunction(value := inspect.getattr_static(one, member)) or isinstance(value, property))
            and not inspect.getdoc(getattr(one, member))
        ]
        assert bare == []


@pytest.mark.parametrize("path", public())
def test_public_names_are_on_the_page_of_names(path: str) -> None:
    """The names are in the row of their namespace."""
    space, _, name = path.rpartition(".")
    home = f"`hr.{space}`" if space else "`hr`"
    rows = [line for line in texts()["docs/api.md"].splitlines() if line.startswith(f"| {home} |")]
    assert any(mentioned(name, row) for row in rows)


# -- settings


@pytest.mark.parametrize(
    "setting", [n for n, p in inspect.signature(Declarations.__init__).parameters.items() if p.kind is p.KEYWORD_ONLY]
)
def test_settings_of_an_app_are_in_the_documents(setting: str) -> None:
    assert f"`{setting}`" in texts()["docs/plan.md"]


@pytest.mark.parametrize(
    "method",
    [n for n, m in inspect.getmembers(headrace.Stream, inspect.isfunction) if not n.startswith("_")],
)
def test_operators_are_in_the_changelog(method: str) -> None:
    assert f"`{method}`" in texts()["CHANGELOG.md"]


@pytest.mark.parametrize("option", [*inspect.signature(Declarations.input).parameters][2:])
def test_options_of_an_input_are_explained(option: str) -> None:
    assert mentioned(option, documents())


# -- commands


def commands(group: Any = None, path: str = "headrace") -> Iterator[tuple[str, Any]]:
    group = typer.main.get_command(command_line) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


@pytest.mark.parametrize(("path", "command"), [pytest.param(p, c, id=p) for p, c in commands()])
def test_commands_and_their_options_have_help(path: str, command: Any) -> None:
    assert command.help
    assert [parameter.name for parameter in command.params if not getattr(parameter, "help", None)] == []
    assert "--json" in {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_commands_are_in_the_documents(path: str) -> None:
    text = "\n".join([documents(), texts()["CHANGELOG.md"]])
    if path != "headrace version":  # says itself
        assert path in text or f"`{path.rpartition(' ')[2]}`" in text


# -- errors


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_errors_are_explained(error: type[errors.HeadraceError]) -> None:
    assert error.__dict__.get("__doc__")
    assert error.fault in FAULTS
    row = next(line for line in texts()["docs/errors-and-policies.md"].splitlines() if f"| `{error.fault}` |" in line)
    assert f"`{error.__name__}`" in row


def test_errors_are_of_one_tree() -> None:
    """Errors that users may see come from ``core/errors.py``; ``ELSEWHERE`` lists the exceptions, and why."""
    others = {
        f"{source.module}.{node.name}"
        for source in package()
        if source.module != errors.__name__
        for node in source.nodes(ast.ClassDef)
        if any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
    }
    assert {name for name in others if not name.rpartition(".")[2].startswith("_")} == set(ELSEWHERE)
