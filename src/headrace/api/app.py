"""The declaration of an app: its streams, tables and flows. Building it runs nothing and touches no disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import polars as pl
from typing_extensions import override

from headrace.api.checks import Declaring, SchemaLike, key_columns, key_names, key_parts, one_of
from headrace.api.dataframe import DataFrameInput
from headrace.api.descriptors import (
    InputDescriptor,
    InputUse,
    RecordFormat,
    Start,
    SystemLike,
    app_systems,
    check_partitions,
)
from headrace.api.draft import Draft, Output, Sample, Table, declared_table, freeze, remote_table
from headrace.api.flow import dead_letter_id
from headrace.api.operators.spec import OnError, check_time_column
from headrace.api.operators.task import add_task
from headrace.api.other_names import APP, missing
from headrace.api.remote import Remote
from headrace.api.specs import (
    STANDBY_MAX,
    Durability,
    Graph,
    Grouping,
    Guarantee,
    LostResults,
    Role,
    Settings,
    StreamSpec,
    TableKind,
    TableSpec,
    TableStorage,
)
from headrace.api.stream import Stream
from headrace.api.tasks import Task
from headrace.core.clock import Duration, to_ms
from headrace.core.deployment import home_of, metadata_url_of, setting
from headrace.core.errors import DeclarationError, UsageError
from headrace.core.ids import check_id
from headrace.rows.schema import Schema
from headrace.stores.snapshots import ObjectPlace, snapshots_of
from headrace.systems.positions import CustomStartpoint, check_customs
from headrace.systems.registry import SystemSpec, keeps_rows


# -- input key ---------------------------------------------------------------------------------------
def _input_key(key: str | Iterable[str], schema: Schema, system: SystemSpec) -> tuple[str, ...]:
    """The columns by which an input is partitioned. Raises if its system doesn't keep such a key together."""
    held = system.held.key if isinstance(system.held, DataFrameInput) else ()
    if not key_parts(key):
        return held
    names = key_columns(key, schema, "input")
    if isinstance(system.held, DataFrameInput):
        if names != held:
            raise DeclarationError(
                f"key={list(names)} isn't how the rows of the DataFrame are placed",
                hint=f"write hr.io.dataframe(df, key={list(names)}), which places them",
            )
        return held
    if system.kind == "kafka":
        _check_record_key(names, schema, system.options)
    elif keeps_rows(system):
        raise DeclarationError(
            f"key={list(names)}: rows of one key may be in any partition of an input of {system.kind}",
            hint=f"leave it out, and put partition_by({', '.join(map(repr, names))}, id=...) before steps that need it",
        )
    return names


def _check_record_key(names: tuple[str, ...], schema: Schema, options: Mapping[str, Any]) -> None:
    """Kafka hashes the bytes of the column."""
    about = options.get("record_columns") or {}
    plain = schema.columns[names[0]] in (pl.String, pl.Binary)
    if len(names) > 1 or about.get(names[0]) != "key" or not plain:
        raise DeclarationError(
            f"key={list(names)}: a topic is partitioned by the bytes of its records' keys",
            hint=f'take the column from there: hr.io.kafka(..., record_columns={{"{names[0]}": "key"}}, '
            'key_format="text") (or "bytes"); or leave out key=, and use partition_by',
        )


_DEFAULTS = Settings()
IDLE_TIMEOUT = "1m"
"""Long enough for writers that restart, short enough that a partition without keys doesn't hold up a live app."""


