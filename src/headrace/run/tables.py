"""Queries of a running app's tables from other processes: the container answers, a reader asks through the coordinator.

The container's thread waits in a request that the coordinator holds, and answers from committed state. The run loop
waits for it only when it closes a database. If the coordinator can't be reached, the thread tries again; whether the
container ends is up to its heartbeats.

``import headrace`` imports this module, so it imports little; the first reader imports the rest. Nothing needs Spark.
"""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import polars as pl
from typing_extensions import override

from headrace.coordinator.address import Address
from headrace.coordinator.books import ANSWER_BYTES_MAX
from headrace.coordinator.client import CoordinatorClient
from headrace.coordinator.messages import (
    KEYS_MAX,
    LIMIT_MAX,
    LIMIT_MS_MAX,
    Answer,
    ErrorReport,
    Listening,
    Question,
    Questions,
    TableFacts,
    TaskAnswer,
)
from headrace.coordinator.publication import find_all, known_apps
from headrace.coordinator.server import HOLD_MS
from headrace.core.clock import Clock, Duration, to_ms
from headrace.core.deployment import home_of, metadata_url_of
from headrace.core.errors import DataError, FencedError, HeadraceError, UnavailableError, UsageError
from headrace.core.log import Throttle, logger
from headrace.core.worker import WorkerThread
from headrace.life.metadata import MetadataStore
from headrace.rows.ipc import encode_rows
from headrace.run.looks import Looks
from headrace.stores.versions import VersionedTable
from headrace.task.event_time import NEVER
from headrace.task.host.task_host import TaskHost
from headrace.task.tables import CommittedTables, Page

if TYPE_CHECKING:
    from headrace.run.table_routing import TableScan, TaskRows

TASK_ANSWER_BYTES_MAX = 5 << 19
"""The limit of one task's rows as Arrow, which takes more room than the stored form if strings are short."""
_PAUSE_S = 1.0
_log = logger(__name__)


class TableAnswers:
    """Answers questions about some tasks: about their tables, and what a look at them finds."""

    def __init__(self, hosts: Sequence[TaskHost], clock: Clock) -> None:
        self._looks = Looks(hosts, clock)
        self._tables = {
            str(host.name): CommittedTables(host.state, host.scope.queryable, clock.now_ms, _bounds(host))
            for host in hosts
        }

    def answer(self, question: Question) -> Answer:
        """Return what each task has, or why it can't be read. Never raises."""
        answers: list[TaskAnswer] = []
        size = 0
        for task in question.tasks:
            # A request is bounded: the client continues with the first task that had no room.
            answers.append(TaskAnswer(task=task, more=True) if size >= ANSWER_BYTES_MAX else self._of(task, question))
            size += len(answers[-1].rows)
        return Answer(number=question.number, answers=answers)

    def close(self) -> None:
        self._looks.close()

    def _of(self, task: str, question: Question) -> TaskAnswer:
        try:
            if question.look is not None:
                return TaskAnswer(task=task, rows=self._looks.answer(question.look, task))
            bytes_max = question.bytes_max
            while True:
                page = self._page(self._tables[task], question, bytes_max)
                rows = encode_rows(page.rows)
                if len(rows) <= TASK_ANSWER_BYTES_MAX or page.rows.height <= 1:
                    return TaskAnswer(task=task, version=page.version, rows=rows, more=page.more, last=page.last)
                bytes_max //= 2
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets it and the container continues
            report = ErrorReport.of(error, with_traceback=not isinstance(error, HeadraceError))
            if question.look is None or not isinstance(error, UsageError):
                report = msgspec.structs.replace(report, message=f"task {task}: {report.message}")
            return TaskAnswer(task=task, error=report)

    @staticmethod
    def _page(tables: CommittedTables, question: Question, bytes_max: int) -> Page:
        table, at = question.table, question.at_ms
        if question.keys:
            return tables.get(table, question.keys, bytes_max, at_ms=at)
        return tables.scan(table, question.low, question.high, max(1, question.rows), bytes_max, at_ms=at)


def _bounds(host: TaskHost) -> Callable[[str], int]:
    """How far back a table's versions go. A rollback replaces the table, so each call asks the task for it."""

    def bound_of(table: str) -> int:
        kept = host.task.chain.tables[table]
        return kept.bound if isinstance(kept, VersionedTable) else NEVER

    return bound_of


