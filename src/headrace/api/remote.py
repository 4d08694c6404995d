"""Tables that live elsewhere, as they are declared: functions of the user's, or a table of a SQL database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from typing_extensions import override

from headrace.api.calling import calling_of, check_count
from headrace.api.descriptors import Sql, sql
from headrace.api.location import Declaring
from headrace.api.rows import check_function
from headrace.core.calling import Calling
from headrace.core.duration import Duration, format_ms, to_ms
from headrace.core.errors import DeclarationError
from headrace.core.retry import Retry

OnWrite = Literal["through", "around"]

FOR_EVER = Retry(None, 100, 30_000)
"""What a remote table does by default: the tasks wait until it is back, and lose nothing."""


@dataclass(frozen=True, slots=True)
class Cache:
    """What a task remembers of a remote table: at most ``rows`` keys, each for ``ttl_ms``."""

    rows: int
    ttl_ms: int
    write: OnWrite

    @override
    def __str__(self) -> str:
        return f"{self.rows:,} keys cached for {format_ms(self.ttl_ms)}, written {self.write}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Remote:
    """Where a remote table lives, and how it is asked; made by ``hr.tables.remote`` and ``hr.tables.sql_table``."""

    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None
    delete: Callable[[Any], Any] | None = None
    sql: Sql | None = None
    calling: Calling
    batch: int
    reads_per_s: float | None = None
    writes_per_s: float | None = None
    cache: Cache | None = None

    @property
    def readable(self) -> bool:
        """It can be joined."""
        return self.read is not None or self.sql is not None

    @property
    def writable(self) -> bool:
        """It can be sent to."""
        return self.write is not None or self.sql is not None


def remote(
    read: Callable[[Any], Any] | None = None,
    write: Callable[[Any], Any] | None = None,
    *,
    delete: Callable[[Any], Any] | None = None,
    batch: int = 500,
    concurrency: int = 4,
    timeout: Duration = "10s",
    retry: Retry | None = None,
    reads_per_s: float | None = None,
    writes_per_s: float | None = None,
) -> Remote:
    """A table behind functions of yours, plain or ``async``, for ``app.table(remote=...)``.

    ``read`` gets a DataFrame of distinct keys, at most ``batch`` of them, and returns the rows that it finds, with
    their keys: a DataFrame or a list of dicts. ``write`` gets a DataFrame of rows, each key once. With ``delete``,
    rows that are null but for their key are deletions, and it gets a DataFrame of their keys. A task makes at most
    ``concurrency`` reads at once. What fails is tried for ever by default. ``reads_per_s`` and ``writes_per_s`` bound
    how many keys and rows the whole app asks for and writes.

    >>> def fetch(keys):
    ...     return [{"member": member, "country": "AT"} for member in keys["member"]]
    >>> columns = {"member": pl.String, "country": pl.String}
    >>> countries = app.table("countries", key="member", schema=columns, remote=hr.tables.remote(fetch, reads_per_s=1000))
    >>> located = views.join(countries, how="left")
    """
    with Declaring("remote"):
        if read is None and write is None:
            raise DeclarationError(
                "a remote table needs a function that reads, or one that writes",
                hint="write hr.tables.remote(read=fetch)",
            )
        if delete is not None and write is None:
            raise DeclarationError("delete= is given, but no write=", hint="give both, or leave delete= out")
        for name, function, of in (("read", read, "keys"), ("write", write, "rows"), ("delete", delete, "keys")):
            if function is not None:
                check_function(function, f"{name}=", (of,), may_be_async=True)
        check_count("batch", batch)
        return Remote(
            read=read,
            write=write,
            delete=delete,
            calling=calling_of(concurrency=concurrency, timeout=timeout, retry=retry, default=FOR_EVER),
            batch=batch,
            reads_per_s=_rate("reads_per_s", reads_per_s),
            writes_per_s=_rate("writes_per_s", writes_per_s),
        )


def sql_table(
    url: str,
    table: str,
    *,
    batch: int = 500,
    concurrency: int = 4,
    timeout: Duration = "10s",
    retry: Retry | None = None,
    reads_per_s: float | None = None,
    create_table: bool = True,
) -> Remote:
    """A table of a SQLite or PostgreSQL database, for ``app.table(remote=...)``: read by key, written exactly once.

    ``url``, ``table`` and ``create_table`` are as for ``hr.io.sql``, the others as for ``hr.tables.remote``. The key is that of
    the table that is declared with it.

    >>> members = hr.tables.sql_table("sqlite:///members.db", "members")
    >>> columns = {"member": pl.String, "country": pl.String}
    >>> countries = app.table("countries", key="member", schema=columns, remote=members)
    """
    with Declaring("sql_table"):
        check_count("batch", batch, 10_000)
        return Remote(
            sql=sql(url, table, create_table=create_table),
            calling=calling_of(concurrency=concurrency, timeout=timeout, retry=retry, default=FOR_EVER),
            batch=batch,
            reads_per_s=_rate("reads_per_s", reads_per_s),
        )


def cached(remote: Remote, rows: int = 100_000, ttl: Duration = "1m", *, write: OnWrite = "through") -> Remote:
    """The same remote table with a cache in front of it, in the memory of each task that joins it.

    A task remembers what it read of the ``rows`` keys that it asked for last, each for ``ttl``; that a key has no row
    is remembered as well. When the task itself writes the table, the rows take the place of what is in the cache
    (``write="through"``), or it forgets their keys (``"around"``). What others write is seen when ``ttl`` is over.

    >>> members = hr.tables.cached(hr.tables.sql_table("sqlite:///members.db", "members"), rows=10_000, ttl="5m")
    >>> print(members.cache)
    10,000 keys cached for 5m, written through
    """
    with Declaring("cached"):
        if not isinstance(remote, Remote):
            raise DeclarationError(
                f"what is cached is a remote table, not {type(remote).__name__} {remote!s:.80}",
                hint="write hr.tables.cached(hr.tables.remote(read=fetch))",
            )
        if not remote.readable:
            raise DeclarationError("a table that is only written has nothing to cache", hint="give it a read function")
        check_count("rows", rows)
        if write not in get_args(OnWrite):
            raise DeclarationError(f"write={write!r} is no choice there is", hint='write "through" or "around"')
        return replace(remote, cache=Cache(rows, to_ms(ttl, "ttl", minimum=1), write))


def _rate(what: str, value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise DeclarationError(f"{what}={value!r} is not a rate", hint="write a number above 0, or leave it out")
    return float(value)
