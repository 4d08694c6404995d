"""Check arguments that must be one of a few words."""

from __future__ import annotations

from typing import TypeVar, get_args

from headrace.core.errors import DeclarationError

_Choice = TypeVar("_Choice", bound=str)


def one_of(what: str, value: _Choice, literal: object) -> _Choice:
    """Return ``value`` if it is one of the values of a ``Literal``."""
    allowed = get_args(literal)
    if value not in allowed:
        names = ", ".join(f'"{name}"' for name in allowed)
        raise DeclarationError(f"{what}={value!r} is not one of the choices", hint=f"write one of {names}")
    return value
