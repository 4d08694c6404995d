"""Call a user's function that makes an app, with ``--arg NAME=VALUE`` from the command line."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.core.errors import UsageError

_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_CONVERTED = (int, float, bool, str, Path)


def arguments_for(function: Callable[..., Any], named: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Return ``NAME=VALUE`` pairs as the function's arguments, in the types that it declares.

    Raises ``UsageError``, which shows the signature, if they don't fit it. ``named`` is how errors name the function.
    """
    signature = _signature(function)
    shown = f"{named}{_text(signature)}"
    given = _pairs(pairs)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    takes = {p.name: p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [name for name in given if name not in takes and not takes_any]
    if unknown:
        raise UsageError(
            f"{shown} has no argument {unknown[0]!r}",
            hint=f"its arguments: {', '.join(takes)}" if takes else "the function has no arguments: leave out --arg",
        )
    needed = (p for p in signature.parameters.values() if p.default is p.empty)
    missing = [p.name for p in needed if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in given]
    if missing:
        raise UsageError(
            f"{shown} needs {' and '.join(missing)}", hint=" ".join(f"--arg {name}=VALUE" for name in missing)
        )
    return {name: _value(text, name, takes.get(name), shown) for name, text in given.items()}


def described(name: str, function: Callable[..., Any]) -> str:
    """Return a function with its signature, for error messages."""
    return f"{name}{_text(_signature(function))}"


def _pairs(pairs: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name.isidentifier() or not equals:
            raise UsageError(f"--arg {pair}: expected NAME=VALUE", hint="write --arg topic=orders")
        if name in given:
            raise UsageError(f"--arg {name} is given twice: {given[name]!r} and {value!r}")
        given[name] = value
    return given


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # only type checkers can read such an annotation
        return inspect.signature(function)


def _text(signature: inspect.Signature) -> str:
    return str(signature.replace(return_annotation=inspect.Signature.empty))


def _value(text: str, name: str, parameter: inspect.Parameter | None, shown: str) -> Any:
    declared = str if parameter is None else _type(parameter)
    if declared not in _CONVERTED:
        raise UsageError(
            f"{shown}: argument {name!r} can't be given on the command line",
            hint="write a function that calls this one and has only arguments of type int, float, bool, str and "
            "pathlib.Path",
        )
    try:
        return _TRUTHS[text.lower()] if declared is bool else declared(text)
    except (ValueError, KeyError) as error:
        known = "; write true or false" if declared is bool else ""
        raise UsageError(
            f"--arg {name}={text}: {text!r} isn't of type {declared.__name__}{known}", hint=shown
        ) from error


def _type(parameter: inspect.Parameter) -> Any:
    """Return the declared type (``int`` for ``int | None``), else the type of the default, else ``str``."""
    declared = parameter.annotation
    if declared is parameter.empty:
        return str if parameter.default in (parameter.empty, None) else type(parameter.default)
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        some = [one for one in typing.get_args(declared) if one is not types.NoneType]
        return some[0] if len(some) == 1 else declared
    return declared
