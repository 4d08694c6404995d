"""What ``system=`` takes: a descriptor says which system has a stream, and some say more of inputs or outputs."""

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


class SystemDescriptor(Protocol):
    """Says which system holds a stream."""

    def system(self, stream_id: str) -> SystemSpec:
        """The system of the stream with this id."""
        ...


@dataclass(frozen=True, slots=True)
class InputUse:
    """What else an app declares of an input, and its home, where a system may remember things.

    ``event_time`` is the column of that, if there is one.
    """

    app: str
    home: str
    event_time: Columns
    start: Start
    broadcast: bool


@runtime_checkable
class InputDescriptor(SystemDescriptor, Protocol):
    """Says more of an input than which system has it."""

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        """The input's columns; ``schema`` is what the app declares. Raises ``DeclarationError`` if they don't fit."""
        ...

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        """The input's system. Raises ``DeclarationError`` for a use that it doesn't have."""
        ...


class OutputOnly(ABC):
    """An ``InputDescriptor`` that refuses to be one: what it writes can't be read on from a position."""

    __slots__ = ()

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        """Refuse: the rows of a table have no order."""
        del schema
        raise self.no_input()

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        """Refuse, as well."""
        del stream_id, use
        raise self.no_input()

    @abstractmethod
    def no_input(self) -> DeclarationError:
        """The error for an app that has it as an input."""


@runtime_checkable
class OutputDescriptor(SystemDescriptor, Protocol):
    """Says more of an output than which system has it."""

    def output_system(self, stream_id: str) -> SystemSpec:
        """The output's system. Raises ``DeclarationError`` for what only inputs have."""
        ...


def internal_system(system: object, app: str) -> SystemSpec:
    """The record system in which an app keeps what is its own. Raises ``DeclarationError`` for anything else."""
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
