"""Descriptors of systems: ``files(...)``, ``log(...)``, ``memory(...)``, ``sql(...)``; and what descriptors share.

A descriptor is a small frozen record; ``input`` and ``output`` turn it into a ``SystemSpec`` for their stream.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from inspect import signature
from pathlib import Path
from typing import Any, Literal, Protocol, Self, cast, runtime_checkable

from typing_extensions import override

from headrace.api.checks import Declaring, SchemaLike, key_names, one_of
from headrace.core.clock import Duration, moment_ms, parse_moment, to_ms
from headrace.core.errors import DeclarationError, UsageError
from headrace.core.ids import MAX_PARTITIONS, check_id
from headrace.core.plug_ins import loaded, plug_in
from headrace.core.secrets import SecretPlace, SecretUrl, check_no_credentials
from headrace.rows.casting import CastSafety, cast_safety
from headrace.rows.dtypes import Columns, columns_to_json, written
from headrace.rows.formats import FormatSpec, open_format
from headrace.rows.schema import Schema
from headrace.rows.text import CsvFormat
from headrace.stores.snapshots import ObjectPlace, object_place
from headrace.systems.registry import SystemSpec, keeps_rows


def secret_env(name: str) -> SecretPlace:
    """Refer to a secret in the environment variable ``name``, for options such as ``sasl.password`` of ``hr.io.kafka``.

    Drivers, containers and commands read the variable when they need the secret. Plans, logs and an app's stored data
    only have its name.

    Examples
    --------
    >>> hr.secret_env("KAFKA_PASSWORD")
    SecretPlace(kind='env', name='KAFKA_PASSWORD')
    """
    with Declaring("secret_env"):
        if not isinstance(name, str) or not name or "=" in name:
            raise DeclarationError(
                "this is not the name of an environment variable", hint='write hr.secret_env("KAFKA_PASSWORD")'
            )
        return SecretPlace("env", name)


def secret_file(path: str | os.PathLike[str]) -> SecretPlace:
    """Refer to a secret in the file ``path``, such as one that Kubernetes mounts; otherwise like ``secret_env``.

    The file contains only the secret, with or without a final line break.

    Examples
    --------
    >>> hr.secret_file("/run/secrets/kafka-password")
    SecretPlace(kind='file', name='/run/secrets/kafka-password')
    """
    with Declaring("secret_file"):
        place = os.fspath(path)
        if not isinstance(place, str) or not place:
            raise DeclarationError("this is not the path of a file", hint='write hr.secret_file("/run/secrets/kafka")')
        return SecretPlace("file", place)


Start = Literal["oldest", "upcoming"]
FormatName = Literal["json", "text", "bytes", "changelog", "debezium"]
RecordFormat = FormatName | FormatSpec
NewColumns = Literal["refuse", "add"]


class SystemDescriptor(Protocol):
    """Names the system of a stream."""

    def system(self, stream_id: str) -> SystemSpec:
        """The system of the stream with this id."""


@dataclass(frozen=True, slots=True)
class InputUse:
    """What else an app declares about an input, and its home, where a system may keep files."""

    app: str
    home: str
    event_time: Columns
    start: Start
    broadcast: bool


@runtime_checkable
class InputDescriptor(SystemDescriptor, Protocol):
    """A descriptor with details for inputs."""

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        """The input's columns; ``schema`` is declared. Raises ``DeclarationError`` if it doesn't fit."""

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        """The input's system. Raises ``DeclarationError`` for an unsupported use."""


class OutputOnly(ABC):
    """A descriptor of outputs only: reading couldn't continue from a position, as the rows of a table have no order."""

    __slots__ = ()

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        """Refuse."""
        del schema
        raise self.no_input()

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        """Refuse."""
        del stream_id, use
        raise self.no_input()

    @abstractmethod
    def no_input(self) -> DeclarationError:
        """The error for an app that declares it as an input."""


@runtime_checkable
class OutputDescriptor(SystemDescriptor, Protocol):
    """A descriptor with details for outputs."""

    def output_system(self, stream_id: str) -> SystemSpec:
        """The output's system. Raises ``DeclarationError`` for arguments that only inputs have."""


@runtime_checkable
class RecordDescriptor(SystemDescriptor, Protocol):
    """A descriptor of streams whose records have a format."""

    def in_format(self, format: FormatSpec) -> Self:
        """The same with another format."""


