"""What ``deduplicate`` and ``drop_late`` are declared with, checked."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.event_time import Time, needed_time
from headrace.api.handles import Output, check_target
from headrace.api.keys import key_columns
from headrace.api.steps import Deduplicate, DropLate
from headrace.core.duration import Duration, to_ms
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema


def deduplicate_step(schema: Schema, time: Time, key: str | Sequence[str], within: Duration) -> Deduplicate:
    """The step that keeps the first message of a key in a stretch of event time."""
    if key is not None and not isinstance(key, str) and not list(key):
        raise DeclarationError(
            "key= names no column, so any two messages would be duplicates",
            hint='write key="order" or key=["shop", "order"]',
        )
    keys = key_columns(key, schema, "deduplicate")
    own = next((name for name in keys if name.startswith("__")), None)
    if own is not None:
        raise DeclarationError(
            f"the column {own!r} may not be a key here: names that begin with '__' are Headrace's own",
            hint="rename it before",
        )
    within_ms = to_ms(within, "within", minimum=None)
    if within_ms <= 0:
        raise DeclarationError(
            f"within: {within!r} is no stretch of time, so nothing would be a duplicate",
            hint='write how far apart duplicates can be at most: within="1h"',
        )
    return Deduplicate(keys, within_ms, needed_time(time, schema, "deduplicate"))


def drop_late_step(schema: Schema, time: Time, late_to: object) -> DropLate:
    """The step that leaves late messages out."""
    if late_to is not None:
        check_target(late_to)
        if not isinstance(late_to, Output):
            raise DeclarationError("late messages go to an output", hint='write late_to=app.output("late")')
    return DropLate(needed_time(time, schema, "drop_late"))
