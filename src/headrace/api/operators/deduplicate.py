"""``deduplicate`` and ``drop_late``: operators that leave out messages by their event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from headrace.api.event_time import Time, needed_time
from headrace.api.handles import Output, check_target
from headrace.api.keys import key_columns, key_parts
from headrace.api.operators.column_set import ColumnSet
from headrace.api.operators.spec import EventTime, OperatorSpec, StateMeaning, typed
from headrace.api.operators.wording import names, offset
from headrace.core.duration import Duration, format_ms, to_ms
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema
from headrace.stores.form import StateForm, with_types


@dataclass(frozen=True, slots=True)
class Deduplicate(OperatorSpec):
    """Drops a message whose time is less than ``within_ms`` away from one of its key that was let through."""

    keys: tuple[str, ...]
    within_ms: int
    event_time: EventTime
    kind = "deduplicate"
    passes_rows = True
    hidden_state = "a deduplicate"
    gathers_keys = True

    @property
    @override
    def needs_event_time(self) -> bool:
        return True

    @property
    @override
    def detail(self) -> str:
        return f"by {names(self.keys)} within {format_ms(self.within_ms)}"

    @override
    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        return {id_: StateForm(what="what deduplicate has seen", key=with_types(self.keys, inputs[0].columns))}

    @property
    @override
    def columns_used(self) -> ColumnSet:
        return frozenset({*self.keys, self.event_time.column})

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        fixed = {
            "kind": self.kind,
            "key": typed(self.keys, inputs[0]),
            "within": format_ms(self.within_ms),
            "time": f"{self.event_time.column}{offset(self.event_time.offset_ms)}",
        }
        return {id_: StateMeaning(fixed=fixed, key=self.keys)}


@dataclass(frozen=True, slots=True)
class DropLate(OperatorSpec):
    """Drops messages that are older than the watermark."""

    event_time: EventTime
    kind = "drop_late"
    passes_rows = True

    @property
    @override
    def needs_event_time(self) -> bool:
        return True

    @property
    @override
    def columns_used(self) -> ColumnSet:
        return frozenset({self.event_time.column})


def deduplicate_step(schema: Schema, time: Time, key: str | Sequence[str], within: Duration) -> Deduplicate:
    """The checked spec of ``deduplicate``."""
    if key is not None and not key_parts(key):
        raise DeclarationError(
            "key= names no column, so any two messages would be duplicates",
            hint='write key="order" or key=["shop", "order"]',
        )
    keys = key_columns(key, schema, "deduplicate")
    own = next((name for name in keys if name.startswith("__")), None)
    if own is not None:
        raise DeclarationError(
            f"the column {own!r} can't be a key here: names that begin with '__' are reserved",
            hint="rename it first",
        )
    within_ms = to_ms(within, "within", minimum=None)
    if within_ms <= 0:
        raise DeclarationError(
            f"within={within!r} is not a positive duration, so nothing would count as a duplicate",
            hint='give the longest time between duplicates: within="1h"',
        )
    return Deduplicate(keys, within_ms, needed_time(time, schema, "deduplicate"))


def drop_late_step(schema: Schema, time: Time, late_to: object) -> DropLate:
    """The checked spec of ``drop_late``."""
    if late_to is not None:
        check_target(late_to)
        if not isinstance(late_to, Output):
            raise DeclarationError("late messages go to an output", hint='write late_to=app.output("late")')
    return DropLate(needed_time(time, schema, "drop_late"))