@runtime_checkable
class SharedDescriptor(SystemDescriptor, Protocol):
    """A descriptor of a place for many streams, which need not be named in it."""

    def for_app(self) -> Self:
        """The same for all inputs and outputs of an app, where each has only the arguments that concern it."""


SystemLike = SystemDescriptor | SystemSpec | str
"""A system as users name it: the result of a function of ``hr.io``, or a URL such as ``"kafka://localhost:9092"``."""


def named_system(system: SystemLike) -> SystemDescriptor | SystemSpec:
    """The system that ``system=`` means. A URL is a function of ``hr.io`` and its one required argument."""
    if isinstance(system, SystemSpec) or callable(getattr(system, "system", None)):
        return cast("SystemDescriptor | SystemSpec", system)
    hint = 'write hr.io.kafka(brokers="host:9092") or, shorter, "kafka://host:9092"; see hr.io for others'
    if not isinstance(system, str):
        raise DeclarationError(f"system= takes a system, not {type(system).__name__}", hint=hint)
    kind, slashes, place = system.partition("://")
    name = kind.replace("-", "_")
    own: dict[str, Callable[..., object]] = {"files": files, "log": log}
    maker = own.get(name)
    if maker is None and slashes and (point := plug_in("headrace.io", name)) is not None:
        maker = cast("Callable[..., object]", loaded(point))
    if maker is None or not place:
        raise DeclarationError(f"system={kind + slashes!r} isn't the URL of a system", hint=hint)
    if "@" in place:
        hint = f"write hr.io.{name}(...) with hr.secret_env(...)"
        raise DeclarationError(f"the URL {kind}://... has an '@' in it, as if it contained credentials", hint=hint)
    required = [one.name for one in signature(maker).parameters.values() if one.default is one.empty]
    made = maker(**{required[0]: place}) if len(required) == 1 else None
    if not isinstance(made, SystemSpec) and not callable(getattr(made, "system", None)):
        raise DeclarationError(f"hr.io.{name} has no URLs", hint=f"write system=hr.io.{name}(...)")
    return cast("SystemDescriptor | SystemSpec", made)


def in_format(system: SystemDescriptor | SystemSpec, format: object) -> SystemDescriptor | SystemSpec:
    """The system with the format that ``format=`` of an input or output means, if there is one."""
    if format is None:
        return system
    if not isinstance(system, RecordDescriptor):
        raise DeclarationError(
            "format= is for records of a broker, such as those of hr.io.kafka", hint="leave it out, or name the system"
        )
    return system.in_format(format_of(format))


def app_systems(
    system: SystemLike | None, internal: SystemLike | None, app: str
) -> tuple[SystemDescriptor | SystemSpec | None, SystemSpec | None]:
    """The system of inputs and outputs that name none, and that of the app's own streams; None: the other's."""
    given = None if system is None else named_system(system)
    own = None if internal is None else internal_system(internal, app)
    if given is None:
        return None, own
    if isinstance(given, SharedDescriptor):
        return given.for_app(), own
    spec = given if isinstance(given, SystemSpec) else given.system(app)
    if not keeps_rows(spec):
        return spec, own or spec
    if spec is not given:
        raise place_for_one(type(given).__name__)
    return spec, own


def place_for_one(what: str) -> DeclarationError:
    """The error for the system of an app that can hold one stream only."""
    return DeclarationError(
        f"the system of an app is for many streams, and this {what} is a place for one",
        hint='name no stream in it, as in hr.io.kafka(brokers="host:9092"), or give it to one input or output',
    )


def internal_system(system: SystemLike, app: str) -> SystemSpec:
    """The record system for an app's own streams. Raises ``DeclarationError`` for any other system."""
    named = named_system(system)
    spec = named if isinstance(named, SystemSpec) else named.system(app)
    if keeps_rows(spec):
        raise DeclarationError(
            f"an app can't keep its own streams in {spec.name!r}, which keeps rows and not frames", hint=_INTERNAL
        )
    return spec


_INTERNAL = 'write hr.io.kafka_log("host:9092"), or leave it out: then it is the embedded log under home'


