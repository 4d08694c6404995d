"""The formats that need more than a word: Avro, JSON Schema, Protobuf and Debezium, and schema registries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, get_args

from headrace.api.checks import Declaring
from headrace.api.descriptors import FormatName, around, opened_format
from headrace.connectors.formats.debezium import About
from headrace.connectors.formats.protobuf import files_of_class, files_of_set, is_message_class
from headrace.connectors.formats.registry import RegistrySettings
from headrace.core.clock import Duration, to_ms
from headrace.core.errors import DeclarationError
from headrace.core.secrets import SecretPlace
from headrace.rows.formats import FormatSpec


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
        Its address. Some registries need a path, such as ``/apis/ccompat/v7``.
    user, password
        Who logs in, and the place of the password: ``hr.secret_env(...)`` or ``hr.secret_file(...)``.
    token
        The place of a bearer token, for registries that need one instead of a password.
    ca_file
        A PEM file with the certificates to trust. By default those of the machine.
    timeout
        How long one request may take.

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
    """Avro records: each is one datum, either bare or with the id of its schema in a registry.

    If a schema is given here, an input needs none of its own: the fields become its columns. Enumerations become text,
    timestamps ``pl.Datetime`` in UTC, and maps lists of ``key`` and ``value``. Only unions of null and one other type
    can be columns.

    Parameters
    ----------
    schema
        The Avro schema of a record, as a dict or as the text of an ``.avsc`` file. An input with a registry doesn't
        need it: each record is then decoded with its own schema, into the columns of the input.
    registry
        The registry with the records' schemas: ``hr.io.registry(...)``. Without it, all records have ``schema``.
    subject
        For outputs with a registry: the subject that has the schema. ``hr.io.kafka`` uses ``<topic>-value``.
    register
        For outputs with a registry: register the schema if it isn't there yet. By default that is an error.

    Examples
    --------
    >>> schema = {"type": "record", "name": "Order", "fields": [{"name": "euros", "type": ["null", "double"]}]}
    >>> app.input("orders", system=hr.io.kinesis("orders", format=hr.io.avro(schema))).schema
    Schema(euros: Float64)
    >>> registered = hr.io.avro(registry=hr.io.registry("http://localhost:8081"))
    >>> app.input("more", {"member": pl.String}, system=hr.io.kinesis("more", format=registered)).schema
    Schema(member: String)
    """
    with Declaring("avro"):
        if schema is None and registry is None:
            hint = 'write hr.io.avro(schema), or hr.io.avro(registry=hr.io.registry("http://localhost:8081"))'
            raise DeclarationError("Avro needs a schema, or a registry that has it", hint=hint)
        given = _given(schema, "an Avro schema", "order.avsc")
        return opened_format(FormatSpec("avro", given, _registered(registry, subject, register)))


def json_schema(
    schema: Mapping[str, Any] | str | None = None,
    *,
    registry: RegistrySettings | None = None,
    subject: str | None = None,
    register: bool = False,
) -> FormatSpec:
    """JSON records with a JSON Schema, either bare or with the id of the schema in a registry.

    If a schema is given here, an input needs none of its own: the object's properties become its columns. Values are
    decoded as with ``format="json"``; the schema's other rules aren't validated.

    Parameters
    ----------
    schema
        The JSON Schema of an object, as a dict or as text. An input that declares its columns doesn't need it.
    registry, subject, register
        For records with the header of a registry, as in ``hr.io.avro``. Reading doesn't ask the registry.

    Examples
    --------
    >>> schema = {"type": "object", "properties": {"member": {"type": "string"}, "euros": {"type": ["number", "null"]}}}
    >>> orders = hr.io.json_schema(schema, registry=hr.io.registry("http://localhost:8081"))
    >>> app.input("orders", system=hr.io.kinesis("orders", format=orders)).schema
    Schema(member: String, euros: Float64)
    """
    with Declaring("json_schema"):
        if schema is None and registry is None:
            hint = 'write format="json", or give a schema or a registry'
            raise DeclarationError("JSON with neither a schema nor a registry needs no json_schema()", hint=hint)
        given = _given(schema, "a JSON Schema", "order.json")
        return opened_format(FormatSpec("json_schema", given, _registered(registry, subject, register)))


def protobuf(
    message: type | str,
    *,
    descriptors: bytes | None = None,
    registry: RegistrySettings | None = None,
    subject: str | None = None,
    register: bool = False,
) -> FormatSpec:
    """Protobuf records: each is one message, either bare or with the id of its schema in a registry.

    An input needs no schema of its own: the message's fields become its columns. Enumerations become text,
    ``Timestamp`` becomes ``pl.Datetime("us", "UTC")``, messages become structs, and maps lists of ``key`` and
    ``value``. An absent field is null if Protobuf tracks its presence, and has its default otherwise. Needs ``pip
    install "headrace[protobuf]"``.

    Parameters
    ----------
    message
        The generated class of the message, or the message's full name.
    descriptors
        For a name: the output of ``protoc --include_imports --descriptor_set_out=FILE``.
    registry, subject, register
        For records with the header of a registry, as in ``hr.io.avro``. Reading doesn't ask the registry.

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
                f"{message!r:.80} isn't a Protobuf message",
                hint='give a generated class, or a name and its descriptors: hr.io.protobuf("shop.Order", '
                "descriptors=Path('shop.desc').read_bytes())",
            )
        settings = {"message": name, "descriptors": files, **_registered(registry, subject, register)}
        return opened_format(FormatSpec("protobuf", settings=settings))


