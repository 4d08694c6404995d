"""Joins on the real log, in tasks that are killed again and again: nothing lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from driven_app import INTERVAL_MS, DrivenApp

import headrace as hr


def test_last_messages_survive(tmp_path: Path) -> None:
    """Views and carts of every member in turn: each pair is one of neighbours."""
    columns = {"member": pl.Int64, "n": pl.Int64}
    for name in ("views", "carts"):
        hr.create_stream(name, 1, columns, home=tmp_path)
    declared = hr.App("carts-shown", home=str(tmp_path), checkpoint_interval=INTERVAL_MS)
    left, right = declared.input("views", columns), declared.input("carts", columns)
    left.join_latest(right, "member", ttl="1h", id="shown").send_to(declared.output("out"))
    members = range(20)
    with (
        hr.StreamWriter("views", home=tmp_path) as views,
        hr.StreamWriter("carts", home=tmp_path) as carts,
        DrivenApp(declared) as app,
    ):
        container = app.start()
        for turn in range(6):
            for writer in (views, carts):
                writer.write([{"member": member, "n": turn} for member in members])
                app.until(lambda: not any(host.lag(ssp) for host in app.hosts for ssp in host.task.specs))
            app.run(3 * INTERVAL_MS)
            if turn % 2:
                app.kill(container)
                container = app.start()
        views.seal()
        carts.seal()
        app.finish()
        found = app.rows("out").select("member", "n", "n_right")
    wanted = [(member, turn, turn) for member in members for turn in range(6)]
    wanted += [(member, turn, turn - 1) for member in members for turn in range(1, 6)]
    assert sorted(found.rows()) == sorted(wanted)
