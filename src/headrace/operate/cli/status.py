"""How an app does, and its end: ``status``, ``check``, ``metrics``, ``drain``, ``offsets``, ``peek``, ``dashboard``."""

from __future__ import annotations

import secrets
import shutil
import sys
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, UnavailableError, UsageError
from headrace.operate.cli.console import Exit, print_json, print_line, print_note, print_result, print_table
from headrace.operate.cli.options import HOME, AppOrAll, AsJson, Home, Metadata
from headrace.operate.cli.startpoint import WhichApp, opened
from headrace.operate.words import format_bytes, moment

if TYPE_CHECKING:
    from headrace.coordinator.address import Address
    from headrace.coordinator.messages import AppStatus
    from headrace.core.secrets import SecretUrl
    from headrace.life.metadata import MetadataStore
    from headrace.operate.page.live import Deployed

_AGAIN_S = 0.3
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
    from headrace.life.metadata import existing_metadata

    if watch:
        _watch(home, metadata, app, as_json)
        return
    with existing_metadata(home, metadata) as store:
        found = ask(store, app)
    if as_json:
        print_json(found)
    elif found:
        print_line(_as_text(found))
    else:
        print_note(f"no app is running in {store.place}")


def ask(metadata: MetadataStore, app: str | None) -> list[AppStatus]:
    """Return the status of each running deployment, then how the others ended. Raises if ``app`` has never run."""
    from headrace.coordinator.publication import deployments, find_all

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
    from headrace.life.metadata import existing_metadata
    from headrace.run.coordinated import Interrupt

    seen = False
    with Interrupt() as interrupt:
        while not interrupt.requested:
            try:  # the store is opened each time, because it may not exist yet
                with existing_metadata(home, metadata) as store:
                    found = ask(store, app)
            except UnavailableError:
                if not seen:
                    raise
                print_note("the app has ended")
                return
            seen = True
            if as_json:
                print_json(found, indent=None)
            else:
                text = _as_text(found) if found else f"no app is running in {store.place}"
                print_line(_TO_TOP + text if sys.stdout.isatty() else text + "\n")
            sys.stdout.flush()
            if app is not None and all(one.ended_at is not None for one in found):
                return
            interrupt.wait(_WATCH_S)


def _as_text(found: Sequence[AppStatus]) -> str:
    from headrace.operate.cli.status_view import to_text

    width = shutil.get_terminal_size((120, 24)).columns
    return "\n\n".join(to_text(one, WallClock().now_ms(), width, sys.stdout.isatty()) for one in found)


