"""Facts about streams, for commands: their systems, positions in them, and what a trim deletes.

``NAME`` and ``log.NAME`` are streams of the embedded log, whose offsets are byte positions; those of other logs count
frames. Apps record their other systems in the metadata store when they start; ``--app`` names the app whose to use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace.core.clock import WallClock, check_past, parse_moment, to_ms, utc_text
from headrace.core.errors import UsageError
from headrace.core.ids import SSP, Offset, StreamId, check_id
from headrace.core.secrets import SecretUrl
from headrace.operate.cli.console import print_note
from headrace.operate.words import counted, format_bytes
from headrace.rows.dtypes import columns_to_json
from headrace.systems.base import Admin, Edge, Position, StreamInfo, System
from headrace.systems.registry import LOG, SystemSpec, home_log, offsets_are_bytes, open_system, require_stream

FORMS = "write oldest, upcoming, OFFSET or PARTITION:OFFSET; headrace stream describe shows the offsets"
_SYSTEM = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Place:
    """A stream that the command line names, and its system. The stream need not exist."""

    stream: StreamId
    spec: SystemSpec
    system: System
    home: Path

    def admin(self) -> Admin:
        return self.system.admin()

    def ssp(self, partition: int) -> SSP:
        return SSP(self.stream, partition)

    def find(self) -> StreamInfo | None:
        return self.admin().describe(self.stream.name)

    def require(self) -> StreamInfo:
        return require_stream(self.system, self.stream, self.home)

    def require_partition(self, partition: int) -> StreamInfo:
        info = self.require()
        if not 0 <= partition < info.partitions:
            raise UsageError(
                f"{self.stream} has no partition {partition}; its partitions are 0 to {info.partitions - 1}"
            )
        return info

    def log_folder(self) -> Path:
        if self.spec.kind != LOG:
            raise UsageError(
                f"{self.stream} is a stream of {self.spec.kind}, not of a file log", hint="use the tools of that system"
            )
        return Path(self.spec.options["root"])

    def size(self, offsets: int) -> int | None:
        """Return how many bytes so many offsets span; None where offsets count frames."""
        return offsets if offsets_are_bytes(self.spec) else None

    def amount(self, offsets: int) -> str:
        return format_bytes(offsets) if offsets_are_bytes(self.spec) else counted(offsets, "frame")


def locate(text: str, home: Path, metadata: SecretUrl | None = None, app: str | None = None) -> Place:
    """Return the stream that ``NAME`` or ``SYSTEM.NAME`` refers to; ``app`` says whose system a bare ``NAME`` is in."""
    system, dot, name = text.partition(".")
    if not dot or not _SYSTEM.fullmatch(system):
        system, name = "", text
    if app is None and system in ("", LOG):
        return place_in(home_log(home), name, home)
    from headrace.life.apps import system_called
    from headrace.life.metadata import existing_metadata

    with existing_metadata(home, metadata) as store:
        try:
            spec = system_called(store, home, system, app)
        except UsageError as error:
            if app is None:
                error.hint = f"{error.hint}; if {text!r} is the name of a stream of the log, write {LOG}.{text}"
            raise
    return place_in(spec, name, home)


def place_in(spec: SystemSpec, name: str, home: Path) -> Place:
    return Place(StreamId(spec.name, check_id("stream", name)), spec, open_system(spec), home)


def shape(place: Place, info: StreamInfo) -> dict[str, Any]:
    columns = None if info.columns is None else columns_to_json(info.columns)
    added = [name for name in columns or () if name in info.added]
    about = {"stream": str(place.stream), "partitions": info.partitions, "columns": columns}
    return about | {"added": added, "key": list(info.key)}


def facts_about(place: Place, groups: Sequence[str] = ()) -> dict[str, Any]:
    """Return everything about one stream, also the positions of these ``groups``: the names of apps that read it."""
    info = place.require()
    admin = place.admin()
    extents = admin.extents(place.stream.name)
    readers = []
    for group in sorted(set(groups)):
        for partition, position in admin.reported_positions(place.stream.name, group).items():
            lag = max(0, extents[partition].upcoming - position)
            readers.append({"group": group, "partition": partition, "position": position, "lag": lag})
    total = sum(extent.upcoming - extent.oldest for extent in extents)
    partitions = []
    for number, extent in enumerate(extents):
        about: dict[str, Any] = {"partition": number, "oldest": extent.oldest, "upcoming": extent.upcoming}
        size = place.size(extent.upcoming - extent.oldest)
        partitions.append(about | {"bytes": size, "sealed": extent.sealed})
    return shape(place, info) | {
        "sealed": all(extent.sealed for extent in extents),
        "bytes": place.size(total),
        "frames": total if place.size(total) is None else None,
        "extents": partitions,
        "readers": readers,
    }


def list_streams(home: Path, spec: SystemSpec) -> list[dict[str, Any]]:
    found = []
    for name in open_system(spec).admin().list():
        about = facts_about(place_in(spec, name, home))
        found.append({key: about[key] for key in ("stream", "partitions", "bytes", "frames", "sealed", "columns")})
    return found


def positions(place: Place, option: str, texts: Sequence[str], partition: int | None) -> dict[SSP, Position | None]:
    """The partitions that a command selects, each with its position from ``option``, if any.

    A text without a partition applies to all partitions that no other text names. ``partition`` selects only one.
    """
    wanted = _wanted(place, partition)
    general: Position | None = None
    named: dict[int, Position] = {}
    for text in texts:
        before, colon, after = text.rpartition(":")
        position = _position(option, text, after)
        if colon:
            named[_partition(place, option, text, before, wanted)] = position
        elif not isinstance(position, Edge) and len(wanted) > 1:
            raise UsageError(
                f"{option} {text}: {place.stream} has {len(wanted)} partitions, each with its own offsets",
                hint=f"name the partition, as in {option} 0:{text}, or add --partition",
            )
        else:
            general = position
    return {place.ssp(number): named.get(number, general) for number in wanted}


def positions_at(place: Place, time: str | None, ago: str | None, partition: int | None) -> dict[SSP, Position]:
    """Return the first record of each partition that was appended then or later; ``time`` or ``ago`` is given."""
    if time is not None and ago is not None:
        raise UsageError("--time and --ago both give a position", hint="leave one of them out")
    now = WallClock().now_ms()
    if ago is not None:
        time_ms = now - to_ms(ago, "--ago", error=UsageError)
    else:
        time_ms, has_zone = parse_moment(time or "")
        if not has_zone:
            print_note(f"note: {time} names no zone, so it is read as UTC: {utc_text(time_ms)}")
    check_past(time_ms, now)
    admin = place.admin()
    return {ssp: admin.offset_at(ssp, time_ms) for ssp in map(place.ssp, _wanted(place, partition))}


def _wanted(place: Place, partition: int | None) -> list[int]:
    if partition is None:
        return list(range(place.require().partitions))
    place.require_partition(partition)
    return [partition]


def _position(option: str, text: str, after: str) -> Position:
    if after in {edge.value for edge in Edge}:
        return Edge(after)
    if after.isascii() and after.isdigit():
        return int(after)
    raise UsageError(f"{option} {text}: {after!r} isn't a position", hint=FORMS)


def _partition(place: Place, option: str, text: str, before: str, wanted: Sequence[int]) -> int:
    if not (before.isascii() and before.isdigit()):
        raise UsageError(f"{option} {text}: {before!r} isn't the number of a partition", hint=FORMS)
    number = int(before)
    if number not in wanted:
        place.require_partition(number)
        raise UsageError(f"{option} {text}: --partition {wanted[0]} excludes partition {number}")
    return number


class Trim(NamedTuple):
    """A trim of one partition: it deletes the ``size`` offsets below ``before``."""

    ssp: SSP
    before: Offset
    size: int


def plan_trim(place: Place, texts: Sequence[str], partition: int | None) -> list[Trim]:
    """Return the cuts that ``--before`` asks for; other partitions stay as they are. Changes nothing."""
    wanted = positions(place, "--before", texts, partition)
    extents = place.admin().extents(place.stream.name)
    cuts = []
    for ssp, position in wanted.items():
        if position is None or position is Edge.OLDEST:
            continue
        extent = extents[ssp.partition]
        before = extent.upcoming if isinstance(position, Edge) else position
        if not extent.oldest <= before <= extent.upcoming:
            raise UsageError(
                f"--before {before} is outside {ssp}", hint=f"its offsets go from {extent.oldest} to {extent.upcoming}"
            )
        cuts.append(Trim(ssp, before, before - extent.oldest))
    return cuts
