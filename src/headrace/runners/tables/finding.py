"""Finding a table of a running app: by the app's name, through the addresses that its deployments publish."""

from __future__ import annotations

import difflib
from pathlib import Path

from headrace.core.errors import UnavailableError, UsageError
from headrace.runners.coordination.address import Address, find_all
from headrace.runners.coordination.query_messages import TableFacts

READABLE = ("local", "global")


def list_tables(home: Path, app: str) -> list[tuple[TableFacts, Address | None]]:
    """The tables of a running app, each with the deployment that keeps it (None: its stage doesn't run here)."""
    addresses = find_all(home, app)
    if not addresses:
        raise _not_running(home, app)
    client = addresses[0].client()
    try:
        facts = client.tables().tables
    finally:
        client.close()
    return [(one, next((a for a in addresses if one.stage in a.stages), None)) for one in facts]


def find_table(home: Path, app: str, table: str) -> tuple[Address, TableFacts]:
    """The deployment that keeps a table, and what is known of it."""
    tables = list_tables(home, app)
    named = [(facts, address) for facts, address in tables if facts.id == table]
    if not named:
        ids = sorted({facts.id for facts, _ in tables})
        close = difflib.get_close_matches(table, ids, n=1)
        raise UsageError(
            f"app {app!r} has no table {table!r}; its tables: {', '.join(ids) or 'none'}",
            hint=f"did you mean {close[0]!r}?" if close else None,
        )
    for facts, address in named:
        if facts.kind not in READABLE:
            raise UsageError(
                f"table {table!r} of app {app!r} is {facts.kind}: the app doesn't keep its rows",
                hint="ask the system that keeps them",
            )
        if facts.storage == "memory":
            raise UsageError(
                f"table {table!r} of app {app!r} is kept in {facts.storage}, where its task alone can read it",
                hint="keep it on disk, or send what is to be asked for to another table too",
            )
        if address is not None:
            return address, facts
    stages = ", ".join(facts.stage for facts, _ in named)
    raise UnavailableError(
        f"table {table!r} of app {app!r} is kept by stage {stages}, which doesn't run on {home} now",
        hint=f"start it: headrace run ... --stage {named[0][0].stage}",
    )


def _not_running(home: Path, app: str) -> UnavailableError:
    running = ", ".join(sorted({address.app for address in find_all(home)})) or "nothing"
    if not (home / "apps" / app).is_dir():
        return UnavailableError(
            f"no app {app!r} has ever run on {home}; running there: {running}",
            hint="check its name, or name the home folder that it uses with --home",
        )
    return UnavailableError(
        f"app {app!r} isn't running on {home}; running there: {running}",
        hint="tables are read while their app runs: start it with headrace run",
    )