# -- descriptors -------------------------------------------------------------------------------------
NewFiles = Literal["refuse", "next_run", "follow"]
ChangedFiles = Literal["refuse", "read_again"]
FORMATS = ("parquet", "jsonl", "csv")
_LOOK_MS = 1000
DATABASES = ("sqlite", "postgresql", "postgres")


@dataclass(frozen=True, slots=True)
class Files:
    """Files of one stream; see ``files``."""

    path: str
    format: str | None = None
    partitions: int | None = None
    new_files: NewFiles = "refuse"
    changed_files: ChangedFiles = "refuse"
    look_every: int = _LOOK_MS
    csv: CsvFormat = field(default_factory=CsvFormat)

    def system(self, stream_id: str) -> SystemSpec:
        """Each stream has its own."""
        options = {
            "path": self.path,
            "format": self.format,
            "partitions": self.partitions,
            "new_files": None if self.new_files == "refuse" else self.new_files,
            "changed_files": None if self.changed_files == "refuse" else self.changed_files,
            "look_ms": None if self.look_every == _LOOK_MS else self.look_every,
            "csv": self.csv.options() or None,
        }
        given = {name: value for name, value in options.items() if value is not None}
        return SystemSpec(f"files-{stream_id}".replace(".", "-"), "files", given)

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        """The columns that the app declares."""
        return Schema.of(schema)

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        """The system of an input, which keeps a list of its files in the app's home."""
        spec = self.system(stream_id)
        list_file = f"{use.home}/files/{use.app}/{stream_id}.jsonl"
        time = {"event_time": columns_to_json(use.event_time)} if use.event_time else {}
        return SystemSpec(spec.name, spec.kind, {**spec.options, "list_file": list_file, **time})

    def output_system(self, stream_id: str) -> SystemSpec:
        """The system of an output. Raises ``DeclarationError`` for arguments that only inputs have."""
        spec = self.system(stream_id)
        if wrong := sorted(spec.options.keys() - {"path", "format", "partitions"}):
            raise DeclarationError(f"{', '.join(wrong)} of files {self.path}: only an input can have this")
        if "://" in self.path:
            raise DeclarationError(
                f"files can't be written to {self.path}", hint="write to a folder that all containers reach"
            )
        return spec


@dataclass(frozen=True, slots=True)
class Sql(OutputOnly):
    """A table of a SQL database; see ``sql``."""

    url: SecretUrl
    table: str
    key: tuple[str, ...]
    create_table: bool
    new_columns: NewColumns

    def system(self, stream_id: str) -> SystemSpec:
        """Each stream has its own."""
        options = {
            "url": self.url,
            "table": self.table,
            "key": self.key,
            "create": self.create_table,
            "new_columns": self.new_columns,
        }
        return SystemSpec(f"sql-{stream_id}".replace(".", "-"), "sql", options)

    @override
    def no_input(self) -> DeclarationError:
        return DeclarationError(
            f"the table {self.table!r} of {self.url} can't be an input",
            hint="a SQL table is an output only: it has no order in which reading could resume; export it to files",
        )


def files(
    path: str | os.PathLike[str],
    format: str | CsvFormat | None = None,
    partitions: int | None = None,
    *,
    new_files: NewFiles = "refuse",
    changed_files: ChangedFiles = "refuse",
    look_every: Duration = "1s",
) -> Files:
    """Parquet, JSON lines or CSV files: an input, or an output.

    ``path`` is a file, a folder or a pattern. An input may be in an object store, such as
    ``s3://bucket/views/*.parquet``, with credentials from the environment. ``format`` is ``"parquet"``, ``"jsonl"``,
    ``"csv"``, or ``hr.io.csv(...)`` for other kinds of CSV; by default it follows from the files' endings. Text files
    whose names end with ``.gz`` or ``.zst`` are compressed. An input keeps the number of ``partitions`` of its first
    run: by default as many as there are files, at most 64; or one if files may be added later.

    ``new_files`` are added after the first run has begun. ``"refuse"``: the input ends with the files of the first run,
    and a later run that finds others fails. ``"next_run"``: a run ends when it has read the files that existed when it
    began, and the next run continues with new ones. ``"follow"``: the app looks for them every ``look_every``, and
    reads them as they appear, until it is stopped. ``changed_files`` were replaced: ``"refuse"`` fails,
    ``"read_again"`` reads them from their start.

    Examples
    --------
    >>> hr.io.files("data/views-*.parquet").path
    'data/views-*.parquet'
    >>> hr.io.files("inbox/*.csv.gz", format=hr.io.csv(separator=";"), new_files="next_run").format
    'csv'
    """
    with Declaring("files"):
        csv = format if isinstance(format, CsvFormat) else CsvFormat()
        name = "csv" if isinstance(format, CsvFormat) else format
        if name is not None and name not in FORMATS:
            raise DeclarationError(f"unknown format {format!r}", hint=f"write one of {', '.join(FORMATS)}")
        check_partitions(partitions)
        one_of("new_files", new_files, NewFiles)
        one_of("changed_files", changed_files, ChangedFiles)
        if changed_files == "read_again" and new_files == "refuse":
            raise DeclarationError(
                'changed_files="read_again" needs an input that accepts new files',
                hint='add new_files="next_run" or "follow"',
            )
        place = os.fspath(path)
        check_no_credentials(place)
        return Files(
            place, name, partitions, new_files, changed_files, to_ms(look_every, "look_every", minimum=10), csv
        )


