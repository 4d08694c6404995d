"""Up to where a batch job reads each input: to its end if it has one, else to where the user says."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from headrace.api.specs import Role
from headrace.core.errors import PlanError, UsageError
from headrace.core.ids import SSP, Offset
from headrace.core.moment import parse_moment, utc_text
from headrace.plan.model import Plan, StreamPlan
from headrace.runtime.connections import Connections
from headrace.systems.base import Extent
from headrace.systems.registry import keeps_rows

NOW = "now"


@dataclass(frozen=True, slots=True)
class Until:
    """What the user says of inputs that don't end. ``at_ms`` None: they are read up to where they end now."""

    at_ms: int | None = None

    @classmethod
    def of(cls, text: str) -> Until:
        """What ``--until`` means: ``now``, or a time. Raises ``UsageError``."""
        if text == NOW:
            return cls()
        try:
            return cls(parse_moment(text)[0])
        except UsageError as error:
            raise UsageError(f"until={text!r} is neither {NOW!r} nor a time", hint=error.hint) from error

    @override
    def __str__(self) -> str:
        return NOW if self.at_ms is None else utc_text(self.at_ms)


def ends_of(plan: Plan, until: Until | None, given: frozenset[str] = frozenset()) -> dict[SSP, Offset]:
    """Where each partition of a source ends that a batch job reads, if it doesn't end by itself.

    ``given`` are inputs that are DataFrames. Raises ``PlanError`` for an input that doesn't end, if ``until`` is None.
    """
    connections = Connections()
    ends: dict[SSP, Offset] = {}
    try:
        for stream in plan.streams.values():
            spec = stream.spec
            if spec.role in (Role.SOURCE, Role.SIDE_INPUT) and spec.id not in given:
                ends |= _ends_of(connections, stream, until)
    finally:
        connections.close()
    return ends


def _ends_of(connections: Connections, stream: StreamPlan, until: Until | None) -> dict[SSP, Offset]:
    spec = stream.spec
    admin = connections.admin(spec.system)
    info = admin.describe(spec.stream.name)
    if keeps_rows(spec.system) and not (info is not None and info.until_offset):
        if spec.slots or info is None or not (info.bounded or info.until_caught_up):
            raise _unbounded(stream, "headrace run without --batch reads it")
        return {}
    if info is not None and info.bounded and keeps_rows(spec.system):
        return {}
    extents = admin.extents(spec.stream.name)
    if until is None and not all(extent.sealed for extent in extents):
        raise _unbounded(stream, "say up to where to read it: --until now, or --until 2026-01-31T12:00Z")
    at_ms = None if until is None else until.at_ms
    return {
        ssp: extent.upcoming if at_ms is None else _at(ssp, extent, admin.offset_at(ssp, at_ms))
        for ssp, extent in zip(stream.ssps(), extents, strict=True)
    }


def _at(ssp: SSP, extent: Extent, offset: Offset) -> Offset:
    return max(extent.oldest, min(extent.upcoming, offset))


def _unbounded(stream: StreamPlan, hint: str) -> PlanError:
    spec = stream.spec
    return PlanError(
        f"input {spec.id!r} ({spec.stream}, {spec.location}) doesn't end, so neither would a batch job", hint=hint
    )
