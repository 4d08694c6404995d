"""Compute what a trim deletes, before it deletes anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cli.place import Place
from headrace.cli.stream.positions import positions
from headrace.core.errors import UsageError
from headrace.core.ids import SSP, Offset
from headrace.systems.base import Edge


@dataclass(frozen=True, slots=True)
class Cut:
    """A trim of one partition: it deletes the ``size`` offsets below ``before``."""

    ssp: SSP
    before: Offset
    size: int


def plan_trim(place: Place, texts: Sequence[str], partition: int | None) -> list[Cut]:
    """Return the cuts that ``--before`` asks for; other partitions stay as they are. Changes nothing."""
    wanted = positions(place, "--before", texts, partition)
    extents = place.admin().extents(place.stream.name)
    cuts = []
    for ssp, position in wanted.items():
        extent = extents[ssp.partition]
        if position is None or position is Edge.OLDEST:
            continue
        before = extent.upcoming if isinstance(position, Edge) else position
        if not extent.oldest <= before <= extent.upcoming:
            raise UsageError(
                f"--before {before} is outside {ssp}",
                hint=f"its offsets go from {extent.oldest} to {extent.upcoming}",
            )
        cuts.append(Cut(ssp, before, before - extent.oldest))
    return cuts


def run_trim(place: Place, cuts: Sequence[Cut]) -> None:
    """Make the cuts."""
    admin = place.admin()
    for cut in cuts:
        admin.trim(cut.ssp, cut.before)
