"""What a record of a broker is: the words for ``format=``, formats with settings, and where schemas are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal, get_args

from headrace.api.literals import one_of
from headrace.api.location import Declaring
from headrace.core.duration import Duration, to_ms
from headrace.core.errors import DeclarationError
from headrace.core.secret_places import SecretPlace
from headrace.serdes.formats import FormatSpec, open_format
from headrace.serdes.formats.debezium import About
from headrace.serdes.formats.protobuf_messages import files_of_class, files_of_set, is_message_class
from headrace.serdes.formats.registry import RegistrySettings

FormatName = Literal["json", "text", "bytes"]


def registry(
    url: str,
    *,
    user: str | None = None,
    password: SecretPlace | None = None,
    token: SecretPlace | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    timeout: Duration = "5s",
) -> RegistrySettings:
    """A schema registry with Confluent's interface.

    Parameters
    ----------
    url
        Its address. Some registries have the interface under a path, such as ``/apis/ccompat/v7``.
    user
        Who logs in with ``password``.
    password
        Where the password is: ``hr.secret_env(...)`` or ``hr.secret_file(...)``.
    token
        Where a bearer token is, for registries that want one instead.
    ca_file
        A file with the certificates to trust, in PEM. By default those of the machine.
    timeout
        How long one request may take.

    Returns
    -------
    RegistrySettings
        For ``registry=`` of ``avro``, ``json_schema`` and ``protobuf``.

    Examples
    --------
    >>> schemas = hr.io.registry("https://host:8081", user="app", password=hr.secret_env("REGISTRY_PASSWORD"))
    >>> hr.io.avro(registry=schemas).settings["registry"]["password"]
    {'env': 'REGISTRY_PASSWORD'}
    """
    with Declaring("registry", quoting=False):
        if not isinstance(url, str):
            raise DeclarationError(f"url={url!r} is not an address", hint='write "http://localhost:8081"')
        for name, value in {"password": password, "token": token}.items():
            if value is not None and not isinstance(value, SecretPlace):
                raise DeclarationError(
                    f"{name}= takes a reference to a secret, not the secret itself, which plans would show",
                    hint=f'write {name}=hr.secret_env("REGISTRY_{name.upper()}"), or hr.secret_file(path)',
                )
        timeout_ms = to_ms(timeout, "timeout", minimum=1)
        return RegistrySettings(url, user, password, token, None if ca_file is None else os.fspath(ca_file), timeout_ms)


def avro(
    schema: Mapping[str, Any] | str | None = None,
    *,
    registry: RegistrySettings | None = None,
    subject: str | None = None,
    register: bool = False,
) -> FormatSpec:
    """Records in Avro: each is one datum, without a header or with the id of its schema in a registry.

    An input needs no schema of its own if there is one here: its columns are the fields. Enumerations become texts,
    timestamps ``pl.Datetime`` in UTC, maps lists of ``key`` and ``value``. Unions can't be columns, except those with
    null.

    Parameters
    ----------
    schema
        The Avro schema of a record, as a dict or as the text of an ``.avsc`` file. With a registry an input can do
        without: each record is then read by its own schema, as the columns of the input.
    registry
        Where the schemas of records are: ``hr.io.registry(...)``. Without it all records are of ``schema``.
    subject
        For outputs with a registry: the subject that has the schema. ``hr.io.kafka`` uses ``<topic>-value``.
    register
        For outputs with a registry: register the schema if it isn't there yet. By default that is an error.

    Returns
    -------
    FormatSpec
        For ``format=`` of ``kafka`` and ``kinesis``.

    Examples
    --------
    >>> schema = {
    ...     "type": "record",
    ...     "name": "Order",
    ...     "fields": [{"name": "member", "type": "string"}, {"name": "euros", "type": ["null", "double"]}],
    ... }
    >>> app.input("orders", system=hr.io.kinesis("orders", format=hr.io.avro(schema))).schema
    Schema(member: String, euros: Float64)
    >>> registered = hr.io.avro(registry=hr.io.registry("http://localhost:8081"))
    >>> app.input("more", {"member": pl.String}, system=hr.io.kinesis("more", format=registered)).schema
    Schema(member: String)
    """
    with Declaring("avro"):
        if schema is None and registry is None:
            raise DeclarationError(
                "Avro needs a schema, or a registry that has it",
                hint='write hr.io.avro(schema), or hr.io.avro(registry=hr.io.registry("http://localhost:8081"))',
            )
        if schema is not None and not isinstance(schema, Mapping | str):
            raise DeclarationError(
                f"schema={schema!r:.80} is not an Avro schema",
                hint="give a dict, or the text of the file: Path('order.avsc').read_text()",
            )
        given = deepcopy(dict(schema)) if isinstance(schema, Mapping) else schema
        return _opened(FormatSpec("avro", given, _registered(registry, subject, register)))


def json_schema(
    schema: Mapping[str, Any] | str | None = None,
    *,
    registry: RegistrySettings | None = None,
    subject: str | None = None,
    register: bool = False,
) -> FormatSpec:
    """Records in JSON that has a JSON Schema, without a header or with the id of the schema in a registry.

    An input needs no schema of its own if there is one here: its columns are the properties of the object. Values are
    read as those of ``format="json"``; nothing else in the schema is validated.

    Parameters
    ----------
    schema
        The JSON Schema of an object, as a dict or as text. An input that names its columns itself needs none.
    registry
        For records with the header of a registry: ``hr.io.registry(...)``. Reading doesn't ask it.
    subject
        For outputs with a registry: the subject that has the schema. ``hr.io.kafka`` uses ``<topic>-value``.
    register
        For outputs with a registry: register the schema if it isn't there yet. By default that is an error.

    Returns
    -------
    FormatSpec
        For ``format=`` of ``kafka`` and ``kinesis``.

    Examples
    --------
    >>> schema = {"type": "object", "properties": {"member": {"type": "string"}, "euros": {"type": ["number", "null"]}}}
    >>> orders = hr.io.json_schema(schema, registry=hr.io.registry("http://localhost:8081"))
    >>> app.input("orders", system=hr.io.kinesis("orders", format=orders)).schema
    Schema(member: String, euros: Float64)
    """
    with Declaring("json_schema"):
        if schema is None and registry is None:
            raise DeclarationError(
                "JSON with neither a schema nor a registry needs no json_schema()",
                hint='write format="json", or give a schema or a registry',
            )
        if schema is not None and not isinstance(schema, Mapping | str):
            raise DeclarationError(
                f"schema={schema!r:.80} is not a JSON Schema",
                hint="give a dict, or the text of the file: Path('order.json').read_text()",
            )
        given = deepcopy(dict(schema)) if isinstance(schema, Mapping) else schema
        return _opened(FormatSpec("json_schema", given, _registered(registry, subject, register)))


def protobuf(
    message: type | str,
    *,
    descriptors: bytes | None = None,
    registry: RegistrySettings | None = None,
    subject: str | None = None,
    register: bool = False,
) -> FormatSpec:
    """Records in Protobuf: each is one message, without a header or with the id of its schema in a registry.

    An input needs no schema of its own: its columns are the fields. Enumerations become texts, ``Timestamp``
    ``pl.Datetime("us", "UTC")``, messages structs, maps lists of ``key`` and ``value``. A field is null where a message
    doesn't have it and can tell; otherwise it has its default. Needs ``pip install "headrace[protobuf]"``.

    Parameters
    ----------
    message
        The generated class of the message, or its full name.
    descriptors
        For a name: what ``protoc --include_imports --descriptor_set_out=FILE`` has written.
    registry
        For records with the header of a registry: ``hr.io.registry(...)``. Reading doesn't ask it.
    subject
        For outputs with a registry: the subject that has the schema. ``hr.io.kafka`` uses ``<topic>-value``.
    register
        For outputs with a registry: register the schema if it isn't there yet. By default that is an error.

    Returns
    -------
    FormatSpec
        For ``format=`` of ``kafka`` and ``kinesis``.

    Examples
    --------
    >>> from google.protobuf.duration_pb2 import Duration
    >>> app.input("waits", system=hr.io.kinesis("waits", format=hr.io.protobuf(Duration))).schema
    Schema(seconds: Int64, nanos: Int32)
    """
    with Declaring("protobuf"):
        if isinstance(message, str) and isinstance(descriptors, bytes):
            name, files = message, files_of_set(descriptors)
        elif descriptors is None and is_message_class(message):
            name, files = files_of_class(message)
        else:
            raise DeclarationError(
                f"{message!r:.80} is no protobuf message",
                hint='give a generated class, or a name and its descriptors: hr.io.protobuf("shop.Order", '
                "descriptors=Path('shop.desc').read_bytes())",
            )
        settings = {"message": name, "descriptors": files, **_registered(registry, subject, register)}
        return _opened(FormatSpec("protobuf", settings=settings))


def changelog(format: FormatName | FormatSpec = "json", *, deleted: str = "deleted") -> FormatSpec:
    """Records of another format, and records without a value, which delete what has their key: those of a table.

    A record without a value, in Kafka a tombstone, becomes a row whose column ``deleted`` is true and whose other
    columns are null, except those that the system adds, such as its key. In an output, a row whose ``deleted`` is true
    becomes such a record. Kinesis has none.

    Parameters
    ----------
    format
        What the other records are.
    deleted
        The Boolean column. The schema has it, if there is one.

    Returns
    -------
    FormatSpec
        For ``format=`` of ``kafka``.

    Examples
    --------
    >>> hr.io.changelog("json", deleted="gone").settings
    {'format': {'name': 'json'}, 'deleted': 'gone'}
    """
    with Declaring("changelog"):
        return _opened(FormatSpec("changelog", settings=_around(format, deleted)))


def debezium(
    format: FormatName | FormatSpec = "json", *, deleted: str = "deleted", about: Mapping[str, About] | None = None
) -> FormatSpec:
    """Changes of a database's table, as Debezium sends them: rows as they are after a change, and deleted ones.

    JSON may be with or without Kafka Connect's schema around it. The tombstones that Debezium sends after deletions are
    passed over. An update that changes the key is a deletion and a new row, as Debezium has it. A change that is none
    of one row (truncating a table) is handled by the input's ``on_error``.

    Parameters
    ----------
    format
        What a record is: ``"json"``, or ``hr.io.avro(registry=...)``.
    deleted
        The Boolean column that is true for deletions. It has to be in the input's schema, if there is one. Give it to
        the table, too: ``app.table(..., deleted="deleted")``.
    about
        Columns for what an envelope says of a change, by the name of the column: ``"op"``, ``"ts_ms"`` (when Debezium
        saw it) and ``"source_ts_ms"`` (when the database made it). The schema has them, too.

    Returns
    -------
    FormatSpec
        For ``format=`` of ``kafka`` and ``kinesis``.

    Examples
    --------
    >>> changes = hr.io.kinesis("shop.members", format=hr.io.debezium(), record_columns={"shard": "shard"})
    >>> member = {"id": pl.Int64, "country": pl.String, "deleted": pl.Boolean}
    >>> members = app.input("members", member, system=changes)
    >>> table = app.table("countries", key="id", deleted="deleted")
    """
    with Declaring("debezium"):
        settings = _around(format, deleted)
        if settings["format"]["name"] in ("text", "bytes"):
            raise DeclarationError(
                f"envelopes of Debezium aren't {settings['format']['name']}", hint='write hr.io.debezium("json")'
            )
        if about is not None:
            settings["about"] = _about(about, deleted)
        return _opened(FormatSpec("debezium", settings=settings))


def _about(about: object, deleted: str) -> dict[str, str]:
    if not isinstance(about, Mapping) or not all(isinstance(name, str) and name for name in about):
        raise DeclarationError(f"about={about!r} doesn't name columns", hint='write about={"at": "source_ts_ms"}')
    known = get_args(About)
    for name, what in about.items():
        if what not in known:
            raise DeclarationError(
                f"about: {name!r} asks for {what!r}, which envelopes don't have", hint=f"they have {', '.join(known)}"
            )
    if deleted in about:
        raise DeclarationError(f"about: {deleted!r} marks deletions", hint="take another name")
    return dict(about)


def _around(format: object, deleted: object) -> dict[str, Any]:
    """The settings of a format around another one."""
    if not isinstance(deleted, str) or not deleted:
        raise DeclarationError(f"deleted={deleted!r} is not the name of a column", hint='write deleted="deleted"')
    inner = format_of(format)
    if "format" in inner.settings:
        raise DeclarationError(f"{inner.name} already has a column for deletions", hint="wrap it around a plain format")
    return {"format": inner.options(), "deleted": deleted}


def _registered(registry: object, subject: object, register: object) -> dict[str, Any]:
    """The settings of a format with a registry; none without."""
    if registry is None:
        if subject is not None or register:
            raise DeclarationError(
                "subject= and register= concern a schema registry, but registry= is missing",
                hint='write registry=hr.io.registry("http://localhost:8081")',
            )
        return {}
    if not isinstance(registry, RegistrySettings):
        raise DeclarationError(
            f"registry={registry!r:.80} is not a schema registry",
            hint='write registry=hr.io.registry("http://localhost:8081")',
        )
    if subject is not None and (not isinstance(subject, str) or not subject):
        raise DeclarationError(f"subject={subject!r} is not a subject", hint='write subject="orders-value"')
    named = {} if subject is None else {"subject": subject}
    return {"registry": registry.options()} | named | ({"register": True} if register else {})


def _opened(spec: FormatSpec) -> FormatSpec:
    """Return it if such a format can be."""
    open_format(spec)
    return spec


def format_of(format: object) -> FormatSpec:
    """What ``format=`` means. Raises ``DeclarationError``."""
    if isinstance(format, FormatSpec):
        return format
    if not isinstance(format, str):
        raise DeclarationError(f"format={format!r} is not a format of records", hint='write format="json"')
    if format == "avro":
        raise DeclarationError("Avro needs a schema to read with", hint="write format=hr.io.avro(schema)")
    return FormatSpec(one_of("format", format, FormatName))
