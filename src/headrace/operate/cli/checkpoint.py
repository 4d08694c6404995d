"""``headrace checkpoint list`` and ``show``: the last commit of each task, whether or not its app is running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headrace.operate.cli.console import print_json, print_line, print_note, print_table
from headrace.operate.cli.options import HOME, AppOrAll, AsJson, Home, Metadata, Snapshots
from headrace.operate.words import age, counted, format_bytes

if TYPE_CHECKING:
    from headrace.coordinator.messages import CheckpointStatus
    from headrace.life.changelogs import TaskCheckpoint
    from headrace.life.metadata import MetadataStore

AppOfHome = Annotated[str, typer.Argument(metavar="APP", help="The name of the app.")]


def list_checkpoints(
    app: AppOrAll = None,
    home: Home = HOME,
    metadata: Metadata = None,
    snapshots: Snapshots = None,
    as_json: AsJson = False,
) -> None:
    """List the last checkpoint of each task.

    Shows its version and age, its duration (if the app is running), and the sizes of the changelog, the local state and
    snapshots.
    """
    from headrace.life.changelogs import apps_with_checkpoints, read_checkpoints
    from headrace.life.metadata import existing_metadata

    with existing_metadata(home, metadata) as store:
        apps = apps_with_checkpoints(home, store) if app is None else [app]
        found = [checkpoint for each in apps for checkpoint in read_checkpoints(home, store, each, snapshots=snapshots)]
        running = _running(store)
    if as_json:
        print_json([_as_data(checkpoint, running) for checkpoint in found])
    elif found:
        _print_list(found, running)
    else:
        print_note(f"no app has committed anything in {home}")


def show(
    app: AppOfHome,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="The task, as stage/0; by default all.")] = None,
    home: Home = HOME,
    metadata: Metadata = None,
    snapshots: Snapshots = None,
    as_json: AsJson = False,
) -> None:
    """Show everything about the last checkpoint of an app's tasks.

    Shows where the task continues to read each input, how many frames it has written to each output partition, the
    generations, and the snapshots from which Headrace would rebuild a lost state folder.
    """
    from headrace.life.changelogs import read_checkpoints
    from headrace.life.metadata import existing_metadata

    with existing_metadata(home, metadata) as store:
        found = read_checkpoints(home, store, app, task, snapshots)
        running = _running(store)
    if as_json:
        print_json([_as_data(checkpoint, running) for checkpoint in found])
        return
    for number, checkpoint in enumerate(found):
        if number:
            print_line("")
        _print_one(checkpoint, running)


Running = Mapping[tuple[str, str], "CheckpointStatus"]


def _running(metadata: MetadataStore) -> Running:
    from headrace.operate.cli.status import ask

    return {
        (status.app, task.name): task.checkpoint
        for status in ask(metadata, None)
        for task in status.tasks
        if task.checkpoint is not None
    }


def _as_data(checkpoint: TaskCheckpoint, running: Running) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(checkpoint)
    live = running.get((checkpoint.app, checkpoint.task))
    return data | {"ageMs": _age_ms(checkpoint, running), "durationMs": None if live is None else live.duration_ms}


def _age_ms(checkpoint: TaskCheckpoint, running: Running) -> int | None:
    live = running.get((checkpoint.app, checkpoint.task))
    return checkpoint.age_ms if live is None else live.age_ms


def _took(checkpoint: TaskCheckpoint, running: Running) -> str:
    live = running.get((checkpoint.app, checkpoint.task))
    return "-" if live is None else f"{live.duration_ms:,.1f} ms"


def _print_list(found: Sequence[TaskCheckpoint], running: Running) -> None:
    rows = []
    for one in found:
        about = (one.app, one.task, _version(one), one.current_generation)
        sizes = (format_bytes(one.changelog_bytes), format_bytes(one.state_bytes), len(one.snapshots))
        rows.append((*about, age(_age_ms(one, running)), _took(one, running), *sizes))
    print_table(("app", "task", "version", "generation", "age", "took", "changelog", "state", "snapshots"), rows)
    for one in found:
        if one.problem is not None:
            print_note(f"{one.app} {one.task}: {one.problem}")
    for app, problem in sorted({(one.app, one.store_problem) for one in found if one.store_problem is not None}):
        print_note(f"{app}: snapshots in the object store aren't counted: {problem}")


def _version(checkpoint: TaskCheckpoint) -> str:
    if checkpoint.version is None:
        return "none"
    return f"{checkpoint.version} (ended)" if checkpoint.ended else str(checkpoint.version)


def _print_one(one: TaskCheckpoint, running: Running) -> None:
    print_line(f"{one.app}  {one.task}")
    if one.problem is not None:
        print_line(f"  problem      {one.problem}")
        return
    print_line(f"  version      {_version(one)}" + ("" if one.next_version is None else f", next {one.next_version}"))
    print_line(f"  generation   {one.generation or '-'} committed it, {one.current_generation or '-'} is the newest")
    print_line(f"  age          {age(_age_ms(one, running))}, took {_took(one, running)}")
    waiting = f", {format_bytes(one.changes_bytes)} of it not committed" if one.changes_bytes else ""
    print_line(f"  changelog    {one.changelog}, {format_bytes(one.changelog_bytes)}{waiting}")
    print_line(f"  local state  {format_bytes(one.state_bytes)}")
    for snapshot in one.snapshots:
        place = ", in the object store" if snapshot.stored else ""
        print_line(
            f"  snapshot     version {snapshot.version} of generation {snapshot.generation}, "
            f"offset {snapshot.offset}, {format_bytes(snapshot.bytes)}{place}"
        )
    if one.store_problem is not None:
        print_line(f"  snapshots in the object store aren't shown: {one.store_problem}")
    for position in one.inputs:
        where = "its oldest frame" if position.offset is None else f"offset {position.offset:,}"
        behind = "" if position.lag is None else f", {format_bytes(position.lag)} behind the end"
        print_line(f"  reads        {position.stream}[{position.partition}] from {where}{behind}")
        if position.until is not msgspec.UNSET and position.back is not msgspec.UNSET:
            print_line(
                f"               up to offset {position.until:,} again, and then on from offset {position.back:,}"
            )
        for shard, state in position.shards.items():
            print_line(f"               {shard}: {state}")
    for output in one.outputs:
        print_line(f"  has written  {counted(output.seq, 'frame')} to {output.stream}[{output.partition}]")
