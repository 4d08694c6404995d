"""The status of an app as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.coordinator.messages import AppStatus, OutputStatus, StageStatus, TaskStatus
from headrace.core.ids import stage_of
from headrace.operate.diagnosis import SLOT_REMEDY, alike
from headrace.operate.words import age, counted, format_bytes
from headrace.run.progress import lag_of, time_of
from headrace.task.standby_status import furthest_behind

_OLD_CHECKPOINT_MS = 60_000
_SEQUENCE = re.compile(r"\d{20,}")
_STATE_STYLES = {
    "running": "green", "lost": "red", "hung": "red", "failed": "red", "draining": "yellow", "blocked": "yellow",
    "gone": "red", "unreachable": "red",
}  # fmt: skip


def to_text(status: AppStatus, now_ms: int, width: int, coloured: bool) -> str:
    out = StringIO()
    console = Console(file=out, width=width, force_terminal=coloured, no_color=not coloured, highlight=False)
    console.print(_headline(status, now_ms), soft_wrap=True)
    if status.ended_at is not None:
        hint = status.error.hint if status.error is not None else None
        why = [] if status.error is None else status.error.message.splitlines()
        for line in [*why, *([f"hint: {hint}"] if hint else [])]:
            console.print(Text(f"  {line}"), soft_wrap=True)
        return out.getvalue().rstrip("\n")
    console.print(_stages(status, now_ms))
    if outputs := outputs_of(status.tasks):
        console.print(_outputs(outputs))
    if any(task.checkpoint is not None for task in status.tasks):
        console.print(_checkpoints(status))
    if any(_CALLS & task.counters.keys() for task in status.tasks):
        console.print(_calls(status))
    if any(task.slots for task in status.tasks):
        console.print(_shards(status))
    console.print(_containers(status))
    if any(one.standbys for one in status.containers):
        console.print(_standbys(status))
    for title, lines in (("held up", list(held_up(status, now_ms))), ("warnings", list(warnings(status, now_ms)))):
        if lines:
            console.print(Text(f"\n{title}", style="bold yellow"))
            for line in lines:
                console.print(Text(f"  {line}"), soft_wrap=True)
    return out.getvalue().rstrip("\n")


def outputs_of(tasks: Iterable[TaskStatus]) -> dict[str, OutputStatus]:
    found: dict[str, OutputStatus] = {}
    for task in tasks:
        for id_, output in task.outputs.items():
            before = found.get(id_, OutputStatus(delivery=output.delivery))
            found[id_] = OutputStatus(
                delivery=output.delivery,
                waiting=before.waiting + output.waiting,
                waiting_bytes=before.waiting_bytes + output.waiting_bytes,
                failures=before.failures + output.failures,
                error=output.error or before.error,
            )
    return found


def held_up(status: AppStatus, now_ms: int) -> Iterable[str]:
    """Yield what holds tasks up, since when, and what helps: causes before effects, similar ones on one line."""
    for one in status.held_up:
        waiting = one.tasks[0] if len(one.tasks) == 1 else f"{one.tasks[0]} and {counted(len(one.tasks) - 1, 'other')}"
        yield f"{waiting} can't complete a version for {age(one.for_ms)}, waiting for {one.by}: {one.reason}"
    for found in alike(status):
        first, holdup = found[0]
        others = f" and {counted(len(found) - 1, 'other')}" if len(found) > 1 else ""
        since = age(now_ms - min(one.since_ms for _, one in found))
        yield f"{first}{others}, for {since}: {holdup.words.waiting} {holdup.where}; {holdup.remedy}"


def warnings(status: AppStatus, now_ms: int) -> Iterable[str]:
    if status.error is not None:
        yield f"the app failed: {status.error.message}"
    for container in status.containers:
        where = f"container {container.id} on {container.host or 'no host yet'}"
        if container.lacks:
            yield f"container {container.id} {container.away}; {SLOT_REMEDY}"
        elif container.state == "lost":
            yield f"{where} sent its last heartbeat {age(container.last_seen_ms)} ago"
        elif container.error is not None:
            hint = f" (hint: {container.error.hint})" if container.error.hint else ""
            yield f"{where} {container.state}: {container.error.message}{hint}"
        for standby in container.standbys:
            if standby.trouble:
                yield f"{where} can't keep the standby of task {standby.task} current: {standby.trouble}"
    for id_, output in outputs_of(status.tasks).items():
        if output.error is not None:
            yield f"output {id_} can't be published ({counted(output.failures, 'failure')}): {output.error}"
    left_out: Counter[str] = sum((Counter(task.counters) for task in status.tasks), Counter())
    for reason, name in sorted((reason, name) for name, reason in _REASONS.items() if left_out[name]):
        yield f"{reason}: {counted(left_out[name], 'row')}"
    for task in status.tasks:
        checkpoint = task.checkpoint
        if task.state != "finished" and checkpoint is not None and checkpoint.age_ms > _OLD_CHECKPOINT_MS:
            yield f"{task.name} committed its last checkpoint {age(checkpoint.age_ms)} ago"
    sources = [(f"container {c.id}", c.warnings) for c in status.containers]
    for name, found in sources + [(task.name, task.warnings) for task in status.tasks]:
        for one in found:
            often = f", {one.times:,} times" if one.times > 1 else ""
            yield f"{name}: {one.message} ({age(now_ms - one.at_ms)} ago{often})"


def _headline(status: AppStatus, now_ms: int) -> Text:
    style = _STATE_STYLES.get(status.state, "")
    if status.ended_at is not None:
        at, ago = datetime.fromtimestamp(status.ended_at / 1000, UTC), age(now_ms - status.ended_at)
        how = "drained" if status.state == "finished" and status.drained else status.state
        when = "last alive " if status.state in ("gone", "unreachable") else ""
        told = f"  {when}{at:%Y-%m-%d %H:%M:%S} UTC ({ago} ago)"
        return Text.assemble((status.app, "bold"), "  ", (how, style), told)
    since, up = datetime.fromtimestamp(status.started_at / 1000, UTC), age(now_ms - status.started_at)
    told = f"  since {since:%Y-%m-%d %H:%M:%S} UTC ({up})  {status.guarantee}"
    return Text.assemble((status.app, "bold"), "  ", (status.state, style), told)


def _stages(status: AppStatus, now_ms: int) -> Table:
    table = _table("stage", "tasks>", "msg/s>", "watermark", "lag>")
    for stage in status.stages:
        done = stage.finished == stage.tasks
        tasks = str(stage.tasks) if not stage.finished else f"{stage.tasks - stage.finished} of {stage.tasks}"
        table.add_row(
            stage.name,
            "done" if done else tasks,
            f"{stage.rows_per_second:,.0f}",
            f"{time_of(stage.watermark)}{'' if done else _about_watermark(stage, now_ms)}",
            lag_of(stage.lag),
        )
    return table


def _outputs(outputs: dict[str, OutputStatus]) -> Table:
    table = _table("output", "delivery", "not published>")
    for id_, output in outputs.items():
        waiting = f"{counted(output.waiting, 'version')}, {format_bytes(output.waiting_bytes)}"
        table.add_row(id_, output.delivery, waiting if output.waiting else "-")
    return table


def _checkpoints(status: AppStatus) -> Table:
    table = _table("checkpoints", "version>", "age>", "took>", "early>", "rollbacks>", "duplicates>")
    for stage in status.stages:
        tasks = [task for task in status.tasks if stage_of(task.name) == stage.name]
        known = [task.checkpoint for task in tasks if task.checkpoint is not None]
        early = sum(task.early_bytes for task in tasks)
        table.add_row(
            stage.name,
            str(min(one.version for one in known)) if known else "-",
            age(max(one.age_ms for one in known)) if known else "-",
            f"{max(one.duration_ms for one in known):,.1f} ms" if known else "-",
            format_bytes(early) if early else "-",
            *(f"{sum(task.counters.get(name, 0) for task in tasks):,}" for name in ("rollbacks", "duplicates")),
        )
    return table


_CALLS = {"calls", "calls_in_flight", "call_retries", "cache_hits"}


def _calls(status: AppStatus) -> Table:
    table = _table("calls", "in flight>", "done>", "took>", "repeated>", "too late>", "given up>", "from cache>")
    for stage in status.stages:
        tasks = [task for task in status.tasks if stage_of(task.name) == stage.name]
        sums = Counter[str]()
        for task in tasks:
            sums.update(task.counters)
        if not _CALLS & sums.keys():
            continue
        done, asked = sums["calls"], sums["cache_hits"] + sums["cache_misses"]
        numbers = (sums[name] for name in ("call_retries", "call_timeouts", "call_failures"))
        table.add_row(
            stage.name,
            f"{sums['calls_in_flight']:,}",
            f"{done:,}",
            f"{sums['call_ms'] / done:,.1f} ms" if done else "-",
            *(f"{number:,}" for number in numbers),
            f"{sums['cache_hits'] / asked:.0%}" if asked else "-",
        )
    return table


def _shards(status: AppStatus) -> Table:
    table = _table("slot", "task", "shard", "committed", "behind>")
    for task in status.tasks:
        for name, slot in task.slots.items():
            slot_name = name.partition(".")[2]  # a system of slots has exactly one stream
            for shard, state in sorted(slot.shards.items()) or [("-", "no shard")]:
                behind = slot.behind_ms.get(shard)
                # A whole sequence number is too long for a table.
                short = _SEQUENCE.sub(lambda found: f"{found[0][:4]}…{found[0][-10:]}", state.partition(" @")[0])
                table.add_row(slot_name, task.name, shard, short, "-" if behind is None else age(behind))
    return table


def _about_watermark(stage: StageStatus, now_ms: int) -> str:
    """The watermark's age and the number of idle tasks. If all tasks are idle, the watermark has no age."""
    if stage.idle == stage.tasks - stage.finished:
        return " (idle)"
    words = []
    if stage.watermark is not None:
        ms = now_ms - stage.watermark
        words.append(f"{age(ms)} ago" if ms >= 0 else f"{age(ms)} ahead")
    if stage.idle:
        words.append(f"{stage.idle} idle")
    return f" ({', '.join(words)})" if words else ""