def csv(
    *,
    separator: str = ",",
    header: bool | Sequence[str] = True,
    quote: str | None = '"',
    null_values: str | Sequence[str] = "",
    encoding: str = "utf-8",
    skip_lines: int = 0,
) -> CsvFormat:
    """Describe the CSV files of an input, for ``format=`` of ``files``.

    ``separator`` is the character between two fields, ``quote`` that around a text that contains separators or line
    breaks; None if there is none. ``header`` says whether the first line has the names of the columns. If not, the
    fields are the input's columns in their order, or the columns that it lists. ``null_values`` are the unquoted texts
    that mean null. ``encoding`` is such as ``"latin-1"``, and ``skip_lines`` counts the lines before the header, or the
    first row.

    Examples
    --------
    >>> german = hr.io.csv(separator=";", encoding="latin-1", null_values=["", "NA"])
    >>> hr.io.files("sales/*.csv", format=german).csv.separator
    ';'
    """
    with Declaring("csv"):
        return CsvFormat(
            separator=separator,
            header=header if isinstance(header, bool | str) else tuple(header),  # type: ignore[arg-type]
            quote=quote,
            null_values=null_values if isinstance(null_values, str) else tuple(null_values),  # type: ignore[arg-type]
            encoding=encoding,
            skip_lines=skip_lines,
        )


def log(root: str | os.PathLike[str], name: str | None = None) -> SystemSpec:
    """The embedded log in another folder, ``root``, for streams that other apps write or read.

    ``name`` is part of the names of its streams. By default it is ``log-`` and the folder's name.

    Examples
    --------
    >>> hr.io.log("/data/shared").name
    'log-shared'
    """
    with Declaring("log"):
        root = os.fspath(root)
        return SystemSpec(_system_name(name or f"log-{Path(root).name}".replace(".", "-")), "log", {"root": root})


def memory(name: str = "memory") -> SystemSpec:
    """Streams in the memory of this process, for tests, which end with it. Several of them need a ``name`` each.

    Examples
    --------
    >>> hr.io.memory().kind
    'memory'
    """
    with Declaring("memory"):
        return SystemSpec(_system_name(name), "memory", {"name": name})


def sql(
    url: str,
    table: str,
    *,
    key: str | Sequence[str] | None = None,
    create_table: bool = True,
    new_columns: NewColumns = "refuse",
) -> Sql:
    """A table of a SQLite or PostgreSQL database: an output, exactly once.

    The results of each checkpoint become one transaction, which also stores the writer's position in the table
    ``headrace_positions`` of the same database. ``url`` is ``sqlite:///file.db`` (four slashes for an absolute path) or
    ``postgresql://user:password@host/database``, which needs ``pip install "headrace[postgres]"``. The password is
    never shown. ``table`` is the table's name, or ``schema.name``.

    A row replaces the row with the same ``key``, which is one column or several; by default rows are only added. A null
    in the key stops the app, because no null equals another in a database; filter such rows out first. Without
    ``create_table`` the table must exist. If the output has columns that it lacks, ``new_columns`` ``"refuse"`` stops
    the app before it runs, ``"add"`` adds them with null in earlier rows. Columns are never changed or removed.

    Examples
    --------
    >>> hr.io.sql("sqlite:///results.db", "views", key="member").key
    ('member',)
    """
    with Declaring("sql"):
        secret = SecretUrl(url)
        if secret.scheme not in DATABASES:
            raise DeclarationError(
                f"{secret} doesn't name a known kind of database",
                hint="write sqlite:///path/to/file.db or postgresql://user@host/database",
            )
        if not table or not all(table.split(".")):
            raise DeclarationError(f"{table!r} is not the name of a table", hint='write "views" or "reports.views"')
        one_of("new_columns", new_columns, NewColumns)
        return Sql(secret, table, key_names(key), bool(create_table), new_columns)


