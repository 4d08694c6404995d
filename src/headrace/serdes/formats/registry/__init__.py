"""Schema registries with Confluent's interface: where one is, what it is asked, and how records name its schemas."""

from __future__ import annotations

from headrace.serdes.formats.registry.client import Registered, RegistryClient
from headrace.serdes.formats.registry.schemas import SchemaSource
from headrace.serdes.formats.registry.settings import RegistrySettings

__all__ = ["Registered", "RegistryClient", "RegistrySettings", "SchemaSource"]
