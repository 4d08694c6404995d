"""Declarations of remote tables (users' functions, or a table of a SQL database), and how to call slow functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from typing_extensions import override

from headrace.api.checks import Declaring, check_function
from headrace.api.descriptors import NewColumns, Sql, sql
from headrace.core.calls import Calling, Retry
from headrace.core.clock import Duration, format_ms, to_ms
from headrace.core.errors import DeclarationError

# -- call settings -----------------------------------------------------------------------------------
CONCURRENCY_MAX = 10_000


def retry(attempts: int | None = 5, first: Duration = "100ms", longest: Duration = "10s") -> Retry:
    """Set how often a failed call is repeated, and how long to wait between two attempts.

    There are as many ``attempts`` (None: without limit), including the first. The pause after that is ``first``; each
    one is twice as long as the one before, up to ``longest``. Half of it is random, so that tasks that lost a server at
    the same moment don't return at the same moment.

    Examples
    --------
    >>> hr.calls.retry(attempts=3, first="50ms")
    Retry(attempts=3, first_ms=50, longest_ms=10000)
    """
    with Declaring("retry"):
        if attempts is not None:
            _check_count("attempts", attempts)
        first_ms = to_ms(first, "first", minimum=1)
        longest_ms = to_ms(longest, "longest", minimum=1)
        if longest_ms < first_ms:
            raise DeclarationError(f"the longest pause, {longest!r}, is shorter than the first, {first!r}")
        return Retry(attempts, first_ms, longest_ms)


def calling_of(*, concurrency: int, timeout: Duration, retry: Retry | None, default: Retry | None = None) -> Calling:
    """The checked settings of calls; without ``retry`` the ``default`` applies."""
    _check_count("concurrency", concurrency, CONCURRENCY_MAX)
    if retry is not None and not isinstance(retry, Retry):
        raise DeclarationError(
            f"retry={retry!r} isn't a result of hr.calls.retry(...)", hint="write retry=hr.calls.retry(attempts=5)"
        )
    return Calling(concurrency, to_ms(timeout, "timeout", minimum=1), retry or default or Retry(5, 100, 10_000))


def _check_count(what: str, value: object, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        upto = "up" if most is None else f"up to {most}"
        raise DeclarationError(f"{what}={value!r} is not a whole number from 1 {upto}")


OnWrite = Literal["through", "around"]
FOREVER = Retry(None, 100, 30_000)
"""The default for remote tables: tasks wait until the table answers again, and lose nothing."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A task's cache of a remote table: at most ``rows`` keys, each for ``ttl_ms``."""

    rows: int
    ttl_ms: int
    write: OnWrite

    @override
    def __str__(self) -> str:
        return f"{self.rows:,} keys cached for {format_ms(self.ttl_ms)}, written {self.write}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Remote:
    """The place of a remote table and how to call it, from ``hr.tables.remote`` and ``hr.tables.sql_table``."""

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
        """Whether it can be joined."""
        return self.read is not None or self.sql is not None

    @property
    def writable(self) -> bool:
        """Whether rows can be sent to it."""
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
    """A table that your own functions read and write; they may be plain or ``async``.

    ``read``, required for joins, gets a DataFrame of distinct keys and returns the rows that it finds, including their
    keys: a DataFrame or a list of dicts. ``write``, required for ``send_to``, gets a DataFrame of rows with distinct
    keys. ``delete`` gets a DataFrame of keys to delete. If it is given, a row whose other columns are all null is a
    deletion.

    A call has at most ``batch`` keys or rows, and a task makes ``concurrency`` reads at once. ``timeout`` is for one
    attempt, and ``retry`` says how often to try a call that fails, see ``hr.calls.retry``; by default forever.
    ``reads_per_s`` and ``writes_per_s`` limit the keys that the whole app reads, and the rows that it writes.

    Examples
    --------
    >>> def fetch(keys):
    ...     return [{"member": member, "country": "AT"} for member in keys["member"]]
    >>> columns = {"member": pl.String, "country": pl.String}
    >>> source = hr.tables.remote(fetch, reads_per_s=1000)
    >>> located = views.join(app.table("countries", key="member", schema=columns, remote=source), how="left")
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
                check_function(function, f"{name}=", (of,), may_be_async=True, may_yield=name == "read")
        _check_count("batch", batch)
        return Remote(
            read=read,
            write=write,
            delete=delete,
            calling=calling_of(concurrency=concurrency, timeout=timeout, retry=retry, default=FOREVER),
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
    new_columns: NewColumns = "refuse",
) -> Remote:
    """A table of a SQLite or PostgreSQL database, read by key and written exactly once.

    ``url``, ``table``, ``create_table`` and ``new_columns`` are as for ``hr.io.sql``, with the key and the columns of
    the ``app.table`` that uses it; ``batch``, ``concurrency``, ``timeout``, ``retry`` and ``reads_per_s`` as for
    ``remote``.

    Examples
    --------
    >>> members = hr.tables.sql_table("sqlite:///members.db", "members")
    >>> columns = {"member": pl.String, "country": pl.String}
    >>> countries = app.table("countries", key="member", schema=columns, remote=members)
    """
    with Declaring("sql_table"):
        _check_count("batch", batch, 10_000)
        return Remote(
            sql=sql(url, table, create_table=create_table, new_columns=new_columns),
            calling=calling_of(concurrency=concurrency, timeout=timeout, retry=retry, default=FOREVER),
            batch=batch,
            reads_per_s=_rate("reads_per_s", reads_per_s),
        )


def cached(remote: Remote, rows: int = 100_000, ttl: Duration = "1m", *, write: OnWrite = "through") -> Remote:
    """Add a cache to a table of ``remote`` or ``sql_table``, in the memory of each task that joins it.

    It has the ``rows`` most recently used keys, also those without a row, each for ``ttl``. Meanwhile the task doesn't
    see other programs' writes to it. When the task itself writes a key, ``write`` ``"through"`` puts the row into the
    cache, ``"around"`` removes the key from it.

    Examples
    --------
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
        _check_count("rows", rows)
        if write not in get_args(OnWrite):
            raise DeclarationError(f"write={write!r} is not one of the choices", hint='write "through" or "around"')
        return replace(remote, cache=Cache(rows, to_ms(ttl, "ttl", minimum=1), write))


def _rate(what: str, value: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise DeclarationError(f"{what}={value!r} is not a rate", hint="write a number above 0, or leave it out")
    return float(value)
