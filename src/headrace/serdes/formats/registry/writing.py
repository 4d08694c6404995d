"""The id that a writer puts before its records: its schema is looked up under its subject, or registered there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.core.errors import DeclarationError, HeadraceError, InfrastructureError
from headrace.core.log import logger
from headrace.core.retry import Retry
from headrace.serdes.formats.contract import FormatSpec
from headrace.serdes.formats.registry.client import Reference, Registered, RegistryClient
from headrace.serdes.formats.registry.framing import header
from headrace.serdes.formats.registry.settings import RegistrySettings

RETRY = Retry(6, 200.0, 4_000.0)
"""How often a registry that doesn't answer is asked: for about ten seconds, once in a writer's life."""
_log = logger(__name__)


class Registering(Protocol):
    """What a writer needs of a client."""

    @property
    def url(self) -> str:
        """Where the schema should be."""
        ...

    def lookup(self, subject: str, schema: Registered) -> tuple[int, int] | None:
        """Find a schema under a subject."""
        ...

    def register(self, subject: str, schema: Registered) -> int:
        """Register a schema under a subject."""
        ...


class SubjectWriter:
    """Finds the id of ``schema`` under ``subject``. ``needed`` are schemas that it refers to, by their subjects.

    With ``register`` they are registered if they aren't there yet. One thread uses it.
    """

    def __init__(
        self,
        client: Registering,
        schema: Registered,
        subject: str | None,
        *,
        register: bool = False,
        needed: Mapping[str, Registered] | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._schema = schema
        self._subject = subject
        self._register = register
        self._needed = needed or {}
        self._wait = wait
        self._header: bytes | None = None

    def header(self) -> bytes:
        """The first bytes of each record. The first call asks the registry, and waits some seconds for it.

        Raises ``UnavailableError`` if it doesn't answer, ``InfrastructureError`` if the schema isn't registered,
        ``DataError`` if the registry refuses it.
        """
        if self._header is None:
            if self._subject is None:
                raise DeclarationError(
                    "writing records with a schema's id needs a subject of the registry, but none is given",
                    hint='write subject="orders-value"',
                )
            self._header = header(self._asking(self._subject))
        return self._header

    def _asking(self, subject: str) -> int:
        failures = 0
        while True:
            try:
                return self._id(subject)
            except HeadraceError as error:
                failures += 1
                pause_ms = RETRY.pause_ms(failures, random.random())
                if not error.retry or pause_ms is None:
                    raise
                self._wait(pause_ms / 1000)

    def _id(self, subject: str) -> int:
        references = []
        for name, one in self._needed.items():
            # The name by which a schema imports another one is its subject, as Confluent's serializers have it.
            found = self._client.lookup(name, one)
            if found is None and self._register:
                self._client.register(name, one)
                found = self._client.lookup(name, one)
            if found is None:
                raise self._missing(name)
            references.append(Reference(name, name, found[1]))
        schema = Registered(self._schema.text, self._schema.type, tuple(references))
        there = self._client.lookup(subject, schema)
        if there is not None:
            return there[0]
        if not self._register:
            raise self._missing(subject)
        id = self._client.register(subject, schema)
        _log.info("registered a schema", subject=subject, id=id, url=self._client.url)
        return id

    def _missing(self, subject: str) -> InfrastructureError:
        return InfrastructureError(
            f"the schema isn't registered under subject {subject!r} of {self._client.url}",
            hint="register it, set register=True so that the app does, or give the registered schema",
        )


def client_of(spec: FormatSpec) -> RegistryClient:
    """Return a client of the registry that a format names."""
    return RegistryClient(RegistrySettings.of(spec.settings["registry"]))


def writer_of(spec: FormatSpec, schema: Registered, needed: Mapping[str, Registered] | None = None) -> SubjectWriter:
    """Return the writer of a format with a registry. ``needed`` are the schemas that ``schema`` refers to."""
    settings = spec.settings
    return SubjectWriter(
        client_of(spec),
        schema,
        settings.get("subject"),
        register=settings.get("register", False),
        needed=needed or {},
    )
