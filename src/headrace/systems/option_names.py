"""The names of a system's options, as a ``SystemSpec`` has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.core.errors import DeclarationError


def check_option_names(name: str, kind: str, options: Mapping[str, Any], known: Iterable[str], *required: str) -> None:
    """Raise ``DeclarationError`` if an option of the system ``name`` is unknown, or if a required one is missing."""
    known = tuple(known)
    unknown = sorted(set(options) - set(known))
    missing = " and ".join(repr(one) for one in required if one not in options)
    if unknown or missing:
        wrong = f"unknown options {unknown}" if unknown else f"no option {missing}"
        raise DeclarationError(f"system {name!r} ({kind}): {wrong}", hint=f"known options: {', '.join(known)}")


KAFKA_LOG_PREFIX = "headrace."
"""The names of the topics of a log in Kafka begin with this, if ``prefix`` isn't among its options."""
