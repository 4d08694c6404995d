"""Savepoints from Python. ``import headrace`` imports this module, so it imports little."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from headrace.core.errors import UsageError

if TYPE_CHECKING:
    from headrace.api.app import Declarations
    from headrace.life.timelines import Outputs
    from headrace.rows.given import Rows


@dataclass(frozen=True, slots=True)
class Savepoint:
    """What a savepoint of an app holds, as of a version that every task had committed: rows by table, step or store."""

    app: str
    name: str
    version: int
    tables: Mapping[str, pl.DataFrame]

    def __getitem__(self, id_: str) -> pl.DataFrame:
        found = self.tables.get(id_)
        if found is None:
            raise UsageError(
                f"savepoint {self.name!r} of app {self.app!r} has no state of {id_!r}",
                hint=f"it holds {', '.join(sorted(self.tables)) or 'no state'}",
            )
        return found


def read_savepoint(app: Declarations, name: str) -> Savepoint:
    """Read what a savepoint holds. Raises ``UsageError`` if it doesn't exist.

    ``app`` is the app as it was when the savepoint ``name`` was taken; its home has the savepoint and its inputs.

    Examples
    --------
    >>> saved = hr.read_savepoint(app, "monday")
    >>> dear = saved["prices"].filter(pl.col("euros") > 100)
    """
    from headrace.run.savepoints.writing import read_state

    manifest, tables = read_state(app, name)
    return Savepoint(manifest.app, name, manifest.version, tables)


def write_savepoint(app: Declarations, name: str, tables: Mapping[str, Rows], *, base: str | None = None) -> None:
    """Write a savepoint of tables that are given as DataFrames. Restore it with ``restore_savepoint``.

    Without ``base`` it is a first load: all other state is empty, and each input begins where it is declared to. With
    another savepoint as ``base`` it is a repair: the named tables are replaced, and all else is kept, positions too.

    ``app`` is planned as at a start, so its inputs must exist; it may run meanwhile. ``name`` must be new. ``tables``
    has the rows by the id of the table, with its columns: a DataFrame of Polars, pandas, Spark or Arrow, dicts, or
    instances of a dataclass. Of rows with the same key the last one counts. A table with ``versions`` keeps them as
    rows that have always existed; a time to live begins now.

    Raises ``UsageError`` for a table that the app doesn't have or that can't be written, and for rows that don't fit
    it, and ``PlanError`` if the present app doesn't fit its kept state, or the contents of ``base``.

    Examples
    --------
    >>> prices = hr.read_savepoint(app, "monday")["prices"]
    >>> right = prices.filter(pl.col("euros") > 0)
    >>> hr.write_savepoint(app, "repaired", {"prices": right}, base="monday")
    """
    from headrace.run.savepoints.writing import write_state

    write_state(app, name, tables, base)


def restore_savepoint(
    app: Declarations, name: str, *, outputs: Outputs = "again", partitions: Mapping[str, int] | None = None
) -> None:
    """Take an app's state and positions back to the savepoint ``name``; its next start continues from there.

    The present state stays available as an old timeline. With ``outputs`` ``"again"`` the results of messages that are
    processed a second time are written again; with ``"silent"`` nothing is, until each input has been read to its
    former position. ``partitions`` gives intermediate streams new partition counts, by the id of a step or table that
    reads them. Raises ``UsageError`` if ``app`` runs, if the savepoint doesn't exist, or if its state can't be divided
    as asked for.

    Examples
    --------
    >>> hr.restore_savepoint(app, "monday")
    """
    from headrace.life.metadata import open_metadata
    from headrace.run.savepoints.restoring import Restoring, restore

    if outputs not in ("again", "silent"):
        raise UsageError(f"outputs={outputs!r}: expected 'again' or 'silent'", hint='write outputs="again"')
    home = Path(app.settings.home).absolute()
    with closing(open_metadata(home, app.settings.metadata)) as metadata:
        asked = Restoring(
            home=home, app=app.name, metadata=metadata, name=name, outputs=outputs, partitions=partitions or {}
        )
        restore(asked)