def check_partitions(partitions: int | None, name: str = "partitions") -> int | None:
    """Return ``partitions`` if it is None or a number of partitions that a stream can have; raise otherwise."""
    if partitions is not None and (type(partitions) is not int or not 1 <= partitions <= MAX_PARTITIONS):
        raise DeclarationError(
            f"{name}={partitions!r} is not a number of partitions",
            hint=f"write a whole number from 1 to {MAX_PARTITIONS}, or leave it out for the planner to decide",
        )
    return partitions


def _system_name(name: str) -> str:
    check_id("system name", name)
    if "." in name:
        raise DeclarationError(
            f"system name {name!r} has a dot in it", hint="stream names read system.stream; use '-' or '_'"
        )
    return name


# -- record schema -----------------------------------------------------------------------------------
_WORDS = {
    "latest": "upcoming",
    "LATEST": "upcoming",
    "end": "upcoming",
    "TRIM_HORIZON": "oldest",
    "earliest": "oldest",
    "beginning": "oldest",
}


def start_of(start: object) -> str | int:
    """What ``start=`` means: an edge, or milliseconds since the epoch. Raises ``DeclarationError``."""
    if start in ("oldest", "upcoming"):
        return str(start)
    if (time_ms := time_of(start)) is not None:
        return time_ms
    meant = _WORDS.get(start, "") if isinstance(start, str) else ""
    raise DeclarationError(
        f"start={start!r} is not a valid start",
        hint=f'did you mean "{meant}"?' if meant else 'write "oldest", "upcoming", or a time: "2026-01-31T12:00:00Z"',
    )


def time_of(time: object) -> int | None:
    """A time in milliseconds since the epoch; None if the value isn't a time."""
    if isinstance(time, datetime):
        return moment_ms(time)
    if isinstance(time, str) and time not in _WORDS:
        try:
            return parse_moment(time)[0]
        except UsageError:
            return None
    return None


def record_columns_of(columns: object, service: str, known: Sequence[str], example: str) -> dict[str, str]:
    """The columns of ``record_columns=``. Raises ``DeclarationError`` for metadata that records don't have."""
    if columns is None:
        return {}
    example = f"write record_columns={example}"
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) and name for name in columns):
        raise DeclarationError(f"record_columns={columns!r} doesn't name columns", hint=example)
    for name, what in columns.items():
        if what not in known:
            swapped = name in known
            raise DeclarationError(
                f"record_columns: {name!r} asks for {what!r}, which {service} doesn't have for a record",
                hint=f"the column comes first: {example}" if swapped else f"it has {', '.join(known)}",
            )
    return dict(columns)


def input_schema(
    stream: str, service: str, format: FormatSpec, about: Columns, what: Mapping[str, str], schema: SchemaLike | None
) -> Schema:
    """The columns of an input: those of the format, otherwise of ``schema``, and those ``about`` records.

    ``what`` names the metadata in each of the latter, for messages.
    """
    declared = _declared(stream, format, about, schema)
    for name in about.keys() & declared.columns.keys():
        found, wanted = about[name], declared.columns[name]
        if cast_safety(found, wanted) not in (CastSafety.SAME, CastSafety.LOSSLESS):
            raise DeclarationError(
                f"column {name!r} is the {what[name]} of a record, which is of type {written(found)}, "
                f"not {written(wanted)}",
                hint="declare it so, or leave it out of the schema",
            )
    contents = {name: dtype for name, dtype in declared.columns.items() if name not in about}
    if not contents:
        raise DeclarationError(
            f"the schema of {stream} has no column from the record itself, only what {service} adds to it",
            hint="add at least one column",
        )
    open_format(format).decoder(contents)
    missing = {name: dtype for name, dtype in about.items() if name not in declared.columns}
    if missing and declared.record is not None:
        names = ", ".join(missing)
        raise DeclarationError(
            f"record_columns: the dataclass {declared.record.__name__} has no field {names}",
            hint="add it to the dataclass, or give the schema as a dict",
        )
    return Schema.of({**declared.columns, **missing}) if missing else declared