class Declarations:
    """The declaration of an app. ``headrace.App`` describes the parameters and adds planning and running.

    Examples
    --------
    >>> app = hr.App("page-views", home="/data/page-views", intermediate_partitions=8)
    >>> app.settings.intermediate_partitions
    8
    """

    def __init__(
        self,
        name: str,
        *,
        home: str | Path | None = None,
        metadata: str | None = None,
        intermediate_partitions: int | None = _DEFAULTS.intermediate_partitions,
        guarantee: Guarantee = _DEFAULTS.guarantee,
        checkpoint_interval: Duration | None = None,
        ahead_bytes_max: int = _DEFAULTS.ahead_bytes_max,
        restarts_max: int = _DEFAULTS.restarts_max,
        drain_timeout: Duration | None = None,
        hung_after: Duration | None = "10m",
        durability: Durability | None = None,
        lost_results: LostResults = _DEFAULTS.lost_results,
        grouping: Grouping = _DEFAULTS.grouping,
        startpoints: Sequence[type[CustomStartpoint]] = (),
        system: SystemLike | None = None,
        internal: SystemLike | None = None,
        snapshots: str | ObjectPlace | None = None,
        standby: int | None = None,
        peek: bool | None = None,
    ) -> None:
        with Declaring("App") as here:
            check_id("app name", name)
            outside, own = app_systems(system, internal, name)
            check_partitions(intermediate_partitions, "intermediate_partitions")
            if isinstance(ahead_bytes_max, bool) or not isinstance(ahead_bytes_max, int) or ahead_bytes_max < 1:
                raise DeclarationError(f"ahead_bytes_max={ahead_bytes_max!r} is not a number of bytes")
            if isinstance(restarts_max, bool) or not isinstance(restarts_max, int) or restarts_max < 0:
                raise DeclarationError(f"restarts_max={restarts_max!r} is not a number of restarts")
            standby, peek = setting("standby", standby, name), setting("peek", peek, name)
            if isinstance(standby, bool) or not isinstance(standby, int) or not 0 <= standby <= STANDBY_MAX:
                raise DeclarationError(f"standby={standby!r} is not a number of standbys from 0 to {STANDBY_MAX}")
            if not isinstance(peek, bool):
                raise DeclarationError(f"peek={peek!r} is not True or False")
            settings = Settings(
                home=str(home_of(home, name)),
                metadata=metadata_url_of(metadata, name),
                intermediate_partitions=intermediate_partitions,
                guarantee=one_of("guarantee", guarantee, Guarantee),
                checkpoint_interval_ms=to_ms(
                    setting("checkpoint_interval", checkpoint_interval, name), "checkpoint_interval", minimum=1
                ),
                ahead_bytes_max=ahead_bytes_max,
                restarts_max=restarts_max,
                drain_timeout_ms=to_ms(setting("drain_timeout", drain_timeout, name), "drain_timeout", minimum=1),
                hung_after_ms=None if hung_after is None else to_ms(hung_after, "hung_after", minimum=1),
                durability=one_of("durability", setting("durability", durability, name), Durability),
                lost_results=one_of("lost_results", lost_results, LostResults),
                grouping=one_of("grouping", grouping, Grouping),
                startpoints=check_customs(startpoints),
                internal=own,
                snapshots=snapshots_of(snapshots, name),
                standby=standby,
                peek=peek,
            )
            self._draft = Draft(name, settings, outside, here, self._preview)

    @property
    def name(self) -> str:
        """The app's name."""
        return self._draft.app

    @property
    def settings(self) -> Settings:
        """The settings of the whole app."""
        return self._draft.settings

    def input(
        self,
        name: str,
        schema: SchemaLike | None = None,
        *,
        key: str | Sequence[str] = (),
        event_time: str | None = None,
        lateness: Duration = "0s",
        idle_timeout: Duration | None = IDLE_TIMEOUT,
        system: SystemLike | None = None,
        physical: str | None = None,
        format: RecordFormat | None = None,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
        start: Start = "oldest",
        broadcast: bool = False,
        create: int | None = None,
    ) -> Stream:
        """Declare a stream that the app reads.

        Parameters
        ----------
        name
            Its id in the app, and its name in the system unless ``physical`` gives another.
        schema
            Its columns: a dict of types (of Polars, Python, PyArrow or Spark), a dataclass, a model of Pydantic (whose
            rows are dicts), or a schema of PyArrow or Spark. By default the bytes ``key`` and ``value``.
        key
            The column or columns by which its writers choose the partition of a message, as ``partition_by`` does, or
            the key of a Kafka topic's records. State by this key then needs no ``partition_by``. A message in another
            partition than its key's doesn't fit the input. By default the key with which the stream was created.
        event_time
            The column with the time at which a message happened: ``pl.Datetime`` (best in milliseconds), or
            milliseconds since the epoch as ``pl.Int64``. To read dates, declare ``pl.Datetime("ms")``: each date then
            means the beginning of its day.
        lateness
            How far a message's event time may be behind that of messages before it.
        idle_timeout
            A partition that has received nothing for this long, by the clock, no longer holds windows back; its older
            messages may then be late. With None, it holds them back until it receives some.
        system, physical
            The system of the stream, see ``hr.io``, and its name there. By default that of the app, and ``name``. A
            URL is a system, too: ``"kafka://host:9092"`` is ``hr.io.kafka(brokers="host:9092")``.
        format
            The format of its records, if it isn't that of the system: for ``hr.io.kafka`` and ``hr.io.kinesis``.
        on_error, dead_letter
            What happens to a message that can't be decoded or doesn't fit the schema: ``"fail"`` stops the app,
            ``"skip"`` drops it and counts it, ``"dead_letter"`` sends it to the output ``dead_letter``, or of this
            name, which no flow may write.
        start
            Where the first run begins: with the ``"oldest"`` message, or with those that arrive from then on
            (``"upcoming"``).
        broadcast
            Whether every task reads the whole stream.
        create
            If the stream isn't there, the start creates it with so many partitions. For streams of Headrace's own.

        Examples
        --------
        >>> clicks = app.input("clicks", {"member": pl.String, "ts": pl.Datetime("ms")}, event_time="ts")
        >>> by_member = app.input("clicks-by-member", {"member": pl.String}, key="member")
        >>> old = app.input("old-clicks", {"member": pl.String}, system=hr.io.files("clicks/*.parquet"))
        >>> raw = app.input("raw", on_error="dead_letter", dead_letter="unreadable")
        >>> raw.schema
        Schema(key: Binary, value: Binary)
        """
        with Declaring("input") as here:
            described = self._draft.described(system, format)
            descriptor = described if isinstance(described, InputDescriptor) else None
            columns = Schema.of(schema) if descriptor is None else descriptor.input_schema(schema)
            lateness_ms = to_ms(lateness, "lateness")
            idle_ms = None if idle_timeout is None else to_ms(idle_timeout, "idle_timeout", minimum=1)
            if event_time is None and idle_timeout == IDLE_TIMEOUT:
                idle_ms = None
            if event_time is None and (lateness_ms or idle_ms):
                given = "lateness" if lateness_ms else "idle_timeout"
                raise DeclarationError(f"{given}= needs an event time", hint="name it: event_time=")
            letters = dead_letter_id(self._draft, on_error, dead_letter, "unreadable messages", here)
            time = None if event_time is None else check_time_column(event_time, columns)
            one_of("start", start, Start)
            check_partitions(create, "create")
            if descriptor is not None:
                timed = {time.column: columns.columns[time.column]} if time else {}
                use = InputUse(self._draft.app, self._draft.settings.home, timed, start, bool(broadcast))
                described = descriptor.input_system(name, use)
            stream = self._draft.stream(name, Role.SOURCE, described, physical, here)
            if create is not None and keeps_rows(stream.system):
                raise DeclarationError(
                    f"create={create} is for streams of Headrace's own, and {name!r} is one of {stream.system.kind}",
                    hint="leave it out: who writes it creates it",
                )
            spec = replace(
                stream,
                schema=columns,
                event_time=time,
                lateness_ms=lateness_ms,
                idle_timeout_ms=idle_ms,
                on_error=on_error,
                dead_letter=letters,
                start=start,
                broadcast=bool(broadcast),
                slots=stream.system.slots,
                key=_input_key(key, columns, stream.system),
                create=create,
            )
            return Stream(self._draft, self._draft.read(spec, here).id, columns, time)

    def output(
        self,
        name: str,
        *,
        partitions: int | None = None,
        system: SystemLike | None = None,
        physical: str | None = None,
        format: RecordFormat | None = None,
        schema: SchemaLike | None = None,
    ) -> Output:
        """Declare a stream that the app writes, for ``send_to``, ``late_to`` and ``dead_letter``.

        ``name``, ``system``, ``physical`` and ``format`` are as for ``input``. By default the planner or the system
        decides on the number of ``partitions``, and the columns (``schema``) are those of the first flow sent to it.

        Examples
        --------
        >>> counts = app.output("counts", partitions=4)
        >>> report = app.output("report", system=hr.io.files("report/", format="parquet"))
        """
        with Declaring("output") as here:
            check_partitions(partitions)
            columns = None if schema is None else Schema.of(schema)
            output = self._draft.output(name, here, system, format, physical)
            self._draft.streams[name] = replace(output.spec, partitions=partitions, schema=columns)
            return output

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
        """Declare a table: one row for each key, filled by ``send_to(table)`` or kept up to date by ``side_inputs``.

        ``id`` is its name. Keep it when the code changes: the table is durable. ``key`` is the column or columns by
        which a row is found. The columns (``schema``) are by default those of its side inputs, which no flow may read,
        or of the first flow sent to it. With ``kind`` ``"local"`` each task holds the keys of its partition, so the
        table and the flows that join it must be partitioned alike; with ``"global"`` each task holds the whole table.

        A row is kept for ``ttl`` of the wall clock after it was last written, by default forever. ``deleted`` marks the
        incoming rows that delete the row of their key: a Boolean column, which the table itself then doesn't have, or
        an expression. ``versions`` is how long old versions of rows are kept behind the watermark, so that a join finds
        the row that was valid at the time of its message. ``storage`` is ``"disk"``, or ``"memory"`` for much faster
        lookups. Either way, the changelog has all rows.

        ``remote`` is a table outside Headrace: ``hr.tables.remote``, ``sql_table`` or ``cached``. It needs a schema.
        Any flow can join it, and rows sent to it are written there.

        Examples
        --------
        >>> members = app.input("members", {"member": pl.String, "country": pl.String})
        >>> countries = app.table("countries", key="member", side_inputs=[members])
        >>> located = views.join(countries)
        >>> columns = {"currency": pl.String, "ts": pl.Datetime("ms")}
        >>> rates = app.table("rates", key="currency", schema=columns, versions="1d")
        """
        with Declaring("table") as here:
            one_of("kind", kind, TableKind)
            if kind == "remote" and remote is None:
                raise DeclarationError('kind="remote" needs remote=', hint="write remote=hr.tables.remote(read=fetch)")
            one_of("storage", storage, TableStorage)
            given = (side_inputs,) if isinstance(side_inputs, Stream) else tuple(side_inputs)
            sides = tuple(self._side_input(side) for side in given)
            spec = declared_table(
                TableSpec(
                    id=id,
                    key=key_names(key),
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
            self._draft.claim("a table", id, here, id)
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
        id: str | None = None,
        event_time: str | Mapping[str, str] | None = None,
        on_error: OnError = "fail",
        dead_letter: Output | str | None = None,
        tables: Mapping[str, Table] | None = None,
        writes: str | Sequence[str] = (),
    ) -> dict[str, Stream]:
        """Run your own low-level ``task``, an instance of a subclass of ``hr.tasks.Task``. Returns a flow by output.

        If the inputs are partitioned by a key, one instance gets all messages of a key. Inputs need equal partition
        counts. ``inputs`` are the flows that the task reads, by names that it chooses, and ``outputs`` the columns of
        each output, by its name. Each of them must be used. ``id`` names the task's state. Keep it when the code
        changes: the state is durable.

        ``event_time`` is the column with the outputs' event time, for all or by output. By default, a column that has
        the name and type of an input's event time keeps that role. ``on_error`` and ``dead_letter`` are as for
        ``input``, for a message on which ``process`` raises: the effects of the call before it raised are undone.
        ``tables`` are those that the task reads, by names that it chooses: it uses ``out.tables[name]``. ``writes`` are
        the names of those that it also writes.

        Examples
        --------
        >>> class Pages(hr.tasks.Task):
        ...     seen = hr.tasks.Store(key={"member": pl.String}, value={"pages": pl.Int64})
        ...
        ...     def process(self, message, out):
        ...         pages = (self.seen.get(message["member"]) or {"pages": 0})["pages"] + 1
        ...         self.seen.put(message["member"], {"pages": pages})
        ...         if pages == 100:
        ...             out.send("keen", {"member": message["member"], "ts": message["ts"]})
        >>> by_member = views.partition_by("member", id="by-member-for-pages")
        >>> columns = {"keen": {"member": pl.String, "ts": pl.Datetime("ms")}}
        >>> flows = app.task(Pages(), {"views": by_member}, columns, id="pages")
        >>> flows["keen"].send_to("keen-members")
        """
        with Declaring("task") as here:
            how = event_time, on_error, dead_letter, tables, writes
            return add_task(self._draft, Stream, task, inputs, outputs, id, *how, here)

    def graph(self) -> Graph:
        """Return the app as an immutable graph, without inputs, outputs and tables that no flow uses.

        Raises ``DeclarationError`` if a flow has no end, or the app has no flow.

        Examples
        --------
        >>> views.filter(pl.col("ms") > 100).send_to("slow")
        >>> list(app.graph().nodes)
        ['input-page-views', 'filter-1', 'send_to-1']
        """
        return freeze(self._draft)

    @override
    def __repr__(self) -> str:
        draft = self._draft
        return f"{type(self).__name__}({self.name!r}: {len(draft.nodes)} steps, {len(draft.streams)} streams)"

    if not TYPE_CHECKING:  # type checkers must go on to report names that don't exist

        def __getattr__(self, name: str) -> NoReturn:
            raise missing("an app", name, APP, dir(type(self)))

    def _preview(self, node: str, rows: int, sample: Sample) -> pl.DataFrame:
        """The first results of a step, from a run over a sample: see ``Stream.head``."""
        raise UsageError("these declarations can't be run", hint="declare streams on an hr.App")

    def _side_input(self, stream: object) -> StreamSpec:
        """The source behind a stream that may become a side input: an input that nothing else reads."""
        if not isinstance(stream, Stream):
            raise DeclarationError(
                f"a side input must be a stream, not {type(stream).__name__} {stream!s:.80}",
                hint='write side_inputs=[app.input("profiles", {...})]',
            )
        if stream.draft is not self._draft:
            raise DeclarationError(f"the side input {stream.node!r} belongs to another app, {stream.draft.app!r}")
        source = self._draft.source_of(stream.node)
        if source is None:
            raise DeclarationError(
                f"{stream.node!r} is computed, but a side input is read unchanged",
                hint="pass the input itself, or fill the table with send_to(table)",
            )
        if stream.node in self._draft.followed():
            raise DeclarationError(
                f"the input {source.id!r} (at {source.location}) is read by a flow",
                hint="a side input is for the table alone; fill the table with send_to(table) instead",
            )
        return source
