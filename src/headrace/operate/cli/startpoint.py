"""``headrace startpoint set``, ``list`` and ``delete``: change where an app, running or not, reads its inputs from."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headrace.core.clock import parse_moment, utc_text
from headrace.core.deployment import home_of, metadata_url_of
from headrace.core.errors import UsageError
from headrace.operate.cli.console import Exit, print_json, print_line, print_note, print_result, print_table
from headrace.operate.cli.options import HOME, AsJson, Home, Metadata
from headrace.operate.words import counted, format_bytes, moment

if TYPE_CHECKING:
    from headrace.coordinator.messages import Move, SetAnswer
    from headrace.core.secrets import SecretUrl
    from headrace.life.startpoints import StartpointState
    from headrace.run.startpoints import Startpoints
    from headrace.systems.startpoints import Startpoint

_APPLY_S = 30.0
_POLL_S = 0.1

WhichApp = Annotated[
    str, typer.Argument(metavar="APP", help="The app: its name, or the file that declares it (pipeline.py).")
]
_Input = Annotated[
    str, typer.Argument(metavar="INPUT[/PARTITION]", help="An input of the app, or one partition of it.")
]
_Task = Annotated[str | None, typer.Option("--task", metavar="T", help="Only for this task, as stage/0.")]


def set_(
    app: WhichApp,
    input_: _Input,
    oldest: Annotated[bool, typer.Option("--oldest", help="Read from the oldest message that still exists.")] = False,
    upcoming: Annotated[
        bool, typer.Option("--upcoming", help="Skip all present messages, and read those that arrive from now on.")
    ] = False,
    offset: Annotated[str | None, typer.Option(metavar="N", help="Read one partition from this offset.")] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="Read the messages that arrived from this time on: ISO 8601 (UTC if it names no zone), or ms since "
            "the epoch.",
        ),
    ] = None,
    ago: Annotated[str | None, typer.Option(metavar="D", help="Read the messages of the last 90m, 2h or 1d.")] = None,
    or_oldest: Annotated[
        bool,
        typer.Option(
            "--or-oldest",
            help="With --time or --ago: where messages from then on are gone, read from the oldest that is left.",
        ),
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="END",
            help="Read up to there, and then on from where the task was: an offset, or ms since the epoch with --time "
            "and --ago; ISO 8601; or 30m for that long ago.",
        ),
    ] = None,
    custom: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='A startpoint of a kind of the app or the system: \'{"kind": "file", "path": "b.csv"}\'.',
        ),
    ] = None,
    task: _Task = None,
    note: Annotated[
        str, typer.Option(metavar="TEXT", help="Why you set it. Lists show it with your name and the time.")
    ] = "",
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Apply it now: restart only the tasks concerned, while the app keeps running."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be read again or skipped.")] = False,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Set where an app reads an input from.

    The startpoint replaces the committed position at the app's next start, or at once with --apply.
    """
    given = {"--oldest": oldest, "--upcoming": upcoming, "--offset": offset, "--time": time, "--ago": ago}
    point = _position(given | {"--custom": custom}, or_oldest=or_oldest, until=until)
    name, partition = _parsed(input_)
    points = opened(app, home, metadata)
    if dry_run:
        answer = points.preview(name, point, partition=partition, task=task)
    else:
        answer = points.set(name, point, partition=partition, task=task, apply=apply, note=note)
    states, interrupted = _wait(points, answer, as_json) if apply and not dry_run else ([], False)
    if as_json:
        data: dict[str, Any] = msgspec.to_builtins(answer)
        print_json(data | {"dryRun": dry_run, "states": msgspec.to_builtins(states)})
    else:
        _print_answer(answer, states, dry_run=dry_run)
    if interrupted:
        print_note("interrupted; the startpoint stays set, and the tasks go on with it")
        raise typer.Exit(Exit.INTERRUPTED)
    if any(state.state == "failed" for state in states):
        raise typer.Exit(Exit.FAILED)


