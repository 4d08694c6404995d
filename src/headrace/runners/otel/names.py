"""What metrics are called in OpenTelemetry: dots between namespaces, no suffixes, and units in UCUM's words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.metric_table import BY_NAME

_NAMESPACES = frozenset(
    {"app", "call", "checkpoint", "container", "early", "input", "otel", "output", "query", "state", "step", "task"}
)
_OTHERS: Mapping[str, str] = {
    "headrace_call_seconds_total": "headrace.call.time",
    "headrace_container_cpu_seconds_total": "headrace.container.cpu.time",
    "headrace_early_bytes": "headrace.early.size",
    "headrace_function_seconds_total": "headrace.step.function.time",
    "headrace_input_bytes_total": "headrace.input.io",
    "headrace_output_bytes_total": "headrace.output.io",
    "headrace_state_bytes": "headrace.state.size",
    "headrace_task_bytes_in_total": "headrace.task.io_in",
    "headrace_task_bytes_out_total": "headrace.task.io_out",
}
"""Names of which too little would be left without their units."""

_UNITS = {"seconds": "s", "bytes": "By"}
_COUNTED: Mapping[str, str] = {
    "calls": "{call}",
    "checkpoints": "{checkpoint}",
    "commits": "{commit}",
    "exports": "{export}",
    "failures": "{failure}",
    "frames": "{frame}",
    "hits": "{hit}",
    "keys": "{key}",
    "messages": "{message}",
    "misses": "{miss}",
    "offsets": "{offset}",
    "pages": "{page}",
    "queries": "{query}",
    "restarts": "{restart}",
    "retries": "{retry}",
    "rollbacks": "{rollback}",
    "timeouts": "{timeout}",
    "timers": "{timer}",
    "traces": "{trace}",
    "versions": "{version}",
    "warnings": "{warning}",
    "watermarks": "{watermark}",
}


def name_of(metric: str) -> str:
    """The name of a metric, given that in ``/metrics``; one of a user's own keeps its words."""
    if (known := BY_NAME.get(metric)) is None:
        return metric.removesuffix("_total")
    if metric in _OTHERS:
        return _OTHERS[metric]
    words = metric.removesuffix("_total")
    if known.unit:
        words = words.removesuffix(f"_{known.unit}")
    words = words.removeprefix("headrace_")
    first, _, rest = words.partition("_")
    return f"headrace.{first}.{rest}" if first in _NAMESPACES else f"headrace.{words}"


def unit_of(metric: str) -> str:
    """Its unit: of a user's own metric nothing is known."""
    if (known := BY_NAME.get(metric)) is None:
        return ""
    if known.unit:
        return _UNITS[known.unit]
    return next((unit for word, unit in _COUNTED.items() if word in metric.split("_")), "1")


def attributes_of(metric: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as attributes, without the app, which the resource names. A user's own labels keep their names."""
    own = BY_NAME[metric].labels if metric in BY_NAME else ("stage", "task")
    return {f"headrace.{key}" if key in own else key: text for key, text in labels.items() if key != "app"}