class AnswerThread(WorkerThread):
    """The thread that waits for questions and answers them, from ``start`` to ``close``."""

    def __init__(
        self,
        listen: Callable[[Listening], Questions],
        hang_up: Callable[[], None],
        container: int,
        incarnation: str,
        answers: TableAnswers,
    ) -> None:
        """``listen`` may block; after ``hang_up`` it has to return or raise soon."""
        super().__init__("headrace-tables")
        self._listen, self._hang_up = listen, hang_up
        self._container, self._incarnation = container, incarnation
        self._answers = answers
        self._throttle = Throttle(_log)

    @classmethod
    def over(cls, client: CoordinatorClient, container: int, incarnation: str, answers: TableAnswers) -> AnswerThread:
        own = client.sibling(timeout_s=HOLD_MS / 1000 + 5)
        return cls(own.listen, own.close, container, incarnation, answers)

    @override
    def wake(self) -> None:
        self._hang_up()

    @override
    def close(self) -> None:
        super().close()
        self._answers.close()

    @override
    def work(self) -> None:
        answer: Answer | None = None
        while not self.closing.is_set():
            try:
                message = Listening(container=self._container, incarnation=self._incarnation, answer=answer)
                question = self._listen(message).question
            except FencedError:
                return  # the container has been replaced; its heartbeats report that and end it
            except HeadraceError as error:
                # The coordinator asks again for the answer, if there was one.
                answer = None
                if self.closing.is_set():
                    return  # the call was cut off by ``close``
                self._throttle.warning(
                    "questions about tables can't be fetched; trying again",
                    container=self._container,
                    error=error.message,
                )
                self.closing.wait(_PAUSE_S)
                continue
            answer = None if question is None else self._answers.answer(question)


READABLE = ("local", "global", "store")


def find_table(metadata: MetadataStore, app: str, table: str) -> tuple[Address, TableFacts]:
    tables, others = tables_of(metadata, app)
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


def tables_of(metadata: MetadataStore, app: str) -> tuple[list[tuple[TableFacts, Address | None]], Mapping[str, str]]:
    """Return the tables of a running app, each with the deployment that runs its stage, and what else it keeps."""
    addresses = find_all(metadata, app)
    if not addresses:
        raise _not_running(metadata, app)
    with closing(addresses[0].client()) as client:
        listed = client.tables()
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


_SPARE_S = 5.0
"""How many seconds longer than the timeout a reader waits for the coordinator."""


def open_table(
    app: str, table: str, *, home: str | Path | None = None, metadata: str | None = None, timeout: Duration = "5s"
) -> TableReader:
    """Open a ``table`` of the running ``app`` for reading. Only committed rows are seen.

    ``home``, ``metadata`` and ``timeout`` are as of ``TableReader``. Raises ``UsageError`` if the app has no such
    table, and ``UnavailableError`` if it doesn't run.

    Examples
    --------
    >>> prices = hr.tables.open_table("shop", "prices")
    >>> prices.get("lamp")
    {'article': 'lamp', 'euros': 20.0}
    """
    return TableReader(app, table, home=home, metadata=metadata, timeout=timeout)


