"""What a metric is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

APP = ("app",)
TASK = ("app", "stage", "task")
INPUT = (*TASK, "input", "partition")
OUTPUT = (*TASK, "output")
STEP = (*TASK, "step")
CONTAINER = ("app", "container")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``worry`` says when to look into it; empty: it explains others."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    worry: str = ""
