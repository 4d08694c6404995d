"""Apps with a cache before a remote table that changes: their own writes change it, through the cache or around it.

The service keeps its history, so what it would have answered at any moment is known. The invariants:

- Each message leaves once, with a row that the service has had for its key by then, or without one.
- What an incarnation has written, and has been told that it is written, it finds from then on, or something newer: an
  answer that was under way when it wrote isn't taken for newer.
- When messages arrive again after a quiet period, they find what the service had at a moment within the last time to
  live: however long ago a key was asked for, found or not, the cache knows nothing of it any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import cast

import polars as pl

from headrace.api.remote import OnWrite, cached, remote, retry
from headrace.app import App
from simulator.calls import answer, caller, kept, moment, write
from simulator.case import AppCase, read
from simulator.expected import Outputs, Row, Sources, columns, differ
from simulator.lives import Lives

_TTL_MS = 25
_SOON_MS = 40
"""How long an answer that has been given may take to reach the cache, when nothing disturbs its task."""
_PATIENT = retry(None, "2ms", longest="20ms")


async def _fetch(keys: pl.DataFrame) -> list[Mapping[str, int]]:
    await answer()
    rows = kept("held")
    return [cast(Mapping[str, int], rows[k,]) for k in keys["k"] if (k,) in rows]


async def _store(rows: pl.DataFrame) -> None:
    """The answer gets lost at times, when the rows are there already."""
    await answer()
    written = []
    for row in rows.to_dicts():
        write("held", [((row["k"],), row)])
        written.append({**row, "at": moment(), "writer": caller(), "told": None})
        write("history", [((len(kept("history")),), written[-1])])
    await answer()
    for change in written:
        change["told"] = moment()


def _declare(app: App, how: OnWrite) -> None:
    asked = remote(_fetch, write=_store, batch=2, concurrency=2, timeout="50ms", retry=_PATIENT)
    behind = cached(asked, rows=3, ttl=f"{_TTL_MS}ms", write=how)
    table = app.table("held-rows", key="k", schema={"k": pl.Int64, "held": pl.Int64}, remote=behind)
    by_k = read(app, "views").partition_by("k", id="by-k", partitions=2)
    by_k.join(table, how="left").select("id", "held").send_to(app.output("found", partitions=1))
    by_k.select("k", held="id").send_to(table)


def _wrong(sources: Sources, outputs: Outputs, lives: Lives) -> str | None:
    views = sources["views"]
    found = columns(outputs["found"], "id", "held")
    if wrong := differ("found", [(id_,) for id_, _ in found], [(view.id,) for view in views]):
        return wrong
    history: dict[int, list[Row]] = defaultdict(list)
    for change in outputs.get("history", ()):
        history[change["k"]].append(change)
    last = {view.partition: view.frame for view in views}
    quiet = {view.id for view in views if view.frame == last[view.partition]}
    held = dict(found)
    for version in (version for life in lives["by-k"] for version in life):
        for arrival in version.arrivals:
            for row in arrival.rows:
                changes = history[row["k"]]
                since = max(
                    arrival.at - _TTL_MS - _SOON_MS if row["id"] in quiet else 0,
                    _told(changes, arrival.incarnation, arrival.heard),
                )
                allowed = _had(changes, since, version.at)
                if held[row["id"]] not in allowed:
                    return f"output found: {row} of {arrival.at} found {held[row['id']]}, not one of {allowed}"
    return None


def _told(changes: Sequence[Row], incarnation: int, heard: int) -> int:
    """When the last change was made of which an incarnation had heard by then that it is."""
    own = (c for c in changes if c["writer"] == incarnation and c["told"] is not None and c["told"] < heard)
    return max((change["at"] + 1 for change in own), default=0)


def _had(changes: Sequence[Row], since: int, until: int) -> set[int | None]:
    """The values that the service had from one moment to another; None: it had no row."""
    values: list[tuple[int, int | None]] = [(-1, None), *((change["at"], change["held"]) for change in changes)]
    begun = [number for number, (at, _) in enumerate(values) if at < since]
    return {value for at, value in values[begun[-1] if begun else 0 :] if at <= until}


def _case(name: str, how: OnWrite) -> AppCase:
    return AppCase(
        name, {"views": 2}, lambda app: _declare(app, how), wrong_by_lives=_wrong, quiet_ms=300, late_frame=True
    )


CASES = (_case("app-cached", "through"), _case("app-around", "around"))
