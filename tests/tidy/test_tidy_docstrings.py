"""Public docstrings follow numpydoc, and list exactly the parameters that there are, or name all of them in a text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from test_tidy_public import public

import headrace
from headrace.kit import contracts
from headrace.kit.harness import TestApp

SECTIONS = ["Parameters", "Returns", "Raises", "Examples"]

CALLED = {
    headrace.App,
    headrace.streams.StreamReader,
    headrace.streams.StreamWriter,
    headrace.tables.TableReader,
    headrace.tasks.Store,
    headrace.tasks.Timer,
    TestApp,
}
"""The classes that users instantiate with arguments; others are made by functions, or are protocols."""

ELSEWHERE = {headrace.Schema, headrace.calls.Retry}
"""Not for users to call."""


def documented() -> Iterator[tuple[str, Callable[..., Any]]]:
    kit = {"TestApp": TestApp} | {name: getattr(contracts, name) for name in contracts.__all__}
    for path, one in (public() | kit).items():
        if inspect.isfunction(one) or one in CALLED:
            yield path, one
        if isinstance(one, type) and one not in ELSEWHERE and not issubclass(one, Exception):
            for name, member in inspect.getmembers(one, inspect.isfunction):
                if not name.startswith("_"):
                    yield f"{path}.{name}", member


def sections(doc: str) -> dict[str, list[str]]:
    """The sections in order, each as its lines."""
    found: dict[str, list[str]] = {"": []}
    lines = inspect.cleandoc(doc).splitlines()
    current = ""
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if re.fullmatch("-+", after) and len(after) == len(line):
            current = line
            assert current not in found, current
            found[current] = []
        elif not (re.fullmatch("-+", line) and not found[current]):
            found[current].append(line)
    return found


def parameters(lines: list[str]) -> dict[str, str]:
    """What a section describes, alone or together (``one, other``), and the first line of each description."""
    names = [number for number, line in enumerate(lines) if line and not line.startswith(" ")]
    said = {lines[number]: lines[number + 1].strip() if number + 1 < len(lines) else "" for number in names}
    return {name: text for together, text in said.items() for name in together.split(", ")}


@pytest.mark.parametrize(("path", "one"), list(documented()), ids=lambda value: value if isinstance(value, str) else "")
def test_parameters_are_listed(path: str, one: Callable[..., Any]) -> None:
    found = sections(one.__doc__ or "")
    assert list(found)[1:] == [section for section in SECTIONS if section in found]
    prefixes = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    signature = inspect.signature(one)
    wanted = [prefixes.get(p.kind, "") + name for name, p in signature.parameters.items() if name != "self"]
    listed = parameters(found.get("Parameters", []))
    text = " ".join(found[""])
    in_the_text = all(f"``{name.lstrip('*')}``" in text for name in wanted)
    assert list(listed) == wanted or (in_the_text and not listed), wanted
    assert all(listed.values()), "each parameter is described"
    assert "Returns" not in found or any(found["Returns"]), "a section isn't empty"


def test_the_rule_sees_what_is_missing_and_what_is_invented() -> None:
    text = """
    Do something.

    Parameters
    ----------
    one
        A number.
    other, *more
        More of them.

    Returns
    -------
    int
    """
    listed = parameters(sections(text)["Parameters"])
    assert listed == {"one": "A number.", "other": "More of them.", "*more": "More of them."}
    assert list(sections(text)) == ["", "Parameters", "Returns"]
