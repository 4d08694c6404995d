"""Resolve startpoints to offsets, and the kinds of startpoint that users define."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, assert_never

import msgspec

from headrace.core import errors
from headrace.core.clock import utc_text
from headrace.core.files import UNREADABLE
from headrace.core.ids import SSP, Offset
from headrace.systems import startpoints
from headrace.systems.base import Admin, Extent

_OR_OLDEST = "--or-oldest with the time: such a partition is then read from the oldest message that is left"


@dataclass(frozen=True, slots=True)
class Place:
    """Read from ``offset`` on, up to ``until``; without the startpoint and a commit, a task begins at ``first``."""

    offset: Offset
    until: Offset | None = None
    first: Offset = 0


class PartitionView:
    """What the function of a custom startpoint may ask about the partition that it is resolved for."""

    def __init__(self, ssp: SSP, admin: Admin) -> None:
        self._ssp = ssp
        self._admin = admin
        self._extent = extent_of(ssp, admin)

    @property
    def stream(self) -> str:
        """The stream's name in its system."""
        return self._ssp.stream.name

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._ssp.partition

    @property
    def oldest(self) -> int:
        """The offset of the oldest message that is kept."""
        return self._extent.oldest

    @property
    def upcoming(self) -> int:
        """The offset that the next message will get."""
        return self._extent.upcoming

    def offset_at(self, time_ms: int) -> int:
        """Return the offset of the first message that arrived at a time or later; the upcoming one if there is none.

        Parameters
        ----------
        time_ms
            Milliseconds since the epoch.

        Returns
        -------
        int
        """
        return self._admin.offset_at(self._ssp, time_ms)


class CustomStartpoint(ABC):
    """A kind of startpoint of your own: a frozen dataclass whose fields can be written as JSON.

    Register it with the app, as in ``hr.App(..., startpoints=[AfterRelease])``. Its fields are kept in the metadata
    store until the app starts; then ``offset`` is called for each partition.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class SinceLaunch(hr.startpoints.CustomStartpoint):
    ...     kind = "since-launch"
    ...     def offset(self, partition):
    ...         return partition.offset_at(1_700_000_000_000)
    >>> app = hr.App("views", startpoints=[SinceLaunch])
    """

    kind: ClassVar[str]
    """The name of the kind, which commands write as ``--custom '{"kind": "after-release", ...}'``."""

    @abstractmethod
    def offset(self, partition: PartitionView) -> int:
        """Return the offset to read from; the end of a message or the beginning of one.

        Parameters
        ----------
        partition
            The partition.

        Returns
        -------
        int
        """


Customs = Sequence[type[CustomStartpoint]]
"""The kinds that an app registers."""


def check_customs(kinds: Iterable[object]) -> Customs:
    found: list[type[CustomStartpoint]] = []
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, CustomStartpoint)):
            what = f"startpoints: {kind!r} isn't a subclass of hr.startpoints.CustomStartpoint"
            raise errors.DeclarationError(what, hint="pass the class itself, as in startpoints=[AfterRelease]")
        name = getattr(kind, "kind", None)
        if not isinstance(name, str) or not name:
            said = f"startpoints: {kind.__name__} has no kind"
            raise errors.DeclarationError(said, hint='write kind = "after-release" in the class')
        if any(other.kind == name for other in found):
            text = f"startpoints: two classes have the kind {name!r}"
            raise errors.DeclarationError(text, hint="give each its own kind")
        found.append(kind)
    return tuple(found)


def extent_of(ssp: SSP, admin: Admin) -> Extent:
    extents = admin.extents(ssp.stream.name)
    if not 0 <= ssp.partition < len(extents):
        what = f"{ssp.stream} has no partition {ssp.partition}; its partitions are 0 to {len(extents) - 1}"
        raise errors.StreamNotFoundError(what, hint="delete the startpoint, or set one for a partition that exists")
    return extents[ssp.partition]


def newest_time(ssp: SSP, admin: Admin, now_ms: int) -> int | None:
    """As precisely as ``offset_at`` allows; None if unknown."""
    extent = extent_of(ssp, admin)
    early, late = admin.time_of(ssp, extent.oldest), now_ms + 1
    if early is None:
        return None
    while late - early > 1:
        middle = (early + late) // 2
        if admin.offset_at(ssp, middle) < extent.upcoming:
            early = middle
        else:
            late = middle
    return early


