"""``headrace savepoint``: take, list, restore and move savepoints, and look at an app's timelines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.core.errors import UsageError
from headrace.operate.cli.console import print_json, print_line, print_note, print_result, print_table
from headrace.operate.cli.options import HOME, AppOrAll, AsJson, Home, Metadata, Quiet, Snapshots
from headrace.operate.words import counted, format_bytes

if TYPE_CHECKING:
    from headrace.life.founding import Manifest
    from headrace.life.timelines import Timeline
    from headrace.run.savepoints.restoring import Outlook

App = Annotated[str, typer.Argument(metavar="APP", help="The name of the app.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the savepoint.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=1.0, help="How long the tasks may take to commit the savepoint."),
]


def create(
    app: App,
    name: Name,
    timeout: Timeout = 60.0,
    home: Home = HOME,
    metadata: Metadata = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Take a savepoint of a running app.

    It has the state and positions of all tasks at one moment. The app keeps running meanwhile. Each of its stages must
    be running or have ended. A savepoint shares unchanged files with the app's state, so it is small at first.
    """
    from headrace.life.metadata import existing_metadata
    from headrace.run.savepoints.taking import take_running

    with existing_metadata(home, metadata) as store:
        manifest = take_running(home, app, store, name, timeout, _progress(quiet))
    print_result(as_json, _facts(name, manifest), f"took savepoint {name} of {app}: {_contents(manifest)}")


def list_(app: AppOrAll = None, home: Home = HOME, as_json: AsJson = False) -> None:
    """List savepoints, the oldest first."""
    from headrace.life.folder import Shelf

    apps = [app] if app is not None else sorted(path.name for path in (home / "savepoints").glob("[!.]*"))
    found = [(one, name, Shelf(home, one).manifest(name)) for one in apps for name in Shelf(home, one).names()]
    found.sort(key=lambda each: (each[0], each[2].created_ms))
    if as_json:
        print_json([_facts(name, manifest) | {"app": one} for one, name, manifest in found])
    elif found:
        rows = [
            (one, name, _time(m.created_ms), m.version, len(m.tasks), format_bytes(m.size)) for one, name, m in found
        ]
        print_table(("app", "name", "taken", "version", "tasks", "size"), rows)
    else:
        print_note(f"no savepoints{'' if app is None else f' of {app}'} in {home / 'savepoints'}")


def show(
    app: App,
    name: Name,
    check: Annotated[bool, typer.Option("--check", help="Compare all files with their checksums.")] = False,
    home: Home = HOME,
    as_json: AsJson = False,
) -> None:
    """Show a savepoint's positions in inputs and sizes of state."""
    from headrace.life.folder import Shelf, kept_commit, verify

    shelf = Shelf(home, app)
    folder, manifest = shelf.path(name), shelf.manifest(name)
    if check:
        verify(folder, manifest, _progress(as_json))
    commits = {copy.task: kept_commit(folder, copy.name).record for copy in manifest.tasks}
    if as_json:
        tasks = [
            {
                "task": copy.task,
                "ended": copy.ended,
                "bytes": copy.size,
                "positions": {f"{s.stream}[{s.partition}]": s.offset for s in commits[copy.task].sources},
            }
            for copy in manifest.tasks
        ]
        print_json(_facts(name, manifest) | {"folder": str(folder), "tasks": tasks})
        return
    origin = f"{'written' if manifest.written else 'taken'} {_time(manifest.created_ms)}"
    print_line(f"savepoint {name} of {manifest.app}, {_contents(manifest)}, {origin}")
    rows = []
    for copy in manifest.tasks:
        where = ", ".join(f"{s.stream}[{s.partition}] at {s.offset}" for s in commits[copy.task].sources)
        rows.append((copy.task, "ended" if copy.ended else "", format_bytes(copy.size), where))
    print_table(("task", "", "size", "positions in inputs"), rows)
    if check:
        print_line("all files match their checksums")