def list_startpoints(
    app: WhichApp,
    input_: Annotated[
        str | None, typer.Argument(metavar="INPUT[/PARTITION]", help="Only the startpoints of this input or partition.")
    ] = None,
    done: Annotated[
        bool, typer.Option("--done", help="Also show the last ones that were applied, replaced or failed.")
    ] = False,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """List an app's startpoints and their states."""
    from headrace.systems.startpoints import in_words

    points = opened(app, home, metadata)
    found = points.list(done=done)
    if input_ is not None:
        name, partition = _parsed(input_)
        streams = points.positions_of(name)
        found = [s for s in found if s.stream in streams and partition in (None, s.partition)]
    if as_json:
        print_json(found)
    elif found:
        rows = []
        for s in found:
            set_by = f"{s.by} {moment(s.startpoint.created_ms)}"
            point = in_words(s.startpoint)
            rows.append((s.stream, s.partition, s.task or "all", point, _standing(s), set_by, s.note))
        print_table(("input", "partition", "task", "startpoint", "state", "set", "note"), rows)
    else:
        print_note(f"app {points.app!r} has no startpoints")


def delete(
    app: WhichApp,
    input_: _Input,
    task: _Task = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Delete startpoints that no task applies yet.

    If the app is stopped, this also deletes those that were ordered to a task.
    """
    from headrace.systems.startpoints import in_words

    points = opened(app, home, metadata)
    name, partition = _parsed(input_)
    gone = points.delete(name, partition=partition, task=task)
    if as_json:
        print_json(gone)
        return
    for state in gone:
        print_line(f"deleted {in_words(state.startpoint)} for {_where(state)}")
    if not gone:
        print_note(f"no startpoint is set for {input_}{'' if task is None else f' in task {task}'}")


def address(
    app: Annotated[str, typer.Argument(metavar="APP", help="The name of a running app.")],
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Print the URL and the token of a running app, for requests over HTTP. The token also allows draining the app.

    docs/openapi.json describes the requests.
    """
    from headrace.coordinator.publication import find
    from headrace.life.metadata import existing_metadata

    with existing_metadata(home, metadata) as store:
        found = find(store, app)
    print_result(as_json, {"url": found.url, "token": found.token}, f"URL={found.url}\nTOKEN={found.token}")


def opened(app: str, home: Path, metadata: SecretUrl | None) -> Startpoints:
    """Return the startpoints of an app, given by its name or by the file that declares it."""
    from headrace.app import App
    from headrace.operate.cli.loader import load_app
    from headrace.run.startpoints import Startpoints

    url = None if metadata is None else metadata.text
    if ".py" not in app:
        return Startpoints(app, home=home, metadata=url)
    said_home, said_url = home_of(), metadata_url_of()
    declared = load_app(app, None, (), ())
    known = declared if isinstance(declared, App) else declared.name
    # The app has read what the deployment says, and may name another place: only an option comes before that.
    return Startpoints(known, home=None if home == said_home else home, metadata=None if metadata == said_url else url)


def _position(given: dict[str, Any], *, or_oldest: bool, until: str | None) -> Startpoint:
    from headrace.run import startpoints as points

    chosen = {option: value for option, value in given.items() if value is not None and value is not False}
    if len(chosen) != 1:
        raise UsageError(
            f"{' and '.join(chosen)} are different positions" if chosen else "no position is given",
            hint=f"give one of {', '.join(given)}",
        )
    ((option, value),) = chosen.items()
    if or_oldest and option not in ("--time", "--ago"):
        raise UsageError(f"--or-oldest doesn't go with {option}", hint="it is for --time and --ago")
    if until is not None and option == "--upcoming":
        raise UsageError("--until doesn't go with --upcoming", hint="nothing is there to be read up to the end")
    end = None if until is None else _end(until, option)
    kinds: dict[str, Callable[[Any], Startpoint]] = {
        "--oldest": lambda _: points.oldest(until=end),
        "--upcoming": lambda _: points.upcoming(),
        "--offset": lambda text: points.offset(_offset(text), until=end),
        "--time": lambda text: _time(text, or_oldest=or_oldest, until=end),
        "--ago": lambda text: points.ago(text, or_oldest=or_oldest, until=end),
        "--custom": lambda text: _custom(text, end),
    }
    return kinds[option](value)


def _end(text: str, option: str) -> Startpoint:
    from headrace.run.startpoints import ago, offset

    number = text.isascii() and text.isdigit()
    if number and option not in ("--time", "--ago"):
        return offset(int(text))
    if not number and re.fullmatch(r"[\d.]+ ?[a-z]+", text):
        return ago(text)
    return _time(text, or_oldest=False)


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        hint = "headrace offsets shows the offsets of an app's inputs"
        raise UsageError(f"--offset {text}: expected an integer", hint=hint)
    return int(text)


def _time(text: str, *, or_oldest: bool, until: Startpoint | None = None) -> Startpoint:
    from headrace.run.startpoints import at

    ms, has_zone = parse_moment(text)
    if not has_zone:
        print_note(f"note: {text} names no zone, so it is read as UTC: {utc_text(ms)}")
    return at(ms, or_oldest=or_oldest, until=until)


def _custom(text: str, until: Startpoint | None) -> Startpoint:
    from headrace.run.startpoints import custom

    hint = 'write --custom \'{"kind": "file", "path": "b.csv"}\''
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--custom: not JSON: {error}", hint=hint) from error
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise UsageError('--custom: the JSON has no "kind"', hint=hint)
    return custom(value["kind"], {name: one for name, one in value.items() if name != "kind"}, until=until)


def _parsed(text: str) -> tuple[str, int | None]:
    name, slash, number = text.partition("/")
    if not slash:
        return text, None
    if not (name and number.isascii() and number.isdigit()):
        raise UsageError(f"{text!r}: expected INPUT/PARTITION", hint="write views, or views/0 for its partition 0")
    return name, int(number)


def _wait(points: Startpoints, answer: SetAnswer, quiet: bool) -> tuple[list[StartpointState], bool]:
    """The states when all are done or the time is over, and whether Ctrl-C came before."""
    from headrace.run.coordinated import Interrupt

    wanted = {state.startpoint.id for state in answer.written}
    deadline = time.monotonic() + _APPLY_S
    with Interrupt() as interrupt:
        if not quiet:
            print_note(f"waiting until the tasks have applied it, for {_APPLY_S:.0f} seconds at most")
        while True:
            found = [state for state in points.list(done=True) if state.startpoint.id in wanted]
            waiting = any(state.state in ("pending", "ordered", "applied") for state in found)
            if not waiting or interrupt.requested or time.monotonic() > deadline:
                return found, waiting and interrupt.requested
            interrupt.wait(_POLL_S)


def _print_answer(answer: SetAnswer, states: Sequence[StartpointState], *, dry_run: bool) -> None:
    from headrace.systems.startpoints import in_words

    print_table(
        ("input", "task", "from", "to", "what", "from time", "to time"),
        [
            (
                f"{move.input}/{move.partition}", move.task,
                _offset_text(move.from_offset, "?" if move.committed else "its beginning"),
                _offset_text(move.to_offset, "resolved at the start"), effect(move), moment(move.from_ms),
                moment(move.to_ms),
            )
            for move in answer.moves
        ],
    )  # fmt: skip
    for state in answer.replaced:
        print_note(f"note: this replaces {in_words(state.startpoint)} for {_where(state)}, which was never applied")
    for note in answer.notes:
        print_note(f"note: {note}")
    if dry_run:
        print_note("nothing was changed")
    for state in states:
        print_line(f"{_where(state)}: {_standing(state)}")


def effect(move: Move) -> str:
    """Describe the effect of a move: ``reads 12 messages (3.4 kB) again``."""
    if move.direction == "unknown":
        return "known when the app starts" if move.to_offset is None else "reads from that time on"
    if move.direction == "same" or (move.until_offset is not None and move.until_offset == move.to_offset):
        return "nothing changes"
    size = "" if move.bytes is None else format_bytes(move.bytes)
    much = size or "an unknown number of messages"
    if move.messages is not None:
        much = counted(move.messages, "message") + (f" ({size})" if size else "")
    if move.until_offset is not None:
        return f"reads {much} up to {_offset_text(move.until_offset)}, then on as before"
    return f"reads {much} again" if move.direction == "back" else f"skips {much}"


def _offset_text(offset: int | None, unknown: str = "") -> str:
    from headrace.systems.startpoints import MOMENTS

    if offset is None:
        return unknown
    if offset < MOMENTS:
        return f"{offset:,}"
    return utc_text(offset - MOMENTS) if offset > MOMENTS else "the oldest"


def _where(state: StartpointState) -> str:
    return f"{state.stream}[{state.partition}]" + ("" if state.task is None else f" in task {state.task}")


def _applied_at(state: StartpointState) -> str:
    """Where it was applied. A moment is named as in the startpoint, except that upcoming has become a time."""
    from headrace.systems.startpoints import is_moment

    if state.offset is None:
        return ""
    until = "" if not state.until else f" until offset {state.until:,}"
    return f" at {'' if is_moment(state.offset) else 'offset '}{_offset_text(state.offset)}{until}"


def _standing(state: StartpointState) -> str:
    match state.state:
        case "pending":
            return "pending: waits for the next start"
        case "ordered" if state.generation is None:
            return "ordered: waits for the task's next start"
        case "ordered":
            return f"ordered: generation {state.generation} will apply it"
        case "applied":
            return f"applied{_applied_at(state)} by generation {state.generation}, not committed yet"
        case "failed":
            return f"failed: {state.reason}"
        case "released":
            return f"applied{_applied_at(state)} by generation {state.generation}, committed in {state.version}"
        case "replaced":
            return f"replaced{'' if state.reason is None else f': {state.reason}'}"
        case _:
            return "deleted"
