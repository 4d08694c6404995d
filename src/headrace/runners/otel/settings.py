"""What OpenTelemetry's environment variables ask for. Pure.

Where the collector is, headers, certificates, compression, timeouts and attributes of the resource are read by
OpenTelemetry itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_METRICS_EVERY_MS, _TRACES_EVERY_MS = 60_000, 5_000


@dataclass(frozen=True, slots=True)
class Asked:
    """Which signals to send, and how often. ``problems`` say what was asked for and can't be done."""

    metrics: bool = False
    traces: bool = False
    metrics_every_ms: int = _METRICS_EVERY_MS
    traces_every_ms: int = _TRACES_EVERY_MS
    problems: tuple[str, ...] = ()


def asked(environ: Mapping[str, str]) -> Asked:
    """What the environment asks for: nothing, unless it says where a collector is."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return Asked()
    problems: list[str] = []
    return Asked(
        metrics=_wants(environ, "METRICS", problems),
        traces=_wants(environ, "TRACES", problems),
        metrics_every_ms=_every(environ, "OTEL_METRIC_EXPORT_INTERVAL", _METRICS_EVERY_MS, problems),
        traces_every_ms=_every(environ, "OTEL_BSP_SCHEDULE_DELAY", _TRACES_EVERY_MS, problems),
        problems=tuple(dict.fromkeys(problems)),
    )


def _wants(environ: Mapping[str, str], signal: str, problems: list[str]) -> bool:
    places = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    if not any(environ.get(place, "").strip() for place in places):
        return False
    exporters = environ.get(f"OTEL_{signal}_EXPORTER", "").strip() or "otlp"
    if "otlp" not in [one.strip() for one in exporters.split(",")]:
        return False
    named = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    name = next((one for one in named if environ.get(one, "").strip()), None)
    if name is None or environ[name].strip() == "http/protobuf":
        return True
    problems.append(
        f"{name} is {environ[name].strip()!r}, but Headrace sends {signal.lower()} by http/protobuf only, so it "
        "doesn't send them"
    )
    return False


def _every(environ: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if text.isascii() and text.isdigit() and 0 < int(text) <= 86_400_000:
        return int(text)
    problems.append(f"{name} is {text!r}, which isn't a number of milliseconds up to a day; using {default}")
    return default
