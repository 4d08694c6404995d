"""``headrace table list``."""

from __future__ import annotations

from typing import Any

from headrace.cli.console import print_json, print_note, print_table
from headrace.cli.options import HOME, AsJson, Home, Metadata
from headrace.cli.table.arguments import AppOfHome


def list_tables(app: AppOfHome, home: Home = HOME, metadata: Metadata = None, as_json: AsJson = False) -> None:
    """List the tables of a running app, and the stores of its low-level tasks.

    Shows their kinds, keys and columns, the stages that keep them, their partition counts, and roughly how many rows
    they have.
    """
    from headrace.cli.status import ask
    from headrace.metadata.opening import existing_metadata
    from headrace.runners.tables.finding import READABLE
    from headrace.runners.tables.finding import list_tables as find

    with existing_metadata(home, metadata) as store:
        tables = find(store, app)
        counters = {task.name: task.counters for status in ask(store, app) for task in status.tasks}
    found: list[dict[str, Any]] = []
    for facts, address in tables:
        together = max if facts.kind == "global" else sum
        rows = [counters.get(task, {}).get(f"rows_of_{facts.id}", 0) for task in facts.tasks]
        found.append(
            {
                "table": facts.id,
                "kind": facts.kind,
                "key": facts.key,
                "values": facts.values,
                "stage": facts.stage,
                "running": address is not None,
                "partitions": len(facts.tasks),
                "rows": None if address is None or facts.kind not in READABLE else together(rows),
                "ttlMs": facts.ttl_ms,
                "storage": facts.storage,
                "versionsMs": facts.versions_ms,
            }
        )
    if as_json:
        print_json(found)
    elif found:
        _print(found)
    else:
        print_note(f"app {app!r} has no tables")


def _print(found: list[dict[str, Any]]) -> None:
    from headrace.cli.stream.about import columns_as_text

    print_table(
        ("table", "kind", "key", "stage", "partitions", "rows", "other columns"),
        [
            (
                one["table"],
                _kind(one),
                columns_as_text(one["key"]),
                one["stage"] if one["running"] else f"{one['stage']} (not running here)",
                one["partitions"],
                one["rows"],
                columns_as_text(one["values"]) or "none",
            )
            for one in found
        ],
    )


def _kind(one: dict[str, Any]) -> str:
    from headrace.core.duration import format_ms

    words = [one["kind"]]
    words += ["in memory"] if one["storage"] == "memory" else []
    words += [] if one["versionsMs"] is None else [f"versions {format_ms(one['versionsMs'])}"]
    words += [] if one["ttlMs"] is None else [f"ttl {format_ms(one['ttlMs'])}"]
    return ", ".join(words)
