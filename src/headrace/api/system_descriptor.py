"""The protocols of ``system=``: a descriptor names a stream's system, and may add details for inputs or outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from headrace.api.rows import SchemaLike
from headrace.core.errors import DeclarationError
from headrace.serdes.dtypes import Columns
from headrace.serdes.schema import Schema
from headrace.systems.registry import SystemSpec, keeps_rows

Start = Literal["oldest", "upcoming"]
NewColumns = Literal["refuse", "add"]


class SystemDescriptor(Protocol):
    """Names the system of a stream."""

    def system(self, stream_id: str) -> SystemSpec:
        """Return the system of the stream with this id."""
        ...


@dataclass(frozen=True, slots=True)
class InputUse:
    """What else an app declares about an input, and its home, where a system may keep files.

    ``event_time`` is the column with the event time, if there is one.
    """

    app: str
    home: str
    event_time: Columns
    start: Start
    broadcast: bool


@runtime_checkable
class InputDescriptor(SystemDescriptor, Protocol):
    """A descriptor with details for inputs."""

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        """Return the input's columns; ``schema`` is the declared one. Raises ``DeclarationError`` if it doesn't fit."""
        ...

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        """Return the input's system. Raises ``DeclarationError`` for an unsupported use."""
        ...


class OutputOnly(ABC):
    """A descriptor of outputs only: it can't be an input, because reading couldn't continue from a position."""

    __slots__ = ()

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        """Refuse, because the rows of a table have no order."""
        del schema
        raise self.no_input()

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        """Refuse, for the same reason."""
        del stream_id, use
        raise self.no_input()

    @abstractmethod
    def no_input(self) -> DeclarationError:
        """Return the error for an app that declares it as an input."""


@runtime_checkable
class OutputDescriptor(SystemDescriptor, Protocol):
    """A descriptor with details for outputs."""

    def output_system(self, stream_id: str) -> SystemSpec:
        """Return the output's system. Raises ``DeclarationError`` for arguments that only inputs have."""
        ...


def internal_system(system: object, app: str) -> SystemSpec:
    """Return the record system for an app's own streams. Raises ``DeclarationError`` for any other system."""
    if isinstance(system, SystemSpec):
        spec = system
    elif callable(describe := getattr(system, "system", None)):
        spec = describe(app)
    else:
        raise DeclarationError(f"system= takes a system, not {type(system).__name__}", hint=_INTERNAL)
    if keeps_rows(spec):
        raise DeclarationError(
            f"an app can't keep its own streams in {spec.name!r}, which keeps rows and not frames", hint=_INTERNAL
        )
    return spec


_INTERNAL = 'write system=hr.io.kafka_log("host:9092"), or leave it out: then it is the embedded log under home'