def _declared(stream: str, format: FormatSpec, about: Columns, schema: SchemaLike | None) -> Schema:
    if schema is not None:
        return Schema.of(schema)
    own = open_format(format).columns()
    if own is None:
        raise DeclarationError(
            f"an input of JSON from {stream} needs a schema",
            hint='write app.input("orders", {"member": pl.String, "ts": pl.Datetime("ms")}, ...), or '
            'format="text" for whole records',
        )
    if both := sorted(about.keys() & own.keys()):
        raise DeclarationError(
            f"record_columns: a record of {stream} has a column {both[0]!r} already", hint="give it another name"
        )
    return Schema.of({**own, **about})


# -- record formats ----------------------------------------------------------------------------------


def changelog(format: FormatName | FormatSpec = "json", *, deleted: str = "deleted") -> FormatSpec:
    """Records of a table: rows in another ``format``, and records without a value, which delete the row of their key.

    A record without a value, in Kafka a tombstone, becomes a row whose Boolean column ``deleted`` is true and whose
    other columns are null, except those that the system adds, such as its key. In an output, a row whose ``deleted`` is
    true becomes such a record. If the input declares a schema, it must have this column. Kinesis has no records without
    a value.

    Examples
    --------
    >>> hr.io.changelog("json", deleted="gone").settings
    {'format': {'name': 'json'}, 'deleted': 'gone'}
    """
    with Declaring("changelog"):
        return opened_format(FormatSpec("changelog", settings=around(format, deleted)))


def around(format: object, deleted: object) -> dict[str, Any]:
    """The settings of a format around another one."""
    if not isinstance(deleted, str) or not deleted:
        raise DeclarationError(f"deleted={deleted!r} is not the name of a column", hint='write deleted="deleted"')
    inner = format_of(format)
    if "format" in inner.settings:
        raise DeclarationError(f"{inner.name} already has a column for deletions", hint="wrap it around a plain format")
    return {"format": inner.options(), "deleted": deleted}


def opened_format(spec: FormatSpec) -> FormatSpec:
    """Return the format if it is valid."""
    open_format(spec)
    return spec


def format_of(format: object) -> FormatSpec:
    """The format that ``format=`` means. Raises ``DeclarationError``."""
    if isinstance(format, FormatSpec):
        return format
    if not isinstance(format, str):
        raise DeclarationError(f"format={format!r} is not a format of records", hint='write format="json"')
    if format == "avro":
        raise DeclarationError("Avro needs a schema to read with", hint="write format=hr.io.avro(schema)")
    name = one_of("format", format, FormatName)
    return FormatSpec(name, settings=around("json", "deleted") if name in ("changelog", "debezium") else {})


def object_store(
    url: str, *, endpoint: str | None = None, region: str | None = None, bandwidth: str | None = None
) -> ObjectPlace:
    """Name a place in an object store for ``snapshots=`` of ``hr.App``. Without options, just pass the URL there.

    ``url`` is ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, or ``file:///shared/folder``.
    ``endpoint`` is the address of a store that isn't Amazon's but has the same API as S3, ``region`` that of the
    bucket; by default ``$AWS_ENDPOINT_URL`` and ``$AWS_REGION``. ``bandwidth`` is the highest rate at which a container
    sends.

    Drivers, containers and commands read credentials from their environment (``AWS_ACCESS_KEY_ID`` and so on), or use
    the role of the machine.

    Examples
    --------
    >>> store = hr.io.object_store("s3://bucket/page-views", region="eu-central-1", bandwidth="50MB/s")
    >>> print(hr.App("page-views", snapshots=store).settings.snapshots)
    s3://bucket/page-views
    """
    with Declaring("object_store", quoting=False):
        return object_place(url, endpoint, region, bandwidth)