def check(
    app: WhichApp,
    max_lag: Annotated[
        str | None, typer.Option(metavar="TIME", help="How far an input with unread messages may be behind the clock.")
    ] = None,
    max_checkpoint_age: Annotated[
        str | None, typer.Option(metavar="TIME", help="How old a task's last commit may be.")
    ] = None,
    max_restarts: Annotated[
        str | None, typer.Option(metavar="N/TIME", help="How often containers may restart, such as 3/10m.")
    ] = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Report in one line whether an app is healthy.

    The exit codes are those of monitoring plugins: 0 healthy, 1 warning, 2 critical, 3 unknown. Lag is in event time,
    so inputs without event time have none.
    """
    from headrace.life.metadata import existing_metadata
    from headrace.operate.diagnosis import Health, Limits
    from headrace.operate.diagnosis import check as judge

    try:
        limits = Limits.of(max_lag, max_checkpoint_age, max_restarts)
        with existing_metadata(home, metadata) as store:
            found = ask(store, app)
        verdict, text = judge(found, limits, WallClock().now_ms())
    except HeadraceError as error:
        hint = f"; {error.hint}" if isinstance(error, UsageError) and error.hint else ""
        verdict, text = Health.UNKNOWN, f"UNKNOWN: {app} {error.message.splitlines()[0]}{hint}"
    print_result(as_json, {"verdict": verdict.name.lower(), "text": text}, text)
    raise typer.Exit(int(verdict))


def metrics(app: WhichApp, home: Home = HOME, metadata: Metadata = None, as_json: AsJson = False) -> None:
    """Print the URL and token of an app's metrics.

    The token is for Prometheus. It reads /metrics and /status, can stop nothing, and is the same in all runs.
    """
    from headrace.coordinator.publication import find, metrics_token
    from headrace.life.metadata import existing_metadata

    with existing_metadata(home, metadata) as store:
        found = {"url": f"{find(store, app).url}/metrics", "token": metrics_token(store, app)}
    print_result(as_json, found, f"URL={found['url']}\nTOKEN={found['token']}")


def drain(
    app: WhichApp,
    stage: Annotated[
        str | None,
        typer.Option(metavar="STAGE", help="Drain only the deployment with this stage, if stages run separately."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the app has ended.")] = True,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait at most; the app goes on draining after that.")
    ] = "5m",
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """End a running app from anywhere, as Ctrl-C does at its driver.

    The app finishes what it has read, commits, and ends; the next run resumes there. Exits with 0 once it has ended
    without an error.
    """
    from headrace.coordinator.publication import ended, find, find_all
    from headrace.core.clock import format_ms, to_ms
    from headrace.core.errors import UnavailableError, UsageError
    from headrace.life.metadata import existing_metadata
    from headrace.run.coordinated import Interrupt

    limit_ms = to_ms(timeout, "--timeout", error=UsageError)
    with existing_metadata(home, metadata) as store, Interrupt() as interrupt:
        found = [] if stage is not None else find_all(store, app)
        addresses = found or [find(store, app, stage)]  # it says what is wrong if there is none
        for address in addresses:
            with closing(address.client(patience_s=min(10.0, limit_ms / 1000))) as client:
                client.drain()
            if not as_json:
                until = f"; waiting until it has ended, for {format_ms(limit_ms)} at most" if wait else ""
                print_note(f"{app} {address.deployment} drains{until}")
        clock, runs = WallClock(), {address.run for address in addresses}
        deadline_ms = clock.monotonic_ms() + limit_ms
        while wait and runs & {address.run for address in find_all(store, app)}:
            if interrupt.requested:
                print_note(f"interrupted; {app} goes on draining: headrace status {app} shows how far it is")
                raise typer.Exit(Exit.INTERRUPTED)
            if clock.monotonic_ms() >= deadline_ms:
                raise UnavailableError(f"{app} is still draining", hint=f"look: headrace status {app}")
            interrupt.wait(_AGAIN_S)
        started = {address.started_at for address in addresses} if wait else set()
        failed = [one.error for one in ended(store, app) if one.started_at in started and one.error is not None]
    for error in failed:
        raise error.as_error()
    if as_json:
        print_json({"app": app, "ended": wait})
    elif wait:
        print_note(f"{app} has ended")


def offsets(app: WhichApp, home: Home = HOME, metadata: Metadata = None, as_json: AsJson = False) -> None:
    """Show an app's positions in its inputs, and its lag.

    Shows the committed positions, the oldest and newest messages with their times, and the startpoints that wait,
    whether or not the app is running. headrace startpoint set --offset takes these offsets.
    """
    found = opened(app, home, metadata).offsets()
    if as_json:
        print_json(found)
        return
    print_table(
        ("input", "task", "committed", "lag", "oldest", "end", "committed time", "oldest time", "newest time"),
        [
            (
                f"{one.input}/{one.partition}", one.task, "none" if one.committed is None else f"{one.committed:,}",
                _lag(one.lag, one.lag_bytes), one.oldest, one.newest, moment(one.committed_ms), moment(one.oldest_ms),
                moment(one.newest_ms),
            )
            for one in found
        ],
    )  # fmt: skip
    for one in found:
        if one.until is not msgspec.UNSET and one.back is not msgspec.UNSET:
            place = f"{one.input}/{one.partition} in task {one.task}"
            print_note(f"{place} is read again up to {one.until:,}, and then on from {one.back:,}")
    waiting = {one.startpoint.startpoint.id: one.startpoint for one in found if one.startpoint is not None}
    for state in waiting.values():
        print_note(f"startpoint {state.in_words}")
    for input_, problem in dict.fromkeys((one.input, one.problem) for one in found if one.problem is not None):
        print_note(f"{input_}: {problem}")


def _lag(messages: int | None, size: int | None) -> str:
    if messages is not None:
        return f"{messages:,}"
    return "-" if size is None else format_bytes(size)


def peek(
    app: WhichApp,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step of the app, as headrace plan names it.")],
    stage: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE", help="The stage with the step, if several stages have it or are deployed separately."
        ),
    ] = None,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Show some of the messages that a step receives now.

    Waits at most ten seconds for ten messages from each of up to eight tasks. The app must allow this: hr.App(...,
    peek=True). Messages are shown as they are processed, so some may not be committed yet. Values are shown as text.
    """
    from headrace.coordinator.publication import find
    from headrace.life.metadata import existing_metadata
    from headrace.run.coordinated import Interrupt
    from headrace.run.looks import peek as look

    with existing_metadata(home, metadata) as store:
        address = find(store, app, stage)
    id_ = uuid.uuid4().hex
    with closing(address.client(timeout_s=10.0, patience_s=0)) as client, Interrupt() as interrupt:
        status = client.status()
        found = look(client.ask, status, step, id_, stage)
        if not (as_json or found.over):
            print_note(f"waiting for messages of step {step!r}, for ten seconds at most")
        while not found.over and not interrupt.requested:
            interrupt.wait(_AGAIN_S)
            found = look(client.ask, status, step, id_, stage)
    if as_json:
        print_json([{"@task": task, **dict(zip(found.columns, row, strict=True))} for task, row in found.rows])
    elif found.rows:
        print_table(["@task", *found.columns], [[task, *row] for task, row in found.rows])
    elif found.over:
        print_note(f"step {step!r} received no message in ten seconds")
    if not found.over:
        raise typer.Exit(Exit.INTERRUPTED)


def dashboard(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="APP", help="The app whose live page to open; without it, a page with all apps of the home folder."
        ),
    ] = None,
    stage: Annotated[
        str | None, typer.Option(metavar="STAGE", help="The deployment with this stage, if the app has several.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    port: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=65535, help="Without APP: the port to listen on; 0 picks a free one."),
    ] = 0,
    home: Home = HOME,
    metadata: Metadata = None,
    as_json: AsJson = False,
) -> None:
    """Show a running app in a browser.

    With APP, prints the address of the app's live page, which the app serves itself. Without APP, serves a page with
    all apps until you press Ctrl-C. The pages only show; they change nothing.

    Only this machine can open the pages, unless the app listens on another address (headrace run --listen). To open
    them on another machine, forward the port: ssh -L 7000:127.0.0.1:PORT HOST.
    """
    if app is None:
        if stage is not None:
            raise UsageError(
                "--stage applies only to the page of one app", hint="name the app: headrace dashboard APP --stage ..."
            )
        _serve(home, metadata, port, open_, as_json)
        return
    if port:
        raise UsageError(
            "--port applies only to the page with all apps; an app serves its own page on its own port",
            hint="choose an app's port when you start it: headrace run --listen 127.0.0.1:7000",
        )
    from headrace.life.metadata import existing_metadata
    from headrace.operate.page.live import page_url

    with existing_metadata(home, metadata) as store:
        address = _address(store, app, stage)
    with closing(address.client(timeout_s=2.0, patience_s=0)) as client:
        client.status()  # else a browser would show an empty page
    _show(page_url(address.url, address.token), open_, {} if as_json else None)


