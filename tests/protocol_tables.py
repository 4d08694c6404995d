"""Writes the protocol's tables for its documentation: ``python tests/protocol_tables.py docs/protocol.md``.

The page contains pairs of comment lines, ``<!-- drawn: NAME -->`` and ``<!-- end -->``. The text between them is
replaced. Without a file argument, all tables are written to standard output.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.protocol.frame_judge import RULES
from headrace.protocol.machine import DECISIONS, STEPS
from headrace.protocol.protocol import Phase, Step

_MARKED = re.compile(r"(<!-- drawn: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

_START = (
    Phase.DOWN,
    Phase.FENCING,
    Phase.REPLAYING,
    Phase.RESUMING,
    Phase.ANNOUNCING,
    Phase.SCANNING,
)


def start() -> str:
    """Return the table of start and rollback: the phases from ``DOWN`` to ``RUNNING``."""
    return _phases([step for step in STEPS if step.phase in _START])


def commit() -> str:
    """Return the table of a running task: feeding, finishing, and the phases of a commit."""
    return _phases([step for step in STEPS if step.phase not in _START])


def decisions() -> str:
    """Return the table of what a running task does next."""
    rows = [(_words(d.when), d.summary, d.phase.value) for d in DECISIONS]
    return _table(("when", "what", "phase"), rows)


def rules() -> str:
    """Return the table of what happens to a received frame."""
    rows = []
    for rule in RULES:
        kinds = ", ".join(kind.name.lower() for kind in sorted(rule.kinds))
        rows.append((kinds, _words(rule.when), rule.summary))
    return _table(("kinds", "guard", "what"), rows)


def _phases(steps: Sequence[Step]) -> str:
    rows = []
    for step in steps:
        guarded = [f"{phase.value} if {_words(guard)}" for guard, phase in step.then[:-1]]
        last = [phase.value for _, phase in step.then[-1:]] or ["nothing"]
        rows.append((step.phase.value, _words(step.instruction), ", else ".join(guarded + last)))
    return _table(("phase", "the task does", "then"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _words(method: str | Callable[..., object]) -> str:
    """Return what a method of a table is called, in words. The rules of frames have names, the other tables methods."""
    return (method if isinstance(method, str) else method.__name__).replace("_", " ")


DRAWINGS: Mapping[str, Callable[[], str]] = {
    "start": start,
    "commit": commit,
    "decisions": decisions,
    "rules": rules,
}


def redraw(page: str) -> str:
    """Return the page with the text between its marks replaced by current drawings."""

    def drawn(match: re.Match[str]) -> str:
        draw = DRAWINGS.get(match[2])
        if draw is None:
            raise UsageError(f"there is no drawing named {match[2]!r}; there are {', '.join(DRAWINGS)}")
        return f"{match[1]}\n{draw()}\n\n{match[3]}"

    return _MARKED.sub(drawn, page)


def main(arguments: Sequence[str]) -> None:
    """Redraw the given pages, or print all drawings."""
    for name in arguments:
        page = Path(name)
        page.write_text(redraw(page.read_text()))
    if not arguments:
        sys.stdout.write("\n\n".join(draw() for draw in DRAWINGS.values()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
