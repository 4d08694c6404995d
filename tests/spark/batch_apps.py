"""An app with a step of most kinds, over files; live and in batch it must give the same."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr

VIEWS = {"id": pl.Int64(), "member": pl.String(), "ts": pl.Int64()}
MEMBERS = {"member": pl.String(), "team": pl.String(), "ts": pl.Int64()}
AWAY = {"member": pl.String(), "views": pl.Int64(), "ts": pl.Int64()}
START_MS = 1_700_000_000_000


class Gaps(hr.tasks.Task):
    """Tells which members were away for more than a minute, by a timer for each."""

    seen = hr.tasks.Store(key={"member": pl.String()}, value={"views": pl.Int64()})

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        known = self.seen.get(message["member"]) or {"views": 0}
        self.seen.put(message["member"], {"views": known["views"] + 1})
        out.set_timer(message["member"], message["ts"] + 20_000)

    def on_timer(self, timer: hr.tasks.Timer, out: hr.tasks.Out) -> None:
        out.send("away", {"member": timer.key, "views": self.seen.get(timer.key)["views"], "ts": timer.time})
        self.seen.delete(timer.key)


def write_history(home: Path, rows: int, seed: int = 1) -> None:
    chance = random.Random(seed)
    home.mkdir(parents=True, exist_ok=True)
    for part in range(2):
        first, last = part * rows // 2, (part + 1) * rows // 2
        times = [START_MS + 400 * n + chance.randrange(-5_000, 5_000) for n in range(first, last)]
        members = [f"m{chance.randrange(12)}" for _ in times]
        frame = pl.DataFrame({"id": list(range(first, last)), "member": members, "ts": times}, VIEWS)
        frame.write_parquet(home / f"views-{part}.parquet")
    changes = [
        {"member": f"m{n % 12}", "team": f"t{chance.randrange(3)}", "ts": START_MS + 400 * n * rows // 40}
        for n in range(40)
    ]
    pl.DataFrame(changes, MEMBERS).write_parquet(home / "members.parquet")


def declare(home: Path, *, poison: Path | None = None) -> hr.App:
    """``poison``: the first worker that sees a certain message dies, and leaves this file."""

    def deadly(frame: pl.DataFrame) -> pl.DataFrame:
        if poison is not None and frame["id"].is_in([77]).any() and not poison.exists():
            poison.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return frame

    app = hr.App("history", home=home)
    views = app.input(
        "views", VIEWS, system=hr.io.files(str(home / "views-*.parquet")), event_time="ts", lateness="20s"
    )
    members = app.input(
        "members", MEMBERS, system=hr.io.files(str(home / "members.parquet")), event_time="ts", lateness="0s"
    )
    by_member = views.map_batches(deadly, VIEWS).partition_by("member", id="by-member", partitions=2)
    counts = by_member.window(hr.tumbling("1m"), key="member", id="per-minute").agg(n=hr.count(), ids=hr.sum("id"))
    counts.send_to(out(app, home, "counts"))
    counts.partition_by("n", id="by-n", partitions=2).window(hr.tumbling("10m"), key="n", id="per-10m").agg(
        times=hr.count()
    ).send_to(out(app, home, "busy"))
    by_member.window(hr.session("5s"), key="member", id="per-visit").agg(n=hr.count()).send_to(out(app, home, "visits"))
    by_member.deduplicate("member", within="3s", id="apart").send_to(out(app, home, "seldom"))
    versions = app.table("teams", key="member", schema=MEMBERS, versions="1h")
    members.partition_by("member", id="changes", partitions=2).send_to(versions)
    joined = by_member.join(versions, on="member", how="left", id="with-team")
    joined.select("id", "team").send_to(out(app, home, "teams-then"))
    gaps = app.task(Gaps(), inputs={"views": by_member}, outputs={"away": AWAY}, id="gaps")
    gaps["away"].send_to(out(app, home, "away"))
    return app


def out(app: hr.App, home: Path, name: str) -> Any:
    return app.output(name, system=hr.io.files(str(home / "out" / name), format="parquet"))


def results(home: Path) -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    for folder in sorted((home / "out").iterdir()):
        frame = pl.read_parquet(folder / "*.parquet")
        found[folder.name] = sorted(frame.select(sorted(frame.columns)).rows(), key=repr)
    return found


def by_member(home: Path) -> dict[str, list[tuple[int, int]]]:
    """The times and ids of each member's views, in order."""
    views = pl.read_parquet(home / "views-*.parquet").sort("ts", "id")
    return {str(key[0]): part.select("ts", "id").rows() for key, part in views.group_by("member")}


def seldom(home: Path) -> list[tuple[Any, ...]]:
    """The views that are at least 3 s after the one before them that counts."""
    kept = []
    for member, views in by_member(home).items():
        last = None
        for ts, id_ in views:
            if last is None or ts - last >= 3_000:
                kept.append((id_, member, ts))
                last = ts
    return sorted(kept, key=repr)


def away(home: Path) -> list[tuple[Any, ...]]:
    """When members had been away for 20 s, and how often they had looked before."""
    found = []
    for member, views in by_member(home).items():
        seen = 0
        for number, (ts, _) in enumerate(views):
            seen += 1
            if number + 1 == len(views) or views[number + 1][0] >= ts + 20_000:
                found.append((member, ts + 20_000, seen))
                seen = 0
    return sorted(found, key=repr)
