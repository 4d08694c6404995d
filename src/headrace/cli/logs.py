"""The options for log lines. Every command accepts them anywhere: before the verb, after it, or at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from headrace.core.errors import UsageError
from headrace.core.log import FORMATS, LEVELS, LogSettings

LOG_LEVEL = "--log-level"
LOG_FORMAT = "--log-format"

Choice = TypeVar("Choice", bound=str)


def log_settings(words: Sequence[str]) -> tuple[LogSettings, list[str]]:
    """Return the log settings of a command line, and its other words. Words after ``--`` belong to the app.

    >>> from headrace.cli.logs import log_settings
    >>> log_settings(["run", "pipeline.py", "--log-level", "debug", "--local"])
    (LogSettings(level='debug', format='text'), ['run', 'pipeline.py', '--local'])
    """
    end = words.index("--") if "--" in words else len(words)
    own, rest = list(words[:end]), list(words[end:])
    level = _take(own, LOG_LEVEL, LEVELS, default="warning")
    kind = _take(own, LOG_FORMAT, FORMATS, default="text")
    return LogSettings(level, kind), own + rest


def _take(words: list[str], option: str, choices: Sequence[Choice], default: Choice) -> Choice:
    """Remove the option with its value from ``words``; return the value, or the last one if there are several."""
    chosen = default
    while (at := next((n for n, word in enumerate(words) if word.partition("=")[0] == option), None)) is not None:
        _, equals, value = words[at].partition("=")
        if not equals:
            value = words[at + 1] if at + 1 < len(words) else ""
        del words[at : at + (1 if equals else 2)]
        found = next((choice for choice in choices if choice == value.lower()), None)
        if found is None:
            raise UsageError(
                f"{option} {value}: expected one of {', '.join(choices)}", hint=f"write {option} {default}"
            )
        chosen = found
    return chosen
