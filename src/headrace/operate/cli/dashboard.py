"""``headrace dashboard``."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.core.errors import UsageError
from headrace.operate.cli.console import HOME, AsJson, Home, Metadata, print_note, print_result

if TYPE_CHECKING:
    from headrace.coordinator.address import Address
    from headrace.core.secrets import SecretUrl
    from headrace.life.metadata import MetadataStore
    from headrace.operate.page.live import Deployed


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
    except UsageError as error:
        over = ended(store, app)
        if not over or stage is not None:
            raise
        how = "drained" if over[-1].drained and over[-1].state == "finished" else over[-1].state
        raise UsageError(
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
    import sys

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
