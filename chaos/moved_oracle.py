"""What the outputs of the moved app must contain: each order once, and again exactly where a move says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from chaos.committed import committed_rows
from chaos.moved_app import LARGE, PHASE_MS, START_MS
from chaos.verdict import Comparison, compare
from headrace.core.frame import Kind, body_of, decode_header
from headrace.core.ids import SSP, StreamId
from headrace.rows.ipc import decode_rows
from headrace.systems.base import Edge, Records
from headrace.systems.log.system import LogSystem

PER_ORDER = ("taken", "named", "once", "large")
OUTPUTS = (*PER_ORDER, "totals")
Offsets = Mapping[int, int]
Ends = Mapping[str, Sequence[int]]
"""Where the partitions of each output end; an output may have none yet."""
Outputs = Mapping[str, pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Rewound:
    """Startpoints in one phase: the offset from which each partition is read again."""

    phase: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Restored:
    """A savepoint that was restored with ``--outputs again``.

    ``to`` and ``before`` are the positions in the savepoint and when the app had stopped, ``phase`` is the first one
    whose windows were open in the savepoint, and ``ends`` are where the outputs ended when the app had stopped.
    """

    phase: int
    to: Offsets
    before: Offsets
    ends: Ends


@dataclass(slots=True)
class Story:
    """What was done to the app. ``upgraded`` is the phase in which its second version began."""

    rewound: list[Rewound] = field(default_factory=list)
    restored: list[Restored] = field(default_factory=list)
    upgraded: int = 0


def output_ends(home: Path) -> Ends:
    """Return where the outputs end now. What is before that and committed may still have to be announced as such."""
    admin = LogSystem(home / "streams").admin()
    there = {stream for stream in OUTPUTS if admin.describe(stream) is not None}  # one comes with the second version
    return {stream: [extent.upcoming for extent in admin.extents(stream)] for stream in there}


def _outputs(home: Path, ends: Ends | None = None) -> dict[str, pl.DataFrame]:
    """What the app has committed to each output, before these ends."""
    there = output_ends(home) if ends is None else ends
    nothing = dict.fromkeys(OUTPUTS, pl.DataFrame())
    return nothing | {name: committed_rows(home, name, before)[0] for name, before in there.items()}


def places(home: Path) -> pl.DataFrame:
    """Return the partition and the offset of each order."""
    system = LogSystem(home / "streams")
    found = []
    consumer = system.consumer()
    for partition, extent in enumerate(system.admin().extents("orders")):
        ssp = SSP(StreamId("log", "orders"), partition)
        consumer.register(ssp, Edge.OLDEST)
        while consumer.position(ssp) < extent.upcoming:
            for records in consumer.poll([ssp], 8 << 20):
                if isinstance(records, Records):
                    found += [
                        decode_rows(body_of(payload)).select("order", partition=partition, offset=offset)
                        for offset, payload in zip(records.offsets, records.payloads, strict=True)
                        if decode_header(payload).kind is Kind.USER
                    ]
    consumer.close()
    return pl.concat(found).with_columns(pl.col("partition", "offset").cast(pl.Int64))


def judge(home: Path, written: pl.DataFrame, story: Story) -> list[str | Comparison]:
    """Compare all outputs with what they must contain. A line of text is something that is wrong by itself."""
    orders = written.join(places(home), on="order").sort("order")
    found = _outputs(home)
    before = [_outputs(home, one.ends) for one in story.restored]
    problems: list[str | Comparison] = []
    if orders.height != written.height:
        problems.append(f"{written.height} orders were written, and {orders.height} are in the input")
    counts = found["taken"].group_by("order").agg(taken=pl.len().cast(pl.Int64), new=(pl.col("version") > 1).sum())
    orders = orders.join(counts, on="order", how="left").with_columns(pl.col("taken", "new").fill_null(0))
    orders = orders.with_columns(**{f"again {name}": _again(orders, name, story, before) for name in PER_ORDER})
    orders = orders.with_columns(
        rewound=pl.col("taken") - 1 - pl.col("again taken"),
        left=(pl.col("new") == 0) & _in(found["large"]),
    )
    problems += _check_rewinds(orders, story)
    problems += _check_versions(orders, story)
    for name, due in _due(orders, story, before).items():
        held = committed_rows(home, name)[1]
        problems.append(compare(name, found[name], due, held))
    return problems


def _again(orders: pl.DataFrame, name: str, story: Story, before: Sequence[Outputs]) -> pl.Series:
    """How often each order is written again because a savepoint was restored: if its result was there already."""
    again = pl.Series(name, [0], pl.Int64).new_from_index(0, orders.height)
    for one, outputs in zip(story.restored, before, strict=True):
        # The order may be there twice because of an earlier move, but only once of this timeline.
        again += orders.select(_since(one.to) & _in(outputs[name])).to_series().cast(pl.Int64)
    return again


def _in(output: pl.DataFrame) -> pl.Expr:
    orders = output["order"] if output.width else pl.Series([], dtype=pl.Int64)
    return pl.col("order").is_in(orders.implode())


def _since(offsets: Offsets) -> pl.Expr:
    first = pl.col("partition").replace_strict(dict(offsets), default=None, return_dtype=pl.Int64)
    return (pl.col("offset") >= first).fill_null(value=True)


def _check_rewinds(orders: pl.DataFrame, story: Story) -> list[str]:
    """Orders that were taken again are those from the startpoint on, up to where the task was when it applied it."""
    problems = []
    phases = {one.phase: one for one in story.rewound}
    for (phase, partition), rows in orders.sort("offset").group_by("phase", "partition", maintain_order=True):
        assert isinstance(phase, int) and isinstance(partition, int)
        where = f"phase {phase}, partition {partition}"
        begin = phases[phase].offsets.get(partition) if phase in phases else None
        again = rows.filter(pl.col("rewound") != 0)
        if begin is None and again.height:
            problems.append(f"{where}: nothing was rewound, but {again.select('order', 'offset', 'taken').head(5)}")
        elif begin is not None:
            due = rows.filter(pl.col("offset") >= begin).head(again.height)
            if again.is_empty() or not again.equals(due) or set(again["rewound"]) != {1}:
                problems.append(f"{where}: rewound to {begin}, but taken again were {again.select('order', 'offset')}")
    for one in story.restored:
        read = orders.filter(_since(one.to) & (pl.col("again taken") == 1))
        due = orders.filter(_since(one.to) & ~_since(one.before))
        if read.height < due.height or not due["order"].is_in(read["order"].implode()).all():
            problems.append(f"restored to {one.to} from {one.before}: {due.height} due, {read.height} taken before")
    return problems


def _check_versions(orders: pl.DataFrame, story: Story) -> list[str]:
    """The new version goes on where the old one stopped, and large orders are the last that the old one had taken.

    The drained first stage has written them, and the second stage of the old version hadn't read them.
    """
    if not story.upgraded:
        return []
    problems = []
    large = orders.filter((pl.col("new") == 0) & (pl.col("amount") > LARGE)).sort("offset")
    for key, rows in large.group_by("partition", "member"):
        if not rows["left"].is_sorted():
            problems.append(f"of partition and member {key}, the new version has read other orders than the last ones")
    for (partition,), rows in orders.filter(pl.col("phase") == story.upgraded).sort("offset").group_by("partition"):
        new = rows.select(pl.col("new") > 0).to_series()
        if not new.is_sorted() or new.all() or not new.any():
            problems.append(f"partition {partition}: {new.sum()} of {rows.height} orders were taken by the new version")
    before, after = pl.col("phase") < story.upgraded, pl.col("phase") > story.upgraded
    old = orders.filter((before & (pl.col("new") > 0)) | (after & (pl.col("new") != pl.col("taken"))))
    if old.height:
        problems.append(f"{old.height} orders were taken by the wrong version")
    return problems


def _due(orders: pl.DataFrame, story: Story, before: Sequence[Outputs]) -> dict[str, pl.DataFrame]:
    once = orders.with_columns(name=pl.format("member {}", "member"), rewound=pl.col("rewound").clip(0))
    new = once.filter(((pl.col("new") > 0) | pl.col("left")) & (pl.col("amount") > LARGE))
    due = {
        "named": _times(once, 1 + pl.col("again named") + pl.col("rewound")).select("order", "name"),
        "once": _times(once, 1 + pl.col("again once")).select("order"),
        "totals": _totals(once, story, before),
    }
    if story.upgraded:
        due["large"] = _times(new, 1 + pl.col("again large") + pl.col("rewound")).select("order")
    return due


def _totals(orders: pl.DataFrame, story: Story, before: Sequence[Outputs]) -> pl.DataFrame:
    """Windows count what was rewound. One that was open in a savepoint is closed again after its restore."""
    times = 1 + pl.col("rewound")
    due = (
        orders.group_by("member", "phase")
        .agg(orders=times.sum().cast(pl.Int64), amount=(pl.col("amount") * times).sum())
        .with_columns(window_start=START_MS + pl.col("phase") * PHASE_MS)
    )
    again = pl.lit(0, pl.Int64)
    for one, outputs in zip(story.restored, before, strict=True):
        there = outputs["totals"].select("member", "window_start").with_columns(there=True).unique()
        due = due.join(there.rename({"there": f"there {one.phase}"}), on=["member", "window_start"], how="left")
        again += (pl.col(f"there {one.phase}").fill_null(value=False) & (pl.col("phase") >= one.phase)).cast(pl.Int64)
    return _times(due, 1 + again).select("member", "window_start", "orders", "amount")


def _times(rows: pl.DataFrame, times: pl.Expr) -> pl.DataFrame:
    return rows.select(pl.all().repeat_by(times)).explode(rows.columns)