def delete(app: App, name: Name, home: Home = HOME, as_json: AsJson = False) -> None:
    """Delete a savepoint. Apps that were restored from it don't need it any more."""
    from headrace.life.folder import Shelf

    shelf = Shelf(home, app)
    with shelf.locked():
        shelf.delete(name)
    print_result(as_json, {"app": app, "name": name}, f"deleted savepoint {name} of {app}")


def restore(
    app: App,
    name: Name,
    outputs: Annotated[
        str,
        typer.Option(
            metavar="again|silent",
            help="Whether to write the results of messages that are processed a second time (again), or to write "
            "nothing until each input has been read to its former position (silent).",
        ),
    ] = "again",
    partitions: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP=N",
            help="Give an intermediate stream N partitions, and divide the state of its readers among N tasks; may be "
            "given several times.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    home: Home = HOME,
    metadata: Metadata = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Take an app's state and positions back to a savepoint.

    The app must not be running; its next start continues from the savepoint. The present state stays available as an
    old timeline until you delete it (headrace savepoint timelines).
    """
    from headrace.life.metadata import existing_metadata, open_metadata
    from headrace.run.savepoints.restoring import Restoring, preview
    from headrace.run.savepoints.restoring import restore as restore_now

    if outputs not in ("again", "silent"):
        raise UsageError(f"--outputs {outputs}: expected again or silent", hint="write --outputs again")
    counts = parse_counts(partitions or ())

    with existing_metadata(home, metadata) if dry_run else closing(open_metadata(home, metadata)) as store:
        wanted = Restoring(
            home=home, app=app, metadata=store, name=name, outputs="silent" if outputs == "silent" else "again",
            partitions=counts, progress=_progress(quiet or as_json),
        )  # fmt: skip
        outlook = preview(wanted) if dry_run else restore_now(wanted)
    if as_json:
        print_json(_outlook_facts(outlook) | {"dryRun": dry_run})
    else:
        _print_outlook(app, name, outlook, dry_run=dry_run)


def undo(app: App, home: Home = HOME, metadata: Metadata = None, as_json: AsJson = False) -> None:
    """Undo the last restore, if the app hasn't run since."""
    from headrace.life.metadata import open_metadata
    from headrace.run.savepoints.restoring import undo as undo_now

    with closing(open_metadata(home, metadata)) as store:
        gone = undo_now(home, app, store)
    said = f"{app} is back in timeline {gone.before}, as before the restore of savepoint {gone.savepoint}"
    print_result(as_json, {"app": app, "timeline": gone.before}, said)


def timelines(
    app: App,
    remove: Annotated[
        int | None, typer.Option("--delete", metavar="N", help="Delete an old timeline with everything it keeps.")
    ] = None,
    home: Home = HOME,
    metadata: Metadata = None,
    snapshots: Snapshots = None,
    as_json: AsJson = False,
) -> None:
    """List an app's timelines. Each restore begins a new one; older ones stay until you delete them."""
    from headrace.life.metadata import existing_metadata, open_metadata
    from headrace.life.timelines import Timelines
    from headrace.run.savepoints.restoring import delete_timeline

    if remove is not None:
        with closing(open_metadata(home, metadata)) as writable:
            delete_timeline(home, app, writable, remove, snapshots)
        print_note(f"deleted timeline {remove} of {app}")
    with existing_metadata(home, metadata) as store:
        known = Timelines(store, app)
    if as_json:
        current = known.current
        print_json([{"number": n, "current": n == current} | _timeline_facts(known.get(n)) for n in known.numbers])
        return
    rows = []
    for number in known.numbers:
        one = known.get(number)
        origin = "the first start" if one is None else f"savepoint {one.savepoint} of {one.from_app}"
        began = "" if one is None else _time(one.created_ms)
        rows.append((number, "current" if number == known.current else "", origin, began))
    print_table(("timeline", "", "began with", "at"), rows)


def export(
    app: App,
    name: Name,
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A new folder, or a new file whose name ends with .tar.")
    ],
    home: Home = HOME,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Export a savepoint to a folder or one file."""
    from headrace.life.folder import Shelf
    from headrace.life.folder import export as export_now

    manifest = export_now(Shelf(home, app), name, target, _progress(quiet or as_json))
    said = f"exported savepoint {name} of {app} to {target}: {_contents(manifest)}"
    print_result(as_json, _facts(name, manifest) | {"target": str(target)}, said)


def import_(
    app: App,
    name: Name,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The folder or .tar file that was exported.")],
    from_app: Annotated[
        str | None, typer.Option("--from", metavar="OTHER", help="Accept a savepoint that was taken of app OTHER.")
    ] = None,
    home: Home = HOME,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Import an exported savepoint for an app of this home.

    The app may have another name. Restore the savepoint to use it.
    """
    from headrace.life.folder import Shelf
    from headrace.life.folder import import_ as import_now

    manifest = import_now(Shelf(home, app), app, name, source, from_app, _progress(quiet or as_json))
    said = f"imported savepoint {name} of {app} from {source}: {_contents(manifest)}"
    print_result(as_json, _facts(name, manifest) | {"app": app, "source": str(source)}, said)


def parse_counts(pairs: Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pair in pairs:
        name, equals, count = pair.rpartition("=")
        if not name or not equals or not (count.isascii() and count.isdecimal()):
            raise UsageError(f"--partitions {pair}: expected STEP=N", hint="write --partitions by-member=16")
        if name in counts:
            raise UsageError(f"--partitions {name} is given twice: {counts[name]} and {count}")
        counts[name] = int(count)
    return counts


def _progress(quiet: bool) -> Any:
    return (lambda what: None) if quiet else print_note


def _contents(manifest: Manifest) -> str:
    return f"version {manifest.version}, {counted(len(manifest.tasks), 'task')}, {format_bytes(manifest.size)}"


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _facts(name: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "app": manifest.app, "name": name, "version": manifest.version, "createdMs": manifest.created_ms,
        "timeline": manifest.timeline, "tasks": len(manifest.tasks), "bytes": manifest.size,
    }  # fmt: skip


def _timeline_facts(timeline: Timeline | None) -> dict[str, Any]:
    if timeline is None:
        return {}
    return {
        "savepoint": timeline.savepoint, "fromApp": timeline.from_app, "before": timeline.before,
        "createdMs": timeline.created_ms, "outputs": timeline.outputs, "partitions": dict(timeline.partitions),
    }  # fmt: skip


def _outlook_facts(outlook: Outlook) -> dict[str, Any]:
    return {
        "timeline": outlook.timeline.number,
        "savepoint": outlook.manifest.name,
        "version": outlook.timeline.version,
        "outputs": list(outlook.outputs),
        "outputsMode": outlook.timeline.outputs,
        "rewinds": [
            {"task": str(r.task), "stream": r.stream, "partition": r.partition, "to": r.to, "before": r.before}
            for r in outlook.rewinds
        ],
        "tasks": {stage: {"before": old, "after": new} for stage, (old, new) in outlook.tasks.items()},
    }


def _print_outlook(app: str, name: str, outlook: Outlook, *, dry_run: bool) -> None:
    would = "would begin" if dry_run else "begins"
    where = f"with savepoint {name}" if outlook.manifest.written else f"where savepoint {name} was taken"
    print_line(f"{app} {would} timeline {outlook.timeline.number} {where}")
    rows = []
    for one in outlook.rewinds:
        places = ("its start" if offset is None else str(offset) for offset in (one.before, one.to))
        rows.append((f"{one.stream}[{one.partition}]", *places, str(one.task)))
    if rows:
        print_table(("input", "was at", "goes to", "task"), rows)
    for stage, (old, new) in outlook.tasks.items():
        print_line(f"the state of stage {stage} moves from {counted(old, 'task')} to {counted(new, 'task')}")
    outputs = ", ".join(outlook.outputs)
    if not outputs or not outlook.repeats:
        return
    if outlook.timeline.outputs == "silent":
        print_line(f"nothing is written to {outputs} until each input has been read to its former position")
    else:
        print_line(
            f"{outputs}: the results of the messages in between will appear a second time"
            + ("; --outputs silent avoids that" if outlook.can_be_silent else "")
        )
