"""Other activities of the driver during a run, as parts of its status."""

from __future__ import annotations

import msgspec


class QueriesStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Numbers of queries of tables since the start: those waiting now, and how the others ended."""

    waiting: int = 0
    answered: int = 0
    timed_out: int = 0
    refused: int = 0


class PagesStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of live pages that watch the app now, and of those refused since the start because of the limit."""

    watching: int = 0
    refused: int = 0


class ExportStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The numbers of transmissions to OpenTelemetry's collector since the start.

    ``sent`` and ``failed`` count attempts, each with all metrics or some traces. ``dropped`` counts traces that found
    no room or couldn't be sent.
    """

    metrics_sent: int = 0
    metrics_failed: int = 0
    traces_sent: int = 0
    traces_failed: int = 0
    traces_dropped: int = 0