def _address(store: MetadataStore, app: str, stage: str | None) -> Address:
    from headrace.coordinator.publication import ended, find

    try:
        return find(store, app, stage)
    except UnavailableError as error:
        over = ended(store, app)
        if not over or stage is not None:
            raise
        how = "drained" if over[-1].drained and over[-1].state == "finished" else over[-1].state
        raise UnavailableError(
            f"app {app!r} isn't running any more ({how}), so it has no live page",
            hint=f"see how it ended with headrace status {app}; start it with headrace run",
        ) from error


def _show(url: str, open_: bool, facts: dict[str, str] | None) -> None:
    print_result(facts is not None, {"url": url, **(facts or {})}, url)
    if not open_:
        return
    import webbrowser

    if not webbrowser.open(url):
        print_note("no browser can be opened here: open the address yourself")


def _serve(home: Path, metadata: SecretUrl | None, port: int, open_: bool, as_json: bool) -> None:
    from headrace.coordinator.address import LOOPBACK
    from headrace.coordinator.listener import Listener
    from headrace.coordinator.messages import encode
    from headrace.coordinator.startpoints import waiting_startpoints
    from headrace.life.metadata import existing_metadata
    from headrace.operate.page.live import Overview, page_token, page_url
    from headrace.run.coordinated import Interrupt

    def found() -> Sequence[Deployed]:
        with existing_metadata(home, metadata) as store:  # opened each time, because the store may not exist yet
            return _deployed(store)

    def waiting(_: object) -> bytes:
        with existing_metadata(home, metadata) as store:
            return encode(waiting_startpoints(store))

    with existing_metadata(home, metadata) as store:
        place = store.place
    token = secrets.token_urlsafe(32)
    overview = Overview(place, found)
    site = overview.site(page_token(token))
    listener = Listener(LOOPBACK, port, token, {("GET", "/startpoints"): waiting}, pages=site)
    with closing(listener), closing(site), closing(overview), Interrupt() as interrupt:
        listener.start()
        overview.start()
        url = f"http://{LOOPBACK}:{listener.port}"
        _show(page_url(url, token), open_, {"api": url, "token": token} if as_json else None)
        sys.stdout.flush()
        print_note("press Ctrl-C to stop")
        interrupt.wait()


def _deployed(store: MetadataStore) -> list[Deployed]:
    from headrace.coordinator.publication import deployments
    from headrace.coordinator.startpoints import waiting_startpoints
    from headrace.operate.page.live import Deployed, page_url

    waiting = {one.app: one.startpoints for one in waiting_startpoints(store).apps}
    return [
        Deployed(status, None if address is None else page_url(address.url, address.token), waiting.get(status.app, ()))
        for status, address in deployments(store, patient=False)
    ]
