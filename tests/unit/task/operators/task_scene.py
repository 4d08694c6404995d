"""Runs a low-level task with one input, for the tests of tasks."""

from __future__ import annotations

from typing import Any

import polars as pl

import headrace as hr

VIEWS = {"member": pl.String, "ts": pl.Int64}
COUNTS = {"counts": {"member": pl.String, "n": pl.Int64}}
TOLD = {"told": {"text": pl.String}}


def app_of(task: hr.tasks.Task, outputs: dict[str, Any] | None = None, lateness: str = "0s", **options: Any) -> hr.App:
    """One input, ``views``; each output goes to a stream of its name."""
    app = hr.App("tasks", **options)
    views = app.input("views", VIEWS, event_time="ts", lateness=lateness)
    for name, flow in app.task(task, {"views": views}, outputs or {}, id="step").items():
        flow.send_to(app.output(name))
    return app


def views(*messages: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"member": member, "ts": ts} for member, ts in messages]
