"""Schema registries with Confluent's interface: settings, requests, and the header of records."""

from __future__ import annotations

from headrace.serdes.formats.registry.client import Registered, RegistryClient
from headrace.serdes.formats.registry.schemas import SchemaSource
from headrace.serdes.formats.registry.settings import RegistrySettings

__all__ = ["Registered", "RegistryClient", "RegistrySettings", "SchemaSource"]