class TableReader:
    """Reads a ``table`` of a running ``app``. For one thread at a time; close it, or use it in a ``with``.

    The rows of one task are of one commit, which ``versions`` names; those of two tasks may be of different ones. After
    an error whose ``retry`` is true the next call may succeed: the reader finds an app that was restarted.

    ``home`` is by default the deployment's (see the page "Settings"), or ``.headrace``. ``metadata`` is the URL of the
    app's metadata store, if that isn't in the home; by default the deployment's.
    ``timeout`` is how long a read may take; at most 30 s.

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
        self.app, self.table = app, table
        self._home, self._metadata = home_of(home, app), metadata_url_of(metadata, app)
        self._limit_ms = limit_ms
        self._client: CoordinatorClient | None = None
        self._hang_up: weakref.finalize[[], TableReader] | None = None
        self.versions: Mapping[str, int | None] = {}
        """For each task the checkpoint version that the last read saw; None: it had not committed yet."""
        self.after: str | None = None
        """The place where the last ``scan`` stopped at its limit; None: there were no more rows."""
        self._find()

    @property
    def key(self) -> Mapping[str, pl.DataType]:
        """The key's columns, in order, with their types."""
        return self.described.key

    @property
    def columns(self) -> Mapping[str, pl.DataType]:
        """All columns with their types, the key's first."""
        return self.described.schema

    @property
    def partitions(self) -> int:
        """How many tasks hold the table."""
        return len(self._facts.tasks)

    def get(self, *key: Any, at: int | datetime | None = None) -> dict[str, Any] | None:
        """Return the row of a ``key``, one value for each of its columns, or None.

        ``at`` is for a table of versions: the time (ms, or a datetime; a naive one is UTC) whose version is asked for.
        Raises ``DataError`` if tasks have different rows of the key: then the table isn't partitioned by its key.
        """
        rows = self.get_rows([key], at=at)
        if rows.height > 1:
            raise DataError(
                f"table {self.table!r} has {rows.height} rows of one key, in different tasks: {key}",
                hint=f"{self._filled} isn't partitioned by the key; get_rows and scan show all of them",
            )
        return rows.row(0, named=True) if rows.height else None

    def get_rows(self, keys: Sequence[Sequence[Any]], *, at: int | datetime | None = None) -> pl.DataFrame:
        """Return the rows of several ``keys``, without those that have none; ``at`` is as of ``get``.

        Examples
        --------
        >>> hr.tables.open_table("shop", "prices").get_rows([("lamp",), ("sofa",)]).rows()
        [('lamp', 20.0)]
        """
        parts = self.parts_of(keys, at=at)
        self.versions = {part.task: part.version for part in parts}
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

        ``first`` are values of the first columns of the key. ``prefix`` is how its next column begins, ``start`` the
        least value of that column, ``stop`` the first one that is too large. There are ``limit`` rows at most (None:
        all), of all tasks or of one ``partition``. ``after``, the reader's ``after``, resumes where an earlier scan
        stopped. ``at`` is as of ``get``.

        Examples
        --------
        >>> hr.tables.open_table("shop", "prices").scan(prefix="l").rows()
        [('lamp', 20.0)]
        """
        bounds = self.described.range(first, prefix=prefix, start=start, stop=stop)
        page = self.page(bounds, limit=limit or LIMIT_MAX, partition=partition, after=after, at=at)
        parts = list(page.parts)
        while limit is None and page.after is not None:
            page = self.page(bounds, limit=LIMIT_MAX, partition=partition, after=page.after, at=at)
            parts += page.parts
        self.versions = {part.task: part.version for part in parts}
        self.after = page.after
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

    def parts_of(self, keys: Sequence[Sequence[Any]], *, at: int | datetime | None = None) -> list[TaskRows]:
        """Return the rows of several ``keys`` by the tasks that hold them; ``at`` is as of ``get``."""
        from headrace.run.table_routing import found, gets, time_ms

        if not 1 <= len(keys) <= KEYS_MAX:
            raise UsageError(f"can't read {len(keys)} keys at once", hint=f"give 1 to {KEYS_MAX} keys")
        client = self._connected()
        at_ms = time_ms(self._facts, at)
        asks = gets(self._facts, self.described, self.described.keys(keys), self._limit_ms, at_ms=at_ms)
        try:
            return [part for ask in asks for part in found(self.described, client.ask(ask))]
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
        """Return one page of rows from the first key to the end of the range, both in ``bounds`` as bytes.

        ``limit``, ``partition``, ``after`` and ``at`` are as of ``scan``.
        """
        from headrace.run.table_routing import TableScan, time_ms

        client = self._connected()
        scan = TableScan(
            self._facts,
            self.described,
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

    @property
    def _filled(self) -> str:
        return "what its task writes" if self._facts.kind == "store" else "the stream that fills it"

    def _together(self, parts: Sequence[TaskRows]) -> pl.DataFrame:
        rows = [part.rows for part in parts if part.rows.height]
        return pl.concat(rows) if rows else pl.DataFrame(schema=self.described.schema)

    def _connected(self) -> CoordinatorClient:
        if self._client is None:  # the last run has ended
            self._find()
        assert self._client is not None
        return self._client

    def _find(self) -> None:
        from headrace.life.metadata import existing_metadata
        from headrace.run.table_routing import TableColumns

        with existing_metadata(self._home, self._metadata) as store:
            address, self._facts = find_table(store, self.app, self.table)
        self.described = TableColumns(self._facts)
        self._client = address.client(timeout_s=self._limit_ms / 1000 + _SPARE_S, patience_s=0)
        self._hang_up = weakref.finalize(self, self._client.close)  # also for a reader that was never closed
