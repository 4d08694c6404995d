"""Find a table of a running app by the app's name, with the addresses that its deployments publish."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from headrace.core.errors import UnavailableError, UsageError
from headrace.metadata.store import MetadataStore
from headrace.runners.coordination.address import Address
from headrace.runners.coordination.query_messages import TableFacts
from headrace.runners.coordination.runs import find_all, known_apps

READABLE = ("local", "global", "store")


def list_tables(metadata: MetadataStore, app: str) -> list[tuple[TableFacts, Address | None]]:
    """Return the tables of a running app, each with the deployment that keeps it (None: its stage doesn't run)."""
    return _tables_of(metadata, app)[0]


def find_table(metadata: MetadataStore, app: str, table: str) -> tuple[Address, TableFacts]:
    """Return the deployment that keeps a table, and the facts about the table."""
    tables, others = _tables_of(metadata, app)
    named = [(facts, address) for facts, address in tables if facts.id == table]
    if not named:
        raise _no_table(app, table, sorted({facts.id for facts, _ in tables}), others)
    for facts, address in named:
        if facts.kind not in READABLE:
            raise UsageError(
                f"table {table!r} of app {app!r} is {facts.kind}: the app doesn't keep its rows",
                hint="query the system that keeps them",
            )
        if address is not None:
            return address, facts
    stages = ", ".join(facts.stage for facts, _ in named)
    raise UnavailableError(
        f"table {table!r} of app {app!r} is kept by stage {stages}, which isn't running in {metadata.place}",
        hint=f"start it: headrace run ... --stage {named[0][0].stage}",
    )


def _tables_of(metadata: MetadataStore, app: str) -> tuple[list[tuple[TableFacts, Address | None]], Mapping[str, str]]:
    """Return the tables of a running app, and by id what else it keeps."""
    addresses = find_all(metadata, app)
    if not addresses:
        raise _not_running(metadata, app)
    client = addresses[0].client()
    try:
        listed = client.tables()
    finally:
        client.close()
    tables = [(one, next((a for a in addresses if one.stage in a.stages), None)) for one in listed.tables]
    return tables, listed.others


def _no_table(app: str, table: str, ids: Sequence[str], others: Mapping[str, str]) -> UsageError:
    if table in others:
        own = [id_ for id_ in ids if id_.startswith(f"{table}.")]
        return UsageError(
            f"{table!r} of app {app!r} is {others[table]}, not a table: its state can't be queried",
            hint=f"query its stores: {', '.join(own)}" if own else "send what you want to query to a table",
        )
    close = [id_ for id_ in ids if id_.endswith(f".{table}")] or difflib.get_close_matches(table, [*ids, *others], n=1)
    return UsageError(
        f"app {app!r} has no table {table!r}; its tables: {', '.join(ids) or 'none'}",
        hint=f"did you mean {close[0]!r}?" if close else None,
    )


def _not_running(metadata: MetadataStore, app: str) -> UnavailableError:
    running = ", ".join(sorted({address.app for address in find_all(metadata)})) or "nothing"
    known = known_apps(metadata)
    if app not in known:
        close = difflib.get_close_matches(app, known, n=1)
        meant = f"did you mean {close[0]!r}? Otherwise " if close else ""
        return UnavailableError(
            f"no app {app!r} has ever run in {metadata.place}; running there: {running}",
            hint=f"{meant}check its name, or name the home folder that it uses with --home, or its metadata store "
            "with --metadata",
        )
    return UnavailableError(
        f"app {app!r} isn't running in {metadata.place}; running there: {running}",
        hint="tables can be read only while their app runs: start it with headrace run",
    )
