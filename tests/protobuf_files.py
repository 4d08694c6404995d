"""Protobuf files and messages for tests, made without protoc."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_F = descriptor_pb2.FieldDescriptorProto
TYPES = {name[5:].lower(): value for name, value in _F.Type.items()}
GOOGLES = ("timestamp", "duration", "wrappers", "struct")


def file(name: str, *, package: str = "shop", syntax: str = "proto3", imports: tuple[str, ...] = ()) -> Any:
    made = descriptor_pb2.FileDescriptorProto(name=name, package=package, dependency=imports)
    if syntax == "proto3":
        made.syntax = syntax
    return made


def message(parent: Any, name: str, **fields: str) -> Any:
    """Add a message: ``n="int64"``, ``n="optional int64"``, ``n="repeated int64"``, ``at=".shop.Place"``."""
    made = (parent.message_type if hasattr(parent, "message_type") else parent.nested_type).add(name=name)
    for number, (field_name, text) in enumerate(fields.items(), 1):
        *label, type_ = text.split()
        field = made.field.add(name=field_name, number=number, label=_F.LABEL_OPTIONAL)
        if label == ["repeated"]:
            field.label = _F.LABEL_REPEATED
        elif label == ["optional"]:
            field.proto3_optional = True
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{field_name}")
        if type_ in TYPES:
            field.type = TYPES[type_]
        else:
            field.type = _F.TYPE_ENUM if type_.endswith("Size") else _F.TYPE_MESSAGE
            field.type_name = type_
    return made


def classes(*files: Any) -> dict[str, Any]:
    """The classes of the messages of some files, by their full names; Google's own may be imported."""
    from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

    pool = descriptor_pool.DescriptorPool()
    for known in (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for one in files:
        pool.AddSerializedFile(one.SerializeToString())
    found = {}
    for one in files:
        for name, descriptor in pool.FindFileByName(one.name).message_types_by_name.items():
            found[f"{one.package}.{name}"] = message_factory.GetMessageClass(descriptor)
    return found
