"""``headrace offsets``: the positions of an app's tasks in their inputs, and the extent of the inputs."""

from __future__ import annotations

from headrace.cli.console import format_bytes, print_json, print_note, print_table
from headrace.cli.options import HOME, AsJson, Home, Metadata
from headrace.cli.startpoint import WhichApp, moment, opened


def offsets(app: WhichApp, home: Home = HOME, metadata: Metadata = None, as_json: AsJson = False) -> None:
    """Show an app's positions in its inputs, and its lag.

    Shows the committed positions, the oldest and newest messages with their times, and the startpoints that wait,
    whether or not the app is running. headrace startpoint set --offset takes these offsets.
    """
    import msgspec

    found = opened(app, home, metadata).offsets()
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    print_table(
        ("input", "task", "committed", "lag", "oldest", "end", "committed time", "oldest time", "newest time"),
        [
            (
                f"{one.input}/{one.partition}",
                one.task,
                "none" if one.committed is None else f"{one.committed:,}",
                _lag(one.lag, one.lag_bytes),
                one.oldest,
                one.newest,
                moment(one.committed_ms),
                moment(one.oldest_ms),
                moment(one.newest_ms),
            )
            for one in found
        ],
    )
    for one in found:
        if one.until is not msgspec.UNSET and one.back is not msgspec.UNSET:
            place = f"{one.input}/{one.partition} in task {one.task}"
            print_note(f"{place} is read again up to {one.until:,}, and then on from {one.back:,}")
    waiting = {one.startpoint.startpoint.id: one.startpoint for one in found if one.startpoint is not None}
    for state in waiting.values():
        print_note(f"startpoint {state.in_words}")
    for problem in dict.fromkeys((one.input, one.problem) for one in found if one.problem is not None):
        print_note(f"{problem[0]}: {problem[1]}")


def _lag(messages: int | None, size: int | None) -> str:
    if messages is not None:
        return f"{messages:,}"
    return "-" if size is None else format_bytes(size)