def resolve(startpoint: startpoints.Startpoint, ssp: SSP, admin: Admin, customs: Customs = ()) -> Offset:
    """Return the offset that a startpoint means in this partition now.

    Raises ``TrimmedOffsetError`` if what it means is no longer kept, ``UnsupportedPositionError`` if the system knows
    no such positions, ``UsageError`` if it makes no sense there, ``UserFunctionError`` if the user's function fails.
    """
    extent = extent_of(ssp, admin)
    match startpoint:
        case startpoints.StartpointOldest():
            return extent.oldest
        case startpoints.StartpointUpcoming():
            return extent.upcoming
        case startpoints.StartpointSpecific(offset=offset):
            admin.check_offset(ssp, offset)
            return offset
        case startpoints.StartpointTimestamp(time_ms=time_ms, or_oldest=or_oldest):
            return _by_time(ssp, admin, extent, time_ms, or_oldest=or_oldest)
        case startpoints.StartpointCustom(name=name, value=value):
            offset = _custom(name, value, ssp, admin, customs)
            admin.check_offset(ssp, offset)
            return offset
        case _:
            assert_never(startpoint)


def resolve_end(end: startpoints.End, start: Offset, ssp: SSP, admin: Admin) -> Offset:
    """Return the offset at which a startpoint ends that begins at ``start``, maybe there. Raises as ``resolve``."""
    if startpoints.is_moment(extent_of(ssp, admin).upcoming):
        what = f"{ssp}: its partitions are slots, which share shards and have no end of their own"
        raise errors.UnsupportedPositionError(what, hint="set the startpoint without until")
    match end:
        case startpoints.EndOffset(offset=offset):
            admin.check_offset(ssp, offset)
        case startpoints.EndTime(time_ms=time_ms):
            offset = admin.offset_at(ssp, time_ms)
        case _:
            assert_never(end)
    if offset < start or (offset == start and isinstance(end, startpoints.EndOffset)):
        what = f"{ssp}: the end, offset {offset}, isn't after the start, offset {start}"
        raise errors.UsageError(what, hint="give an end that is later than the start")
    return offset


def _by_time(ssp: SSP, admin: Admin, extent: Extent, time_ms: int, *, or_oldest: bool) -> Offset:
    offset = admin.offset_at(ssp, time_ms)
    if or_oldest or offset != extent.oldest or not extent.trimmed:
        return offset
    began = admin.time_of(ssp, extent.oldest)
    if began is None and extent.oldest == extent.upcoming:
        _check_nothing_gone(ssp, time_ms, admin.trimmed_ms(ssp))
    elif began is not None and time_ms < began:
        what = f"{ssp} has deleted the messages from {utc_text(time_ms)}: its oldest one arrived at {utc_text(began)}"
        raise errors.TrimmedOffsetError(what, hint=f"use oldest to read all remaining messages, or {_OR_OLDEST}")
    return offset


def _check_nothing_gone(ssp: SSP, time_ms: int, trimmed_ms: int | None) -> None:
    if trimmed_ms is not None and time_ms > trimmed_ms:
        return
    when = "it isn't known when" if trimmed_ms is None else f"the last time at {utc_text(trimmed_ms)}"
    what = f"{ssp} may have deleted messages from {utc_text(time_ms)}: it is empty, and messages were deleted ({when})"
    raise errors.TrimmedOffsetError(what, hint=f"use upcoming for this partition, or {_OR_OLDEST}")


def _custom(name: str, value: Mapping[str, Any], ssp: SSP, admin: Admin, customs: Customs) -> Offset:
    kind = next((one for one in customs if one.kind == name), None)
    if kind is None:
        return admin.custom_offset(ssp, name, value)
    point = as_custom(kind, value)
    try:
        offset: object = point.offset(PartitionView(ssp, admin))
    except errors.HeadraceError:
        raise
    except Exception as error:
        what = f"{kind.__name__}.offset() of the startpoint {name!r} raised {type(error).__name__} for {ssp}: {error}"
        raise errors.UserFunctionError(what, hint="correct the method, or delete the startpoint") from error
    if isinstance(offset, bool) or not isinstance(offset, int):
        what = f"{kind.__name__}.offset() of the startpoint {name!r} returned {offset!r} for {ssp}, not an offset"
        raise errors.UserFunctionError(what, hint="return an int, such as partition.oldest")
    return offset


def as_custom(kind: type[CustomStartpoint], value: Mapping[str, Any]) -> CustomStartpoint:
    try:
        return msgspec.convert(dict(value), kind)
    except (*UNREADABLE, TypeError) as error:
        what = f"the startpoint {kind.kind!r} doesn't take {dict(value)}: {error}"
        raise errors.UsageError(what, hint=f"give the fields of the class {kind.__name__}") from error
