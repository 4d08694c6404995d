"""Read the tables of a running app, from Python or a command, through the app's coordinator.

``import headrace`` imports this module, so it imports little; the first reader imports the rest.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import polars as pl

from headrace.core.duration import Duration, to_ms
from headrace.core.errors import DataError, HeadraceError, UsageError
from headrace.core.home import home_of, metadata_url_of
from headrace.runners.coordination.query_messages import KEYS_MAX, LIMIT_MAX, LIMIT_MS_MAX

if TYPE_CHECKING:
    from headrace.runners.coordination.client import CoordinatorClient
    from headrace.runners.tables.routing import TableColumns, TableScan, TaskRows

_SPARE_S = 5.0
"""How many seconds longer than the timeout a reader waits for the coordinator."""


def open_table(
    app: str,
    table: str,
    *,
    home: str | Path | None = None,
    metadata: str | None = None,
    timeout: Duration = "5s",
) -> TableReader:
    """Open a table of a running app for reading. Only committed rows are seen.

    Parameters
    ----------
    app
        The app's name.
    table
        The table's name.
    home
        The app's home. By default the environment variable ``HEADRACE_HOME``, or ``.headrace``.
    metadata
        The URL of the app's metadata store, if that isn't in the home. By default the environment variable
        ``HEADRACE_METADATA``.
    timeout
        How long a read may take; at most 30 s.

    Returns
    -------
    TableReader

    Raises
    ------
    UsageError
        If the app has no such table.
    UnavailableError
        If the app doesn't run.

    Examples
    --------
    >>> prices = hr.tables.open_table("shop", "prices")
    >>> prices.get("lamp")
    {'article': 'lamp', 'euros': 20.0}
    """
    return TableReader(app, table, home=home, metadata=metadata, timeout=timeout)


class TableReader:
    """Reads a table of a running app. For one thread at a time; close it, or use it in a ``with``.

    The rows of one task are of one commit, which ``versions`` names; those of two tasks may be of different ones. After
    an error whose ``retry`` is true the next call may succeed: the reader finds an app that was restarted.

    Parameters
    ----------
    app
        The app's name.
    table
        The table's name.
    home
        The app's home. By default the environment variable ``HEADRACE_HOME``, or ``.headrace``.
    metadata
        The URL of the app's metadata store, if that isn't in the home. By default the environment variable
        ``HEADRACE_METADATA``.
    timeout
        How long a read may take; at most 30 s.

    Examples
    --------
    >>> with hr.tables.open_table("shop", "prices") as prices:
    ...     prices.scan(limit=1).rows()
    [('desk', 90.0)]
    """

    def __init__(
        self,
        app: str,
        table: str,
        *,
        home: str | Path | None = None,
        metadata: str | None = None,
        timeout: Duration = "5s",
    ) -> None:
        limit_ms = to_ms(timeout, "timeout", minimum=1, error=UsageError)
        if limit_ms > LIMIT_MS_MAX:
            raise UsageError(f"a timeout of {timeout!r} is too long", hint=f"give at most {LIMIT_MS_MAX // 1000} s")
        self.app = app
        self.table = table
        self._home = home_of(home)
        self._metadata = metadata_url_of(metadata)
        self._limit_ms = limit_ms
        self._client: CoordinatorClient | None = None
        self._hang_up: weakref.finalize[[], TableReader] | None = None
        self._versions: dict[str, int | None] = {}
        self._after: str | None = None
        self._find()

    @property
    def key(self) -> Mapping[str, pl.DataType]:
        """The key's columns, in order, with their types."""
        return self._columns.key

    @property
    def columns(self) -> Mapping[str, pl.DataType]:
        """All columns with their types, the key's first."""
        return self._columns.schema

    @property
    def partitions(self) -> int:
        """How many tasks hold the table."""
        return len(self._facts.tasks)

    @property
    def versions(self) -> Mapping[str, int | None]:
        """For each task the checkpoint version that the last read saw; None: it had not committed yet."""
        return self._versions

    @property
    def after(self) -> str | None:
        """The place where the last ``scan`` stopped at its limit; None: there were no more rows."""
        return self._after

    def get(self, *key: Any, at: int | datetime | None = None) -> dict[str, Any] | None:
        """Return the row of a key, or None.

        Parameters
        ----------
        *key
            One value for each column of the key.
        at
            For a table of versions: the time (ms, or a datetime; a naive one is UTC) whose version is asked for.

        Returns
        -------
        dict or None

        Raises
        ------
        DataError
            If tasks have different rows of the key: then the table isn't partitioned by its key.
        """
        rows = self.get_rows([key], at=at)
        if rows.height > 1:
            raise DataError(
                f"table {self.table!r} has {rows.height} rows of one key, in different tasks: {key}",
                hint=f"{self._filled} isn't partitioned by the key; get_rows and scan show all of them",
            )
        return rows.row(0, named=True) if rows.height else None

    def get_rows(self, keys: Sequence[Sequence[Any]], *, at: int | datetime | None = None) -> pl.DataFrame:
        """Return the rows of several keys, without those that have none.

        Parameters
        ----------
        keys
            For each key one value for each of its columns.
        at
            For a table of versions: the time (ms, or a datetime; a naive one is UTC) whose version is asked for.

        Returns
        -------
        polars.DataFrame

        Examples
        --------
        >>> hr.tables.open_table("shop", "prices").get_rows([("lamp",), ("sofa",)]).rows()
        [('lamp', 20.0)]
        """
        parts = self.parts_of(keys, at=at)
        self._versions = {part.task: part.version for part in parts}
        return self._together(parts).unique(maintain_order=True)

    def scan(
        self,
        *first: Any,
        prefix: str | bytes | None = None,
        start: Any = None,
        stop: Any = None,
        limit: int | None = 100,
        partition: int | None = None,
        after: str | None = None,
        at: int | datetime | None = None,
    ) -> pl.DataFrame:
        """Return rows task by task, in the order of keys within each task.

        Parameters
        ----------
        *first
            Values of the first columns of the key.
        prefix
            How the key's next column begins.
        start
            The least value of that column.
        stop
            The first value of that column that is too large.
        limit
            How many rows at most. None: all.
        partition
            Ask one task only.
        after
            Resume where an earlier scan stopped: the reader's ``after``.
        at
            For a table of versions: the time (ms, or a datetime; a naive one is UTC) whose version is asked for.

        Returns
        -------
        polars.DataFrame

        Examples
        --------
        >>> hr.tables.open_table("shop", "prices").scan(prefix="l").rows()
        [('lamp', 20.0)]
        """
        bounds = self._columns.range(first, prefix=prefix, start=start, stop=stop)
        page = self.page(bounds, limit=limit or LIMIT_MAX, partition=partition, after=after, at=at)
        parts = list(page.parts)
        while limit is None and page.after is not None:
            page = self.page(bounds, limit=LIMIT_MAX, partition=partition, after=page.after, at=at)
            parts += page.parts
        self._versions = {part.task: part.version for part in parts}
        self._after = page.after
        return self._together(parts)

    def close(self) -> None:
        """Close the connection. A later read opens it again."""
        self._client = None
        if self._hang_up is not None:
            self._hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- task by task

    @property
    def described(self) -> TableColumns:
        """The columns, for callers that build keys from values."""
        return self._columns

    def parts_of(self, keys: Sequence[Sequence[Any]], *, at: int | datetime | None = None) -> list[TaskRows]:
        """Return the rows of several keys by the tasks that hold them.

        Parameters
        ----------
        keys
            For each key one value for each of its columns.
        at
            For a table of versions: the time (ms, or a datetime; a naive one is UTC) whose version is asked for.

        Returns
        -------
        list of TaskRows
        """
        from headrace.runners.tables.routing import found, gets, time_ms

        if not 1 <= len(keys) <= KEYS_MAX:
            raise UsageError(f"can't read {len(keys)} keys at once", hint=f"give 1 to {KEYS_MAX} keys")
        client = self._connected()
        at_ms = time_ms(self._facts, at)
        asks = gets(self._facts, self._columns, self._columns.keys(keys), self._limit_ms, at_ms=at_ms)
        try:
            return [part for ask in asks for part in found(self._columns, client.ask(ask))]
        except HeadraceError:
            self.close()
            raise

    def page(
        self,
        bounds: tuple[bytes, bytes],
        *,
        limit: int,
        partition: int | None = None,
        after: str | None = None,
        at: int | datetime | None = None,
    ) -> TableScan:
        """Return one page of rows.

        Parameters
        ----------
        bounds
            The first key and the end of the range, as bytes.
        limit
            How many rows at most.
        partition
            Ask one task only.
        after
            Where the page begins.
        at
            For a table of versions: the time (ms, or a datetime; a naive one is UTC) whose version is asked for.

        Returns
        -------
        TableScan
        """
        from headrace.runners.tables.routing import TableScan, time_ms

        client = self._connected()
        scan = TableScan.begin(
            self._facts,
            self._columns,
            bounds,
            limit=limit,
            limit_ms=self._limit_ms,
            partition=partition,
            after=after,
            at_ms=time_ms(self._facts, at),
        )
        try:
            while (ask := scan.ask()) is not None:
                scan.take(client.ask(ask))
        except HeadraceError:
            self.close()
            raise
        return scan

    # -- inside

    @property
    def _filled(self) -> str:
        return "what its task writes" if self._facts.kind == "store" else "the stream that fills it"

    def _together(self, parts: Sequence[TaskRows]) -> pl.DataFrame:
        rows = [part.rows for part in parts if part.rows.height]
        return pl.concat(rows) if rows else pl.DataFrame(schema=self._columns.schema)

    def _connected(self) -> CoordinatorClient:
        """A client of the run that holds the table; a new one if the last run has ended."""
        if self._client is None:
            self._find()
        assert self._client is not None
        return self._client

    def _find(self) -> None:
        from headrace.metadata.opening import existing_metadata
        from headrace.runners.tables.finding import find_table
        from headrace.runners.tables.routing import TableColumns

        with existing_metadata(self._home, self._metadata) as store:
            address, self._facts = find_table(store, self.app, self.table)
        self._columns = TableColumns(self._facts)
        self._client = address.client(timeout_s=self._limit_ms / 1000 + _SPARE_S, patience_s=0)
        self._hang_up = weakref.finalize(self, self._client.close)  # also for a reader that was never closed
