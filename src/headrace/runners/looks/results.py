"""What looks find, as JSON, and their limits."""

from __future__ import annotations

import msgspec

ROWS_MAX = 10
"""How many rows a task is asked for."""

VALUE_CHARS_MAX = 200
COLUMNS_MAX = 50
TASKS_MAX = 8
"""So many tasks are peeked at."""

SECONDS_MAX = 30.0


class Peeked(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Rows that a step took in one task: the values of each as text. ``over``: there won't be more."""

    columns: list[str] = msgspec.field(default_factory=list)
    rows: list[list[str]] = msgspec.field(default_factory=list)
    over: bool = False


class Profiled(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the threads of a container did: how many times each stack was seen, and how often it was looked.

    ``left_ms`` is how long it still takes.
    """

    stacks: dict[str, int] = msgspec.field(default_factory=dict)
    samples: int = 0
    left_ms: int = 0


# Made here, not when the first answer comes: threads that each make the first decoder of a kind end the process.
PEEKED = msgspec.json.Decoder(Peeked)
PROFILED = msgspec.json.Decoder(Profiled)
