"""From the name of a format to the format."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.errors import DeclarationError
from headrace.serdes.formats.avro import AvroFormat
from headrace.serdes.formats.changelog import ChangelogFormat
from headrace.serdes.formats.contract import Format, FormatSpec
from headrace.serdes.formats.debezium import DebeziumFormat
from headrace.serdes.formats.json import JsonFormat
from headrace.serdes.formats.json_schema import JsonSchemaFormat, json_schema_to_register
from headrace.serdes.formats.protobuf import ProtobufFormat
from headrace.serdes.formats.protobuf_messages import MessageType
from headrace.serdes.formats.raw import RawFormat
from headrace.serdes.formats.registered_avro import RegisteredAvroFormat, avro_to_register
from headrace.serdes.formats.registry import Registered, RegistryClient, RegistrySettings, SchemaSource
from headrace.serdes.formats.registry.writing import SubjectWriter
from headrace.serdes.formats.text import TextFormat

_PLAIN: dict[str, type[Format]] = {"json": JsonFormat, "text": TextFormat, "bytes": RawFormat}
_JSON = ("json", "json_schema")


def open_format(spec: FormatSpec) -> Format:
    """Return the format that ``spec`` names; raises ``DeclarationError`` for an unknown one. Fetches nothing yet."""
    settings = spec.settings
    match spec.name:
        case name if name in _PLAIN:
            return _PLAIN[name]()
        case "avro" if "registry" not in settings:
            return AvroFormat(spec.schema)
        case "avro":
            writer = None if spec.schema is None else _writer(spec, avro_to_register(spec.schema))
            return RegisteredAvroFormat(spec.schema, SchemaSource(_client(spec)), writer)
        case "json_schema" if "registry" not in settings:
            return JsonSchemaFormat(spec.schema)
        case "json_schema":
            writer = None if spec.schema is None else _writer(spec, json_schema_to_register(spec.schema))
            return JsonSchemaFormat(spec.schema, framed=True, writer=writer)
        case "protobuf":
            message = MessageType(settings["message"], settings["descriptors"])
            if "registry" not in settings:
                return ProtobufFormat(message)
            schema, imports = message.to_register()
            return ProtobufFormat(message, framed=True, writer=_writer(spec, schema, imports))
        case "changelog":
            return ChangelogFormat(_inner(spec), settings["deleted"])
        case "debezium":
            wrapped = settings["format"]["name"] in _JSON
            return DebeziumFormat(_inner(spec), settings["deleted"], settings.get("about", {}), wrapped=wrapped)
    known = ", ".join((*_PLAIN, "json_schema", "avro", "protobuf", "changelog", "debezium"))
    raise DeclarationError(f"unknown format {spec.name!r} of records", hint=f"known formats: {known}")


def _inner(spec: FormatSpec) -> Format:
    return open_format(FormatSpec(**spec.settings["format"]))


def _client(spec: FormatSpec) -> RegistryClient:
    return RegistryClient(RegistrySettings.of(spec.settings["registry"]))


def _writer(spec: FormatSpec, schema: Registered, needed: Mapping[str, Registered] | None = None) -> SubjectWriter:
    settings = spec.settings
    return SubjectWriter(
        _client(spec),
        schema,
        settings.get("subject"),
        register=settings.get("register", False),
        needed=needed or {},
    )
