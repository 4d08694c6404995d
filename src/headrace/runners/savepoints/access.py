"""Savepoints from Python. ``import headrace`` imports this module, so it imports little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from headrace.core.errors import UsageError

if TYPE_CHECKING:
    from headrace.api.app import Declarations
    from headrace.serdes.given_rows import Rows


@dataclass(frozen=True, slots=True)
class Savepoint:
    """What a savepoint holds. Made by ``read_savepoint``.

    Attributes
    ----------
    app
        The app that it was taken of.
    name
        Its name.
    version
        The version that every task had committed.
    tables
        By the id of a table, step or store, the rows that all tasks together kept. Empty state is left out.
    """

    app: str
    name: str
    version: int
    tables: Mapping[str, pl.DataFrame]

    def __getitem__(self, id_: str) -> pl.DataFrame:
        """Return what was kept under an id."""
        found = self.tables.get(id_)
        if found is None:
            raise UsageError(
                f"savepoint {self.name!r} of app {self.app!r} has no state of {id_!r}",
                hint=f"it holds {', '.join(sorted(self.tables)) or 'no state'}",
            )
        return found


def read_savepoint(app: Declarations, name: str) -> Savepoint:
    """Read what a savepoint holds.

    Parameters
    ----------
    app
        The app, as it was when the savepoint was taken; its home has the savepoint and the streams that it reads.
    name
        The name of the savepoint.

    Returns
    -------
    Savepoint

    Raises
    ------
    UsageError
        If the savepoint doesn't exist.

    Examples
    --------
    >>> saved = hr.read_savepoint(app, "monday")
    >>> dear = saved["prices"].filter(pl.col("euros") > 100)
    """
    from headrace.runners.savepoints.reading import read_state

    manifest, tables = read_state(app, name)
    return Savepoint(manifest.app, name, manifest.version, tables)


def write_savepoint(app: Declarations, name: str, tables: Mapping[str, Rows], *, base: str | None = None) -> None:
    """Write a savepoint of tables that are given as DataFrames. Restore it with ``headrace savepoint restore``.

    Without ``base`` it is a first load: all other state is empty, and each input begins where it is declared to. With
    ``base`` it is a repair: the named tables are replaced, and all else is kept, positions too.

    Parameters
    ----------
    app
        The app. It is planned as at a start, so its inputs must exist. It may run meanwhile.
    name
        The name of the new savepoint.
    tables
        The rows by the id of the table, with its columns: a DataFrame of Polars, pandas, Spark or Arrow, dicts, or
        instances of a dataclass. Of rows with the same key the last one counts. A table with ``versions`` keeps them as
        rows that have always existed; a time to live begins now.
    base
        The name of another savepoint of the app, which isn't changed.

    Raises
    ------
    UsageError
        For a table that the app doesn't have or that can't be written, for rows that don't fit it, and if there is a
        savepoint of this name already.
    PlanError
        If the present app doesn't fit its kept state, or the contents of ``base``.

    Examples
    --------
    >>> prices = hr.read_savepoint(app, "monday")["prices"]
    >>> right = prices.filter(pl.col("euros") > 0)
    >>> hr.write_savepoint(app, "repaired", {"prices": right}, base="monday")
    """
    from headrace.runners.savepoints.writing import write_state

    write_state(app, name, tables, base)
