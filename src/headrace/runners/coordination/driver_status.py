"""What else the driver does while it runs the app, as parts of its status."""

from __future__ import annotations

import msgspec


class QueriesStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Numbers of questions about tables since the start: those that wait now, and how the others ended."""

    waiting: int = 0
    answered: int = 0
    timed_out: int = 0
    refused: int = 0


class PagesStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Live pages that watch the app now, and how many were refused since the start because there were too many."""

    watching: int = 0
    refused: int = 0


class ExportStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What happened to what was to be sent to OpenTelemetry's collector, since the start.

    ``sent`` and ``failed`` are attempts, of which each has all metrics, or some traces. ``dropped`` are traces that
    found no room, or could not be sent.
    """

    metrics_sent: int = 0
    metrics_failed: int = 0
    traces_sent: int = 0
    traces_failed: int = 0
    traces_dropped: int = 0
