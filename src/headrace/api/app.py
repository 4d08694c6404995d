"""An app as it is declared: its streams, tables and flows. Building it runs nothing and touches no disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
from typing_extensions import override

from headrace.api.descriptors import Sql, check_partitions
from headrace.api.draft import Draft, SystemDescriptor
from headrace.api.event_time import check_time_column
from headrace.api.freeze import freeze
from headrace.api.handles import Output, Table
from headrace.api.location import Declaring, Location
from headrace.api.operators.spec import OnError
from headrace.api.operators.task import add_task
from headrace.api.policies import dead_letter_id, one_of
from headrace.api.remote import Remote
from headrace.api.rows import SchemaLike
from headrace.api.settings import Grouping, Guarantee, Settings
from headrace.api.specs import Graph, Role, Start, StreamSpec, TableKind, TableSpec, TableStorage
from headrace.api.stream import Stream
from headrace.api.table_checks import declared_table, remote_table
from headrace.api.tasks import Task
from headrace.core.duration import Duration, to_ms
from headrace.core.errors import DeclarationError
from headrace.core.home import home_of
from headrace.core.ids import StreamId, check_id
from headrace.serdes.schema import Schema
from headrace.systems.registry import SystemSpec

_DEFAULTS = Settings()
_NAMES = {Role.SOURCE: "an input", Role.SINK: "an output"}


class Declarations:
    """What an app declares. ``headrace.App`` adds to it how an app is planned and run.

    >>> app = hr.App("page-views", home="/data/page-views", intermediate_partitions=8)
    >>> app.settings.intermediate_partitions
    8
    """

    def __init__(
        self,
        name: str,
        *,
        home: str | Path | None = None,
        intermediate_partitions: int | None = _DEFAULTS.intermediate_partitions,
        guarantee: Guarantee = _DEFAULTS.guarantee,
        checkpoint_interval: Duration = _DEFAULTS.checkpoint_interval_ms,
        ahead_bytes_max: int = _DEFAULTS.ahead_bytes_max,
        grouping: Grouping = _DEFAULTS.grouping,
    ) -> None:
        """Begin an app.

        ``home`` is the folder of its streams, state and metadata (default: ``HEADRACE_HOME``, else ``.headrace``).
        ``intermediate_partitions`` is the
        partition count of intermediate streams that nothing else decides. ``checkpoint_interval`` is the
        time between checkpoints. A stage stops reading when its output runs ``ahead_bytes_max`` bytes ahead
        of the reader. ``grouping`` says whether a task is made for each partition or for each container.
        """
        with Declaring("App") as here:
            check_id("app name", name)
            check_partitions(intermediate_partitions, "intermediate_partitions")
            if isinstance(ahead_bytes_max, bool) or not isinstance(ahead_bytes_max, int) or ahead_bytes_max < 1:
                raise DeclarationError(f"ahead_bytes_max={ahead_bytes_max!r} is not a number of bytes")
            settings = Settings(
                home=str(home_of(home)),
                intermediate_partitions=intermediate_partitions,
                guarantee=one_of("guarantee", guarantee, Guarantee),
                checkpoint_interval_ms=to_ms(checkpoint_interval, "checkpoint_interval", minimum=1),
                ahead_bytes_max=ahead_bytes_max,
                grouping=one_of("grouping", grouping, Grouping),
            )
            self._draft = Draft(name, settings, here)

    @property
    def name(self) -> str:
        """The app's name."""
        return self._draft.app

    @property
    def settings(self) -> Settings:
        """What the app sets once for all of itself."""
        return self._draft.settings

    def input(
        self,
        name: str,
        schema: SchemaLike | None = None,
        *,
        event_time: str | None = None,
        lateness: Duration = "0s",
        idle_timeout: Duration | None = None,
        system: SystemDescriptor | SystemSpec | None = None,
        physical: str | None = None,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
        start: Start = "oldest",
        broadcast: bool = False,
    ) -> Stream:
        """A stream that the app reads; ``name`` is its id, and its name in the system unless ``physical`` is.

        Its columns are a dict of Polars types, a dataclass, or, without either, the bytes ``key`` and
        ``value``. ``event_time`` names the column of a message's time; messages may come up to ``lateness``
        after later ones. A partition silent for ``idle_timeout`` holds no window back. A message that can't
        be read fails the app, is skipped and counted, or goes to the ``dead_letter`` stream, as ``on_error``
        says. With ``broadcast`` every task reads all of it.

        >>> clicks = app.input("clicks", {"member": pl.String, "ts": pl.Int64}, event_time="ts")
        >>> old = app.input("old-clicks", {"member": pl.String}, system=hr.files("clicks/*.parquet"))
        >>> raw = app.input("raw", on_error="dead_letter", dead_letter="unreadable")
        >>> raw.schema
        Schema(key: Binary, value: Binary)
        """
        with Declaring("input") as here:
            if isinstance(system, Sql):
                raise DeclarationError(
                    f"the table {system.table!r} of {system.url} can't be an input",
                    hint="a SQL table is an output only: it has no order to read on from; export it to files",
                )
            columns = Schema.of(schema)
            lateness_ms = to_ms(lateness, "lateness")
            idle_ms = None if idle_timeout is None else to_ms(idle_timeout, "idle_timeout", minimum=1)
            if event_time is None and (lateness_ms or idle_ms):
                given = "lateness" if lateness_ms else "idle_timeout"
                raise DeclarationError(f"{given}= has no meaning without an event time", hint="name it: event_time=")
            letters = dead_letter_id(on_error, dead_letter, "unreadable messages")
            time = None if event_time is None else check_time_column(event_time, columns)
            spec = replace(
                self._stream(name, Role.SOURCE, system, physical, here),
                schema=columns,
                event_time=time,
                lateness_ms=lateness_ms,
                idle_timeout_ms=idle_ms,
                on_error=on_error,
                dead_letter=letters,
                start=one_of("start", start, Start),
                broadcast=bool(broadcast),
            )
            node = self._draft.read(spec, here)
            return Stream(self._draft, node.id, columns, time)

    def output(
        self,
        name: str,
        *,
        partitions: int | None = None,
        system: SystemDescriptor | SystemSpec | None = None,
        physical: str | None = None,
        schema: SchemaLike | None = None,
    ) -> Output:
        """A stream that the app writes; ``name`` and ``physical`` are as for ``input``.

        Without ``schema`` the first flow sent to it sets its columns. Without ``partitions`` the planner or
        the system decides how many there are.

        >>> counts = app.output("counts", partitions=4)
        >>> report = app.output("report", system=hr.files("report/", format="parquet"))
        """
        with Declaring("output") as here:
            check_partitions(partitions)
            columns = None if schema is None else Schema.of(schema)
            spec = self._stream(name, Role.SINK, system, physical, here)
            self._draft.streams[name] = replace(spec, partitions=partitions, schema=columns)
            return Output(self._draft, name)

    def table(
        self,
        id: str,
        key: str | Sequence[str],
        schema: SchemaLike | None = None,
        side_inputs: Stream | Iterable[Stream] = (),
        kind: TableKind = "local",
        *,
        ttl: Duration | None = None,
        deleted: str | pl.Expr | None = None,
        versions: Duration | None = None,
        storage: TableStorage = "disk",
        remote: Remote | None = None,
    ) -> Table:
        """A table of one row a key, filled by ``send_to(table)``, or kept up to date by ``side_inputs``.

        A ``local`` table holds a task's keys, so it and what joins it are partitioned alike; of a ``global``
        one each task holds everything. Side inputs are inputs that no flow reads. Without ``schema`` the
        table has their columns, or those of the first flow sent to it. A row is forgotten ``ttl`` of the
        wall clock after it was last put; without it rows are kept for ever.

        ``deleted`` tells which of the rows that fill it take the row of their key out: a Boolean column, which the
        table then hasn't, or an expression. With ``versions`` a join finds the row as it was at the time of its
        message; what was is kept for so long behind the watermark. ``storage="memory"`` keeps all rows in memory,
        where they are found much faster; they are in the changelog as ever.
        With ``remote`` the table lives elsewhere: see ``hr.remote``, ``hr.sql_table`` and ``hr.cached``. Then it
        needs a schema, any flow can join it however it is partitioned, and what is sent to it is written there.

        >>> members = app.input("members", {"member": pl.String, "country": pl.String})
        >>> countries = app.table("countries", key="member", side_inputs=[members])
        >>> located = views.join(countries)
        >>> rates = app.table("rates", key="currency", schema={"currency": pl.String, "ts": pl.Int64}, versions="1d")
        """
        with Declaring("table") as here:
            one_of("kind", kind, TableKind)
            if kind == "remote" and remote is None:
                raise DeclarationError('kind="remote" says not where', hint="write remote=hr.remote(read=fetch)")
            one_of("storage", storage, TableStorage)
            given = (side_inputs,) if isinstance(side_inputs, Stream) else tuple(side_inputs)
            sides = tuple(self._side_input(side) for side in given)
            spec = declared_table(
                TableSpec(
                    id=id,
                    key=(key,) if isinstance(key, str) else tuple(key or ()),
                    location=here,
                    schema=None if schema is None else Schema.of(schema),
                    kind=kind,
                    ttl_ms=None if ttl is None else to_ms(ttl, "ttl", minimum=1),
                    storage=storage,
                    versions_ms=None if versions is None else to_ms(versions, "versions"),
                    deleted=deleted,
                ),
                sides,
            )
            if remote is not None:
                spec = remote_table(spec, remote, self._draft.system)
            self._draft.claim("a table", id, here)
            self._draft.tables[id] = spec
            for side in sides:
                self._draft.streams[side.id] = replace(side, role=Role.SIDE_INPUT)
            return Table(self._draft, id)

    def task(
        self,
        task: Task,
        inputs: Mapping[str, Stream],
        outputs: Mapping[str, SchemaLike] | None = None,
        *,
        event_time: str | Mapping[str, str] | None = None,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
        id: str | None = None,
    ) -> dict[str, Stream]:
        """Run a low-level task of your own on ``inputs``; returns a flow for each of ``outputs``, by name.

        Messages of one key meet in one instance: ``partition_by`` before it; inputs need equal partition counts.
        ``outputs`` says the columns of each; every one has to be taken. ``event_time`` names the column of their event
        time, for all or by output; without it a time column that is called as an input's keeps its role. A message on
        which ``process`` raises fails the app, is skipped and counted, or goes to the ``dead_letter`` stream, as
        ``on_error`` says; what that call did before is taken back.

        >>> class Pages(hr.Task):
        ...     seen = hr.Store(key={"member": pl.String}, value={"pages": pl.Int64})
        ...
        ...     def process(self, message, out):
        ...         pages = (self.seen.get(message["member"]) or {"pages": 0})["pages"] + 1
        ...         self.seen.put(message["member"], {"pages": pages})
        ...         if pages == 100:
        ...             out.send("keen", {"member": message["member"], "ts": message["ts"]})
        >>> by_member = views.partition_by("member", id="by-member-for-pages")
        >>> flows = app.task(
        ...     Pages(), {"views": by_member}, {"keen": {"member": pl.String, "ts": pl.Int64}}, id="pages"
        ... )
        >>> flows["keen"].send_to(app.output("keen-members"))
        """
        with Declaring("task") as here:
            return add_task(self._draft, Stream, task, inputs, outputs, id, event_time, on_error, dead_letter, here)

    def graph(self) -> Graph:
        """The app as one immutable graph; raises when a flow has no end, or there is none.

        Inputs, outputs and tables that no flow touches are left out.

        >>> views.filter(pl.col("ms") > 100).send_to(app.output("slow"))
        >>> list(app.graph().nodes)
        ['input-page-views', 'filter-1', 'send_to-1']
        """
        return freeze(self._draft)

    @override
    def __repr__(self) -> str:
        draft = self._draft
        return f"{type(self).__name__}({self.name!r}: {len(draft.nodes)} steps, {len(draft.streams)} streams)"

    def _stream(
        self,
        name: str,
        role: Role,
        system: SystemDescriptor | SystemSpec | None,
        physical: str | None,
        here: Location,
    ) -> StreamSpec:
        """Claim the id and the place of a stream that the user names."""
        self._draft.check_unclaimed(name)
        place = name if physical is None else check_id("physical", physical)
        home = self._draft.system(system, name)
        stream = StreamId(home.name, place)
        self._draft.check_free(stream)
        self._draft.claim(_NAMES[role], name, here)
        return StreamSpec(id=name, role=role, stream=stream, system=home, location=here)

    def _side_input(self, stream: object) -> StreamSpec:
        """The source behind a stream that may become a side input: an input that nothing else reads."""
        if not isinstance(stream, Stream):
            raise DeclarationError(
                f"a side input must be a stream, and is {type(stream).__name__} {stream!s:.80}",
                hint='write side_inputs=[app.input("profiles", {...})]',
            )
        if stream.draft is not self._draft:
            raise DeclarationError(f"the side input {stream.node!r} belongs to another app, {stream.draft.app!r}")
        source = self._draft.source_of(stream.node)
        if source is None:
            raise DeclarationError(
                f"{stream.node!r} is computed, and a side input is read as it is",
                hint="pass the input itself, or fill the table by send_to(table)",
            )
        if stream.node in self._draft.followed():
            raise DeclarationError(
                f"the input {source.id!r} (at {source.location}) is read by a flow",
                hint="a side input is for the table alone; fill the table by send_to(table) instead",
            )
        return source
