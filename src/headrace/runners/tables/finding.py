"""Finding a table of a running app: by the app's name, through the addresses that its deployments publish."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.core.errors import UnavailableError, UsageError
from headrace.runners.coordination.address import Address, find_all
from headrace.runners.coordination.query_messages import TableFacts

READABLE = ("local", "global", "store")


def list_tables(home: Path, app: str) -> list[tuple[TableFacts, Address | None]]:
    """The tables of a running app, each with the deployment that keeps it (None: its stage doesn't run here)."""
    return _told(home, app)[0]


def find_table(home: Path, app: str, table: str) -> tuple[Address, TableFacts]:
    """The deployment that keeps a table, and what is known of it."""
    tables, others = _told(home, app)
    named = [(facts, address) for facts, address in tables if facts.id == table]
    if not named:
        raise _no_table(app, table, sorted({facts.id for facts, _ in tables}), others)
    for facts, address in named:
        if facts.kind not in READABLE:
            raise UsageError(
                f"table {table!r} of app {app!r} is {facts.kind}: the app doesn't keep its rows",
                hint="ask the system that keeps them",
            )
        if address is not None:
            return address, facts
    stages = ", ".join(facts.stage for facts, _ in named)
    raise UnavailableError(
        f"table {table!r} of app {app!r} is kept by stage {stages}, which doesn't run on {home} now",
        hint=f"start it: headrace run ... --stage {named[0][0].stage}",
    )


def _told(home: Path, app: str) -> tuple[list[tuple[TableFacts, Address | None]], Mapping[str, str]]:
    """The tables of a running app, and by id what else it keeps."""
    addresses = find_all(home, app)
    if not addresses:
        raise _not_running(home, app)
    client = addresses[0].client()
    try:
        told = client.tables()
    finally:
        client.close()
    tables = [(one, next((a for a in addresses if one.stage in a.stages), None)) for one in told.tables]
    return tables, told.others


def _no_table(app: str, table: str, ids: Sequence[str], others: Mapping[str, str]) -> UsageError:
    if table in others:
        own = [id_ for id_ in ids if id_.startswith(f"{table}.")]
        return UsageError(
            f"{table!r} of app {app!r} is {others[table]}, and no table: what it keeps is laid out for its own work",
            hint=f"ask for its stores: {', '.join(own)}" if own else "send what is to be asked for to a table",
        )
    close = [id_ for id_ in ids if id_.endswith(f".{table}")] or difflib.get_close_matches(table, [*ids, *others], n=1)
    return UsageError(
        f"app {app!r} has no table {table!r}; its tables: {', '.join(ids) or 'none'}",
        hint=f"did you mean {close[0]!r}?" if close else None,
    )


def _not_running(home: Path, app: str) -> UnavailableError:
    running = ", ".join(sorted({address.app for address in find_all(home)})) or "nothing"
    apps = home / "apps"
    if not (apps / app).is_dir():
        known = sorted(path.name for path in apps.iterdir()) if apps.is_dir() else []
        close = difflib.get_close_matches(app, known, n=1)
        meant = f"did you mean {close[0]!r}? Else " if close else ""
        return UnavailableError(
            f"no app {app!r} has ever run on {home}; running there: {running}",
            hint=f"{meant}check its name, or name the home folder that it uses with --home",
        )
    return UnavailableError(
        f"app {app!r} isn't running on {home}; running there: {running}",
        hint="tables are read while their app runs: start it with headrace run",
    )