def debezium(
    format: FormatName | FormatSpec = "json", *, deleted: str = "deleted", about: Mapping[str, About] | None = None
) -> FormatSpec:
    """Changes of a database table from Debezium: rows as they are after a change, and deleted rows.

    JSON may be with or without Kafka Connect's schema around it. The tombstones that Debezium sends after deletions are
    ignored. Debezium turns an update that changes the key into a deletion and a new row. A change that isn't about one
    row, such as truncating a table, goes to the input's ``on_error``.

    Parameters
    ----------
    format
        The format of a record: ``"json"``, or ``hr.io.avro(registry=...)``.
    deleted
        The Boolean column that is true for deletions. If the input declares a schema, it must have this column. Also
        pass the name to the table: ``app.table(..., deleted="deleted")``.
    about
        Columns for details of a change, by the name of the column: ``"op"``, ``"ts_ms"`` (when Debezium saw the change)
        and ``"source_ts_ms"`` (when the database made it). If the input declares a schema, it must have them.

    Examples
    --------
    >>> changes = hr.io.kinesis("shop.members", format=hr.io.debezium(), record_columns={"shard": "shard"})
    >>> member = {"id": pl.Int64, "country": pl.String, "deleted": pl.Boolean}
    >>> members = app.input("members", member, system=changes)
    >>> table = app.table("countries", key="id", deleted="deleted")
    """
    with Declaring("debezium"):
        settings = around(format, deleted)
        if settings["format"]["name"] in ("text", "bytes"):
            hint = 'write hr.io.debezium("json")'
            raise DeclarationError(f"envelopes of Debezium aren't {settings['format']['name']}", hint=hint)
        if about is not None:
            settings["about"] = _about(about, deleted)
        return opened_format(FormatSpec("debezium", settings=settings))


def _about(about: object, deleted: str) -> dict[str, str]:
    if not isinstance(about, Mapping) or not all(isinstance(name, str) and name for name in about):
        raise DeclarationError(f"about={about!r} doesn't name columns", hint='write about={"at": "source_ts_ms"}')
    known = get_args(About)
    for name, what in about.items():
        if what not in known:
            hint = f"they have {', '.join(known)}"
            raise DeclarationError(f"about: {name!r} asks for {what!r}, which envelopes don't have", hint=hint)
    if deleted in about:
        raise DeclarationError(f"about: {deleted!r} marks deletions", hint="take another name")
    return dict(about)


def _registered(registry: object, subject: object, register: object) -> dict[str, Any]:
    if registry is None:
        if subject is not None or register:
            said = "subject= and register= concern a schema registry, but registry= is missing"
            raise DeclarationError(said, hint='write registry=hr.io.registry("http://localhost:8081")')
        return {}
    if not isinstance(registry, RegistrySettings):
        hint = 'write registry=hr.io.registry("http://localhost:8081")'
        raise DeclarationError(f"registry={registry!r:.80} is not a schema registry", hint=hint)
    if subject is not None and (not isinstance(subject, str) or not subject):
        raise DeclarationError(f"subject={subject!r} is not a subject", hint='write subject="orders-value"')
    named = {} if subject is None else {"subject": subject}
    return {"registry": registry.options()} | named | ({"register": True} if register else {})


def _given(schema: object, what: str, example: str) -> dict[str, Any] | str | None:
    if schema is not None and not isinstance(schema, Mapping | str):
        hint = f"give a dict, or the text of the file: Path('{example}').read_text()"
        raise DeclarationError(f"schema={schema!r:.80} is not {what}", hint=hint)
    return deepcopy(dict(schema)) if isinstance(schema, Mapping) else schema
