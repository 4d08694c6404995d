"""Startpoints: where an app reads its inputs from, in place of its committed positions."""

from headrace.coordinator.messages import Move, SetAnswer
from headrace.life.startpoints import StartpointState
from headrace.run.startpoints import (
    InputOffsets,
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
from headrace.systems.startpoints import Startpoint

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
