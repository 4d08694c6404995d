"""``headrace status``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.console import print_json, print_line, print_note
from headrace.cli.options import HOME, AppOrAll, AsJson, Home, Metadata
from headrace.core.clock import WallClock

if TYPE_CHECKING:
    from headrace.core.url import SecretUrl
    from headrace.metadata.store import MetadataStore
    from headrace.runners.coordination.messages import AppStatus

_WATCH_S = 1.0
_TO_TOP = "\x1b[H\x1b[J"


def status(
    app: AppOrAll = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh the status every second until Ctrl-C.")] = False,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Show the status of running apps, and how the others ended.

    Shows stages with rates, watermarks and lag, the causes of delays, containers, and warnings. --json prints an array
    with one entry per deployment; with --watch, one array per line.
    """
    from headrace.metadata.opening import existing_metadata

    if watch:
        _watch(home, metadata, app, as_json)
        return
    with existing_metadata(home, metadata) as store:
        found = ask(store, app)
    if as_json:
        print_json(_as_data(found))
    elif found:
        print_line(_as_text(found))
    else:
        print_note(f"no app is running in {store.place}")


def ask(metadata: MetadataStore, app: str | None) -> list[AppStatus]:
    """Return the status of each running deployment, then how the others ended.

    Raises ``UnavailableError`` if ``app`` is given and has never run there.
    """
    from headrace.core.errors import UnavailableError
    from headrace.runners.coordination.deployments import deployments
    from headrace.runners.coordination.runs import find_all

    found = [one.status for one in deployments(metadata, app)]
    if app is not None and not found:
        others = ", ".join(sorted({address.app for address in find_all(metadata)}))
        raise UnavailableError(
            f"app {app!r} isn't running in {metadata.place}; running there: {others or 'nothing'}",
            hint="start it with headrace run, or name its home folder with --home or its metadata store with "
            "--metadata",
        )
    return found


def _watch(home: Path, metadata: SecretUrl | None, app: str | None, as_json: bool) -> None:
    from headrace.core.errors import UnavailableError
    from headrace.metadata.opening import existing_metadata
    from headrace.runners.interrupts import Interrupt

    seen = False
    with Interrupt() as interrupt:
        while not interrupt.requested:
            try:
                with existing_metadata(
                    home, metadata
                ) as store:  # opened each time, because the store may not exist yet
                    found = ask(store, app)
            except UnavailableError:
                if not seen:
                    raise
                print_note("the app has ended")
                return
            seen = True
            _show(found, store.place, as_json)
            if app is not None and all(one.ended_at is not None for one in found):
                return
            interrupt.wait(_WATCH_S)


def _show(found: Sequence[AppStatus], place: str, as_json: bool) -> None:
    if as_json:
        print_json(_as_data(found), indent=None)
    else:
        text = _as_text(found) if found else f"no app is running in {place}"
        print_line(_TO_TOP + text if sys.stdout.isatty() else text + "\n")
    sys.stdout.flush()


def _as_data(found: Sequence[AppStatus]) -> list[Any]:
    import msgspec

    data: list[Any] = msgspec.to_builtins(found)
    return data


def _as_text(found: Sequence[AppStatus]) -> str:
    from headrace.cli.status_view import to_text

    width = shutil.get_terminal_size((120, 24)).columns
    return "\n\n".join(to_text(one, WallClock().now_ms(), width, sys.stdout.isatty()) for one in found)
