"""Joins of two streams: within a bound of event time, or with the latest message of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl
from typing_extensions import override

from headrace.api.event_time import LostTime, Time, needed_time
from headrace.api.expressions import unknown_column
from headrace.api.keys import key_columns
from headrace.api.location import Location
from headrace.api.operators.spec import EventTime, OperatorSpec, StateMeaning, all_carried, typed
from headrace.api.operators.wording import names, offset, signed
from headrace.core.duration import Duration, format_ms, to_ms
from headrace.core.errors import DeclarationError
from headrace.serdes.schema import Schema
from headrace.stores.form import StateForm, with_types

JoinHow = Literal["inner", "left", "full"]
Within = Duration | tuple[Duration, Duration]


@dataclass(frozen=True, slots=True)
class StreamJoin(OperatorSpec):
    """The base of the joins of two streams.

    Columns are those of ``left.join(right, on=keys, suffix=suffix)`` in Polars, with the keys coalesced.
    """

    keys: tuple[str, ...]
    how: JoinHow
    code = "JOIN"
    hidden_state = "a join"
    gathers_keys = True

    @override
    def carried(self, before: Schema) -> Mapping[str, tuple[str, ...]]:
        # A full join has rows without a left message: only the keys are never null.
        return {key: (key,) for key in self.keys} if self.how == "full" else all_carried(before)

    def _kept(self, inputs: Sequence[Schema], **fixed: str) -> StateMeaning:
        """Messages that wait for a partner may gain columns, and lose them."""
        columns = {
            f"{side} {name}": str(dtype)
            for side, schema in zip(("left", "right"), inputs, strict=True)
            for name, dtype in schema.columns.items()
            if name not in self.keys
        }
        key = typed(self.keys, inputs[0])
        fixed = {"kind": self.kind, "how": self.how, "key": key} | fixed
        return StateMeaning(fixed=fixed, columns=columns, sheds=True, key=self.keys)


@dataclass(frozen=True, slots=True)
class IntervalJoin(StreamJoin):
    """Joins its two inputs by key where the right time is in [left - before_ms, left + after_ms]."""

    before_ms: int
    after_ms: int
    left_time: EventTime
    right_time: EventTime
    suffix: str = "_right"
    kind = "join"

    @property
    @override
    def needs_event_time(self) -> bool:
        return True

    @property
    @override
    def detail(self) -> str:
        return f"{self.how} on {names(self.keys)}, {signed(-self.before_ms)} to {signed(self.after_ms)}"

    @override
    def state_forms(self, id_: str, inputs: Sequence[Schema]) -> dict[str, StateForm]:
        found = {}
        for name, schema, alone in zip(
            ("left", "right"), inputs, (self.how != "inner", self.how == "full"), strict=True
        ):
            what = f"the {name} side of a join" + (", with messages that may leave alone" if alone else "")
            key = with_types(self.keys, schema.columns)
            values = [column for column in schema.columns if column not in self.keys]
            columns = with_types(values, schema.columns)
            found[f"{id_}.{name}"] = StateForm(what=what, key=key, columns=columns)
            if alone:
                matched = f"what had a partner on the {name} side of a join"
                found[f"{id_}.{name}-matched"] = StateForm(what=matched, key=key)
        return found

    @property
    @override
    def join_bound_ms(self) -> int:
        return max(self.before_ms, self.after_ms)

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        sides = (("left", self.left_time), ("right", self.right_time))
        times = {f"{side} time": f"{time.column}{offset(time.offset_ms)}" for side, time in sides}
        bounds = f"{signed(-self.before_ms)} to {signed(self.after_ms)}"
        return {id_: self._kept(inputs, **{"within": bounds} | times)}


@dataclass(frozen=True, slots=True)
class LatestJoin(StreamJoin):
    """Joins each message with the latest one of its key from the other input, for ``ttl_ms`` of the wall clock."""

    ttl_ms: int
    suffix: str = "_right"
    kind = "join_latest"

    @property
    @override
    def detail(self) -> str:
        return f"{self.how} on {names(self.keys)}, the last one for {format_ms(self.ttl_ms)}"

    @property
    @override
    def join_bound_ms(self) -> int:
        return self.ttl_ms

    @override
    def kept_state(self, id_: str, inputs: Sequence[Schema]) -> Mapping[str, StateMeaning]:
        return {id_: self._kept(inputs)}


def stream_join(
    left: tuple[Schema, Time],
    right: tuple[Schema, Time],
    *,
    on: str | Sequence[str] | None,
    how: JoinHow,
    within: Within | None,
    suffix: str,
    here: Location,
) -> tuple[IntervalJoin, Schema, Time]:
    """The checked spec of a join within a time bound, with the schema and event time of its results."""
    if on is None:
        raise DeclarationError("a join of two streams needs on=", hint='write on="member"')
    _check_how(how)
    before, after = join_bounds(within)
    keys = join_keys(on, left[0], right[0])
    columns = joined_columns(left[0], right[0], keys, suffix)
    left_time = needed_time(left[1], left[0], "the left side of a join")
    right_time = needed_time(right[1], right[0], "the right side of a join")
    time: Time = left_time
    if how == "full":
        time = LostTime(left_time.column, "became nullable", "join", here)
    return IntervalJoin(keys, how, before, after, left_time, right_time, suffix), Schema.of(columns), time


def latest_join(
    left: tuple[Schema, Time],
    right: tuple[Schema, Time],
    *,
    on: str | Sequence[str],
    how: JoinHow,
    ttl: Duration,
    suffix: str,
    here: Location,
) -> tuple[LatestJoin, Schema, Time]:
    """The checked spec of a join of latest messages, with the schema and event time of its results."""
    _check_how(how)
    keys = join_keys(on, left[0], right[0])
    columns = joined_columns(left[0], right[0], keys, suffix)
    time = left[1]
    if isinstance(time, EventTime):
        # The left message of a result may have arrived hours ago.
        time = LostTime(time.column, "may be that of an older message", "join_latest", here)
    return LatestJoin(keys, how, to_ms(ttl, "ttl", minimum=1), suffix), Schema.of(columns), time


def _check_how(how: object) -> None:
    if how not in ("inner", "left", "full"):
        raise DeclarationError(f"how={how!r} is not one of the choices", hint='write "inner", "left" or "full"')


def join_bounds(within: Within | None) -> tuple[int, int]:
    """How far (ms) the right message may be before and after the left one."""
    if within is None:
        raise DeclarationError(
            "a join of two streams needs within=, or it would have to keep all messages forever",
            hint='write within="5m", or within=("-5m", "+1m"): from 5 min before the left one to 1 min after',
        )
    if not isinstance(within, tuple):
        bound = to_ms(within, "within")
        return bound, bound
    if len(within) != 2:
        raise DeclarationError(f"within={within!r} is not a pair", hint='write within=("-5m", "+1m")')
    earliest, latest = (to_ms(bound, "within", minimum=None) for bound in within)
    if earliest > latest:
        raise DeclarationError(
            f"within={within!r} ends before it begins",
            hint="the earlier bound comes first, and may be negative",
        )
    return -earliest, latest


def join_keys(on: str | Sequence[str], left: Schema, right: Schema) -> tuple[str, ...]:
    """The key columns, which both sides have with the same type."""
    keys = key_columns(on, left, "join")
    for name in keys:
        if name not in right.columns:
            raise unknown_column(name, right.columns, " on the right side")
        check_key_types(name, left.columns[name], name, right.columns[name])
    return keys


def joined_columns(left: Schema, right: Schema, right_keys: tuple[str, ...], suffix: str) -> dict[str, pl.DataType]:
    """The left columns, then the right ones without the key; ``suffix`` is added to names that are taken."""
    result = dict(left.columns)
    for name, dtype in right.columns.items():
        if name in right_keys:
            continue
        new = f"{name}{suffix}" if name in left.columns else name
        if new in result:
            raise DeclarationError(
                f"both sides have a column {new!r}", hint="rename one of them, or choose another suffix="
            )
        result[new] = dtype
    return result


def check_key_types(ours: str, left: pl.DataType, theirs: str, right: pl.DataType) -> None:
    """Raise unless the two key columns have the same type."""
    if left != right:
        raise DeclarationError(
            f"the key {ours!r} is {left} on the left side, and {theirs!r} is {right} on the right",
            hint="cast one of them in with_columns(...) before the join",
        )
