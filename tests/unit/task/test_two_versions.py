"""Stages from two versions of an app at once: the error says which versions contradict, and what to do."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from driven_app import DrivenApp

import headrace as hr
from headrace.core.errors import DeploymentError

COLUMNS = {"member": pl.Int64, "amount": pl.Int64}


def version(home: Path, source: str) -> hr.App:
    """Its intermediate stream is written by the stage that reads ``source``."""
    app = hr.App("orders", home=str(home))
    flow = app.input(source, COLUMNS).partition_by("member", id="by-member", partitions=2)
    flow.send_to(app.output("seen", partitions=2))
    return app


def test_a_stage_that_reads_what_another_version_writes_says_so(tmp_path: Path) -> None:
    for name in ("orders", "web-orders"):
        hr.streams.create_stream(name, 1, COLUMNS, home=tmp_path)
    with DrivenApp(version(tmp_path, "orders")) as old, DrivenApp(version(tmp_path, "web-orders"), old.clock) as new:
        reading, writing = old.start("by-member"), new.start("web-orders")
        with hr.streams.StreamWriter("web-orders", home=tmp_path) as writer:
            writer.write([{"member": 1, "amount": 2}])
        for _ in range(20):
            new.turn(writing)
        with pytest.raises(DeploymentError, match="isn't among the 1 tasks that write this stream") as raised:
            old.run(1000, reading)
    error = raised.value
    assert "task by-member/0 reads it, and expects it to be written by stage orders" in error.message
    assert error.hint is not None
    assert "another version of the app writes to this stream: stop the deployment that does" in error.hint
    assert error.fault == "user"
