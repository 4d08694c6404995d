"""Determine where a batch job stops reading each input: at its end, or at the position that the user sets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from typing_extensions import override

from headrace.api.specs import Role
from headrace.core.clock import parse_moment, utc_text
from headrace.core.errors import PlanError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.plan.model import Plan, StreamPlan
from headrace.systems.base import StreamInfo
from headrace.systems.registry import keeps_rows
from headrace.task.connections import Connections

NOW = "now"
_OFFSET = re.compile(r"(?P<input>[^/=\s]+)/(?P<partition>\d+)=(?P<offset>\d+)")


@dataclass(frozen=True, slots=True)
class Until:
    """The user's ends for inputs that don't end: ``offsets`` of partitions, else ``at_ms``, else their present ends."""

    at_ms: int | None = None
    offsets: Mapping[tuple[str, int], Offset] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Until:
        """Parse ``--until``: ``now``, a time, or ``INPUT/PARTITION=OFFSET,...``. Raises ``UsageError``."""
        if text == NOW:
            return cls()
        if "=" in text:
            return cls(None, _offsets(text))
        try:
            return cls(parse_moment(text)[0])
        except UsageError as error:
            raise UsageError(f"until={text!r} is neither {NOW!r} nor a time", hint=error.hint) from error

    @override
    def __str__(self) -> str:
        if self.offsets:
            return ",".join(f"{input_}/{number}={offset}" for (input_, number), offset in sorted(self.offsets.items()))
        return NOW if self.at_ms is None else utc_text(self.at_ms)


def _offsets(text: str) -> dict[tuple[str, int], Offset]:
    found: dict[tuple[str, int], Offset] = {}
    for part in text.split(","):
        matched = _OFFSET.fullmatch(part.strip())
        if matched is None:
            raise UsageError(
                f"until={text!r}: {part.strip()!r} is not the offset of a partition",
                hint="write views/0=1200,views/1=980",
            )
        place = matched["input"], int(matched["partition"])
        if place in found:
            raise UsageError(f"until={text!r} names partition {place[1]} of {place[0]} twice")
        found[place] = int(matched["offset"])
    return found


def ends_of(plan: Plan, until: Until | None, given: frozenset[str] = frozenset()) -> dict[SSP, Offset]:
    """Return where a batch job stops reading each partition that doesn't end by itself. ``given`` are DataFrames."""
    ends: dict[SSP, Offset] = {}
    with closing(Connections()) as connections:
        _check_named(connections, plan, until, given)
        for stream in plan.streams.values():
            spec = stream.spec
            if spec.role in (Role.SOURCE, Role.SIDE_INPUT) and spec.id not in given:
                ends |= _ends_of(connections, stream, until)
    return ends


def _ends_of(connections: Connections, stream: StreamPlan, until: Until | None) -> dict[SSP, Offset]:
    spec = stream.spec
    admin = connections.admin(spec.system)
    info = admin.describe(spec.stream.name)
    if keeps_rows(spec.system):
        if _ends_by_itself(stream, info):
            return {}
        if info is None or not info.until_offset:
            raise _unbounded(stream, "headrace run without --batch reads it")
    extents = admin.extents(spec.stream.name)
    if until is None and not all(extent.sealed for extent in extents):
        raise _unbounded(stream, "set where to stop reading: --until now, or --until 2026-01-31T12:00Z")
    said = until or Until()
    ends = {}
    for ssp, extent in zip(stream.ssps(), extents, strict=True):
        named = said.offsets.get((spec.id, ssp.partition))
        if named is not None:
            admin.check_offset(ssp, named)
            ends[ssp] = named
        elif said.at_ms is None:
            ends[ssp] = extent.upcoming
        else:
            ends[ssp] = max(extent.oldest, min(extent.upcoming, admin.offset_at(ssp, said.at_ms)))
    return ends


def _ends_by_itself(stream: StreamPlan, info: StreamInfo | None) -> bool:
    if info is None or stream.spec.slots or not keeps_rows(stream.spec.system):
        return False
    return info.bounded or (info.until_caught_up and not info.until_offset)


def _check_named(connections: Connections, plan: Plan, until: Until | None, given: frozenset[str]) -> None:
    for input_, number in until.offsets if until is not None else ():
        stream = plan.streams.get(input_)
        if stream is None or stream.spec.role not in (Role.SOURCE, Role.SIDE_INPUT):
            known = sorted(s.id for s in plan.graph.streams.values() if s.role in (Role.SOURCE, Role.SIDE_INPUT))
            raise UsageError(
                f"until= names {input_!r}, which isn't an input", hint=f"the inputs are {', '.join(known)}"
            )
        info = connections.admin(stream.spec.system).describe(stream.spec.stream.name)
        if input_ in given or _ends_by_itself(stream, info):
            raise UsageError(
                f"until= names input {input_!r}, which is always read to its end", hint="leave out this input"
            )
        if number >= stream.partitions:
            raise UsageError(
                f"until= names partition {number} of input {input_!r}", hint=f"it has 0 to {stream.partitions - 1}"
            )


def _unbounded(stream: StreamPlan, hint: str) -> PlanError:
    spec = stream.spec
    return PlanError(
        f"input {spec.id!r} ({spec.stream}, {spec.location}) doesn't end, so neither would a batch job", hint=hint
    )
