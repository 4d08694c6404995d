"""Startpoints: where an app reads its inputs from, in place of its committed positions."""

from headrace.metadata.startpoints import StartpointState
from headrace.runners.coordination.startpoint_messages import Move, SetAnswer
from headrace.runners.offsets import InputOffsets
from headrace.runners.startpoint_access import (
    Startpoints,
    ago,
    at,
    custom,
    offset,
    oldest,
    open_startpoints,
    upcoming,
)
from headrace.systems.positions import CustomStartpoint, PartitionView
from headrace.systems.startpoint import Startpoint

__all__ = [
    "CustomStartpoint",
    "InputOffsets",
    "Move",
    "PartitionView",
    "SetAnswer",
    "Startpoint",
    "StartpointState",
    "Startpoints",
    "ago",
    "at",
    "custom",
    "offset",
    "oldest",
    "open_startpoints",
    "upcoming",
]
