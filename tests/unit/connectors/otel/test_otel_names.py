"""Names, units and attributes as OpenTelemetry's conventions write them, and what the environment asks for."""

from __future__ import annotations

import re

import pytest

from headrace.connectors.otel.telemetry import Asked, asked, attributes_of, name_of, unit_of
from headrace.core.metrics import METRICS


@pytest.mark.parametrize(
    ("metric", "name", "unit"),
    [
        ("headrace_app_up", "headrace.app.up", "1"),
        ("headrace_task_messages_in_total", "headrace.task.messages_in", "{message}"),
        ("headrace_task_bytes_in_total", "headrace.task.io_in", "By"),
        ("headrace_input_lag_offsets", "headrace.input.lag_offsets", "{offset}"),
        ("headrace_input_lag_seconds", "headrace.input.lag", "s"),
        ("headrace_late_messages_total", "headrace.late_messages", "{message}"),
        ("headrace_checkpoint_duration_seconds", "headrace.checkpoint.duration", "s"),
        ("headrace_checkpoints_total", "headrace.checkpoints", "{checkpoint}"),
        ("headrace_state_bytes", "headrace.state.size", "By"),
        ("headrace_call_retries_total", "headrace.call.retries", "{retry}"),
        ("headrace_container_cpu_seconds_total", "headrace.container.cpu.time", "s"),
        ("slow_views_total", "slow_views", ""),
        ("view_seconds", "view_seconds", ""),
    ],
)
def test_names_and_units(metric: str, name: str, unit: str) -> None:
    assert (name_of(metric), unit_of(metric)) == (name, unit)


def test_names_are_valid_distinct_and_no_namespace_of_others() -> None:
    names = [name_of(metric.name) for metric in METRICS]
    assert len(set(names)) == len(names)
    spaces = {name[:at] for name in names for at in range(len(name)) if name[at] == "."}
    assert spaces & set(names) == set()
    for name in names:
        assert re.fullmatch(r"headrace(\.[a-z]+(_[a-z]+)*)+", name), name
        assert not re.search(r"(_total|seconds|bytes)", name), name


def test_only_the_labels_of_headrace_get_its_namespace() -> None:
    labels = {"app": "shop", "stage": "views", "task": "views/0", "country": "PT"}
    ours = {"headrace.stage": "views", "headrace.task": "views/0"}
    assert attributes_of("slow_views_total", labels) == {**ours, "country": "PT"}
    labels = {"app": "shop", "task": "views/0", "part": "flush"}
    assert attributes_of("headrace_checkpoint_duration_seconds", labels) == {
        "headrace.task": "views/0",
        "headrace.part": "flush",
    }


HERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}


@pytest.mark.parametrize(
    ("environ", "metrics", "traces"),
    [
        ({}, False, False),
        ({"OTEL_SERVICE_NAME": "shop"}, False, False),
        (HERE, True, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://localhost:4318/v1/metrics"}, True, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, False, True),
        (HERE | {"OTEL_TRACES_EXPORTER": "none"}, True, False),
        (HERE | {"OTEL_METRICS_EXPORTER": "prometheus, otlp"}, True, True),
        (HERE | {"OTEL_METRICS_EXPORTER": "prometheus"}, False, True),
        (HERE | {"OTEL_SDK_DISABLED": "True"}, False, False),
        (HERE | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True, True),
    ],
)
def test_the_environment_asks(environ: dict[str, str], metrics: bool, traces: bool) -> None:
    assert asked(environ) == Asked(metrics=metrics, traces=traces)


def test_what_cannot_be_done_is_said() -> None:
    found = asked(HERE | {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"})
    assert (found.metrics, found.traces) == (True, False)
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'grpc'" in found.problems[0]
    found = asked(HERE | {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_BSP_SCHEDULE_DELAY": "soon"})
    assert (found.metrics_every_ms, found.traces_every_ms) == (1000, 5000)
    assert "OTEL_BSP_SCHEDULE_DELAY is 'soon'" in found.problems[0]