def _containers(status: AppStatus) -> Table:
    table = _table("container>", "state", "host", "pid>", "attempt>", "tasks>", "memory>", "last heartbeat>")
    for one in status.containers:
        table.add_row(
            str(one.id), Text(one.state, style=_STATE_STYLES.get(one.state, "")), one.host or "-",
            "-" if one.pid is None else str(one.pid), "-" if one.attempt is None else str(one.attempt),
            str(len(one.tasks)), format_bytes(one.rss_bytes) if one.rss_bytes else "-",
            "-" if one.last_seen_ms is None else f"{age(one.last_seen_ms)} ago",
        )  # fmt: skip
    return table


def _standbys(status: AppStatus) -> Table:
    table = _table("standbys in container>", "kept>", "waiting>", "fetching>", "behind>")
    for container in status.containers:
        if not container.standbys:
            continue
        states = Counter(one.state for one in container.standbys)
        behind = furthest_behind(container.standbys)
        table.add_row(
            str(container.id),
            str(len(container.standbys)),
            str(states["waiting"]),
            str(states["fetching"]),
            "-" if behind is None else f"{behind:,}",
        )
    return table


def _table(*titles: str) -> Table:
    """A table without lines. A column whose title ends with ``>`` is aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in titles:
        right = title.endswith(">")
        table.add_column(title.removesuffix(">"), justify="right" if right else "left", no_wrap=True)
    return table


_REASONS = {
    "backfilled": "left out, because the tables of the backfill contain them",
    "late": "came too late",
    "skipped": "skipped, because they can't be decoded",
    "lost": "lost, because they were deleted before they were read",
    "misplaced": "left out, because the KPL had aggregated them for another shard",
    "failed_skipped": "skipped, because a function of the app raised",
    "dead_lettered": "sent to a dead-letter stream",
}
