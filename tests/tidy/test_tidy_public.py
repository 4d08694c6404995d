"""What users see: every public name, setting, command, option and error is explained somewhere."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from tidy_repository import SOURCE, documents, package, texts

import headrace
from headrace.api.app import Declarations
from headrace.cli.main import app as command_line
from headrace.core import errors

FAULTS = {"user", "data", "environment", "headrace"}

ERRORS = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.HeadraceError)]


ELSEWHERE = {
    "headrace.stores.database.StateCorruptError": "a subclass that the task's start tells apart",
    "headrace.stores.database.StateLockedError": "a subclass that the task's start tells apart",
    "headrace.serdes.row_pieces.RowsUnreadable": "never leaves the files system",
    "headrace.testing.system_scene.ContractError": "a failed check, for any test framework",
}


def public() -> list[str]:
    return [name for name in headrace.__all__ if not name.startswith("__")]


def mentioned(word: str, text: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


# -- names


def test_exports_are_sorted_and_written_by_hand() -> None:
    tree = ast.parse((SOURCE / "headrace" / "__init__.py").read_text(encoding="utf-8"))
    imported = {a.asname or a.name for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert headrace.__all__ == sorted(headrace.__all__)
    assert set(headrace.__all__) == imported | {"__version__"}
    assert not [node for node in tree.body if not isinstance(node, ast.ImportFrom | ast.Assign | ast.Expr)]


@pytest.mark.parametrize("name", public())
def test_public_names_have_a_docstring_of_their_own(name: str) -> None:
    one = getattr(headrace, name)
    assert one.__dict__.get("__doc__") if isinstance(one, type) else one.__doc__, name
    if isinstance(one, type):
        bare = [
            member
            for member, value in vars(one).items()
            if not member.startswith("_")
            and (inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod))
            and not inspect.getdoc(getattr(one, member))
        ]
        assert bare == []


@pytest.mark.parametrize("name", public())
def test_public_names_are_in_the_documents(name: str) -> None:
    examples = "\n".join(text for file, text in texts().items() if file.startswith("examples/"))
    assert mentioned(name, documents()) or mentioned(f"hr.{name}", examples)


# -- settings


@pytest.mark.parametrize(
    "setting", [n for n, p in inspect.signature(Declarations.__init__).parameters.items() if p.kind is p.KEYWORD_ONLY]
)
def test_settings_of_an_app_are_in_the_documents(setting: str) -> None:
    assert f"`{setting}`" in texts()["docs/plan.md"]


@pytest.mark.parametrize(
    "method",
    [n for n, m in vars(headrace.Stream).items() if inspect.isfunction(m) and not n.startswith("_")],
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
    """What users may meet comes from ``core/errors.py``; ``ELSEWHERE`` says which don't, and why."""
    others = {
        f"{source.module}.{node.name}"
        for source in package()
        if source.module != errors.__name__
        for node in source.nodes(ast.ClassDef)
        if any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
    }
    assert {name for name in others if not name.rpartition(".")[2].startswith("_")} == set(ELSEWHERE)
