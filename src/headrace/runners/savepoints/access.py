"""Savepoints from Python. ``import headrace`` imports this module, so it imports little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from headrace.core.errors import UsageError

if TYPE_CHECKING:
    from headrace.api.app import Declarations


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
        By the id of a table, step or store what all tasks together kept of it. State that is empty isn't there.
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
                f"savepoint {self.name!r} of app {self.app!r} holds nothing of {id_!r}",
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
        If there is no such savepoint.

    Examples
    --------
    >>> saved = hr.read_savepoint(app, "monday")
    >>> saved["prices"].filter(pl.col("euros") > 100)
    """
    from headrace.runners.savepoints.reading import read_state

    manifest, tables = read_state(app, name)
    return Savepoint(manifest.app, name, manifest.version, tables)
