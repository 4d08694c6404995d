"""Numbers in README.md and docs/ are those of the code, and figures those of docs/performance.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.api import specs
from headrace.api.app import IDLE_TIMEOUT, Declarations
from headrace.api.dataframe import PARTITIONS
from headrace.connectors.delta.client import _WAITS
from headrace.connectors.formats import registry
from headrace.connectors.kafka import consumer as kafka_consumer
from headrace.connectors.kafka import publishing as kafka_publishing
from headrace.connectors.kafka.settings import RECORD_BYTES
from headrace.connectors.kinesis import api as kinesis
from headrace.connectors.kinesis import dealing
from headrace.connectors.kinesis.target import KEY_CHARS_MAX
from headrace.connectors.otel import telemetry
from headrace.connectors.sql import metadata as postgres
from headrace.coordinator import books, ledger, listener, messages, publication, server
from headrace.core import frame, log
from headrace.core import metrics as counted
from headrace.core.clock import to_ms
from headrace.core.deployment import SETTINGS
from headrace.kit.harness import CALLS_MS_MAX
from headrace.life.metadata import FORMAT as METADATA_FORMAT
from headrace.operate.page import live
from headrace.plan.partitions import INTERMEDIATE_PARTITIONS_MAX
from headrace.protocol import record
from headrace.run import container, holdups, looks, run
from headrace.run.spark import dataframes, launch, slots
from headrace.spark.writing import ABANDONED_AFTER_S
from headrace.stores import pieces, runs, snapshots, transfer
from headrace.streams import committed_writer
from headrace.systems.files import consumer as files_consumer
from headrace.systems.files import stock
from headrace.systems.log import segment
from headrace.task import batch, event_time, scope
from headrace.task.host import attempt, ports
from headrace.task.inputs import chooser
from headrace.task.operators import aggregation
from headrace.task.outputs import outlet
from headrace.task.state import task_state
from headrace.task.tables import ROW_BYTES_MAX
from seams.factors import FACTORS
from simulator.declared import CASES
from simulator.shapes import MOVED, SHAPES

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
MIB = 1 << 20


@cache
def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def squashed(page: str) -> str:
    """Without line breaks, so that a sentence is found wherever its lines end."""
    return " ".join(text(page).split())


# -- defaults and limits

UNITS = {"s": "s", "min": "m", "minute": "m", "seconds": "s", "h": "h", "ms": "ms"}
DEFAULTS: Mapping[str, object] = {
    "checkpoint_interval": specs.INTERVAL_MS,
    "drain_timeout": specs.DRAIN_TIMEOUT_MS,
    "hung_after": specs.HUNG_AFTER_MS,
    "idle_timeout": to_ms(IDLE_TIMEOUT, "idle_timeout"),
    "restarts_max": specs.RESTARTS_MAX,
    "ahead_bytes_max": specs.Settings().ahead_bytes_max,
}


def meant(said: str) -> int | None:
    """The number that ``(64 MiB)``, ``(1 min)`` or ``(a minute)`` means: of bytes, of milliseconds, or itself."""
    found = re.fullmatch(r"(a|an|\d+)(?: (\w+))?(?:[;,].*)?", said)
    if found is None:
        return None
    number = 1 if found[1] in ("a", "an") else int(found[1])
    if found[2] == "MiB":
        return number * MIB
    return number if found[2] is None else to_ms(f"{number}{UNITS[found[2]]}", said) if found[2] in UNITS else None


def test_defaults_are_said_as_they_are() -> None:
    """Wherever a page says such as "`drain_timeout` (1 min)"."""
    pattern = rf"`({'|'.join(DEFAULTS)})`(?: of the input| of its input)? \(([^)]*)\)"
    said = [(page, name, meant(value)) for page in PAGES for name, value in re.findall(pattern, squashed(page))]
    assert [one for one in said if one[2] not in (None, DEFAULTS[one[1]])] == []
    assert len([one for one in said if one[2] is not None]) > 10


def test_the_table_of_settings_has_their_defaults() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text("docs/plan.md"), flags=re.M))
    given = {name: one.default for name, one in inspect.signature(Declarations.__init__).parameters.items()}
    wrong = {}
    for name, said in table.items():
        literal = said.strip("`").strip('"')
        if name in DEFAULTS:
            right = meant(said) == DEFAULTS[name]
        elif name in SETTINGS and given[name] is None and SETTINGS[name].default is not None:
            right = literal == str(SETTINGS[name].default)
        elif name == "internal":
            right = given[name] is None
        elif said.startswith("`"):
            right = literal == (".headrace" if name == "home" else str(given[name]))
        else:
            right = given[name] is None or said == str(given[name])
        if not right:
            wrong[name] = (said, given[name])
    assert wrong == {}
    assert set(table) == set(given) - {"self", "name"}


WORDS = {2: "two", 3: "three", 5: "five", 8: "eight", 10: "ten", 1000: "thousand", 1_000_000: "a million"}
SPANS = {0.5: "half a second", 30: "half a minute", 60: "a minute", 900: "quarter of an hour", 86_400: "a day"}


def word(number: float) -> str:
    return WORDS.get(int(number), f"{number:g}")


def default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def span(seconds: float) -> str:
    return SPANS.get(seconds, f"{seconds:g} seconds")


def times(ms: float) -> str:
    return f"{ms / 1000:g}"


CLAIMS = [
    ("README.md", "up to {:,} tasks", container.TASKS_MEASURED),
    ("README.md", "Spark needs Java {} or newer", launch.OLDEST_JAVA),
    ("docs/alerts.md", "After `restarts_max` ({}) restarts", specs.RESTARTS_MAX),
    ("docs/batch.md", "Arrow batches of up to {:,} rows", batch.PIECE_ROWS),
    ("docs/calls-and-remote-tables.md", "takes longer than {} seconds is an error", word(CALLS_MS_MAX // 1000)),
    (
        "docs/calls-and-remote-tables.md",
        "most `concurrency` calls at once ({})",
        default(hr.Stream.map_async, "concurrency"),
    ),
    (
        "docs/calls-and-remote-tables.md",
        "within `timeout` ({} s), it is",
        default(hr.Stream.map_async, "timeout").removesuffix("s"),
    ),
    ("docs/calls-and-remote-tables.md", "by default {} attempts in all", word(default(hr.calls.retry, "attempts"))),
    ("docs/calls-and-remote-tables.md", "at most `batch` ({})", default(hr.tables.remote, "batch")),
    (
        "docs/calls-and-remote-tables.md",
        "up to `concurrency` reads at once ({})",
        default(hr.tables.remote, "concurrency"),
    ),
    (
        "docs/calls-and-remote-tables.md",
        "within `timeout` ({} s), is",
        default(hr.tables.remote, "timeout").removesuffix("s"),
    ),
    ("docs/clusters.md", "wait up to {} seconds for the others", word(server.WAIT_MS / 1000)),
    ("docs/cost.md", "one after every {} MiB of changes", task_state.SNAPSHOT_AFTER_BYTES // MIB),
    ("docs/dashboard.md", "At most {} pages may be open", live.MOST_LISTENERS),
    ("docs/dashboard.md", "reads nothing for {:g} seconds is disconnected", listener.SLOW_S),
    ("docs/dashboard.md", "more than {} tasks, and so on", live.TASKS_A_SECOND),
    (
        "docs/dashboard.md",
        "the next {} rows that the step takes in each of up to {} tasks",
        (word(looks.ROWS_MAX), word(looks.TASKS_MAX)),
    ),
    ("docs/dashboard.md", "values cut to {} characters", looks.VALUE_CHARS_MAX),
    ("docs/dashboard.md", "the {} latest distinct warnings", word(log.KEPT)),
    ("docs/dataframe-inputs.md", "`partitions=` partitions ({})", PARTITIONS),
    ("docs/dataframe-inputs.md", "Files have at most {} rows", word(dataframes.FILE_ROWS_MAX)),
    ("docs/dataframes-writing.md", "At most {} unnamed writes", committed_writer.SLOTS),
    ("docs/dataframes-writing.md", "once they are {} old", span(ABANDONED_AFTER_S)),
    ("docs/dataframes.md", "in pages of {:,}", messages.ROWS_MAX - 1),
    ("docs/delta.md", "takes longer than {} seconds fails", _WAITS["timeout"].removesuffix("s")),
    ("docs/deploying.md", "no other has registered for {} seconds", word(slots.SETTLED_S)),
    ("docs/deploying.md", "up to {} for as many as", span(slots.WAIT_S)),
    (
        "docs/driver.md",
        "waits up to {:g} s for it to renew its address, which every driver does every {:g} s",
        (publication.LOST_S, publication.TOUCH_S),
    ),
    ("docs/driver.md", "for more than {:g} seconds, another", publication.LOST_S),
    (
        "docs/errors-and-policies.md",
        "pauses that double from {} to {}",
        (span(ledger._PAUSES.first_ms / 1000), word(ledger._PAUSES.longest_ms / 1000)),
    ),
    ("docs/errors-and-policies.md", "{} without one resets the count", span(ledger.STEADY_MS / 1000)),
    (
        "docs/event-time-and-windows.md",
        "the years {} to {} ({} to {} in a `Datetime` of nanoseconds)",
        (*event_time._YEARS["ms"], *event_time._YEARS["ns"]),
    ),
    ("docs/files.md", "as files at the first run, at most {}", stock.PARTITIONS_MAX),
    ("docs/files.md", "hasn't changed for {:g} seconds", files_consumer.SETTLED_S),
    ("docs/files.md", "{} is row 42 of the fourth file", 3 * stock.ROWS_MAX + 42),
    ("docs/formats.md", "a header of {} bytes, then a body", frame.HEADER_SIZE),
    ("docs/formats.md", "`version` is the body's format, {}.", frame.CONTROL_VERSION),
    (
        "docs/formats.md",
        "has a header of {} bytes (`{}`, version u32 ({})",
        (segment.FILE_HEADER_SIZE, segment.FILE_MAGIC.decode(), segment.FORMAT_VERSION),
    ),
    ("docs/formats.md", "has entries of {} bytes", segment.TIME_ENTRY_SIZE),
    ("docs/formats.md", "({} for a commit, {} for the others)", (record.COMMIT_FORMAT, record.CHANGE_FORMAT)),
    ("docs/formats.md", "(format {}, `TimesCheckpoint`", event_time.TIMES_FORMAT),
    ("docs/formats.md", '"{{\\"format\\":{},', record.READER_FORMAT),
    ("docs/formats.md", "SQLite, format {}: values", METADATA_FORMAT),
    ("docs/formats.md", "In PostgreSQL (format {})", postgres.FORMAT),
    ("docs/formats.md", "each of the last {:,} versions", postgres._WRITES_KEPT),
    ("docs/formats.md", "A manifest is JSON, format {}.", snapshots.FORMAT),
    ("docs/formats.md", "from k * 10^{}, one for each row", len(str(stock.ROWS_MAX)) - 1),
    (
        "docs/kafka-output.md",
        "takes longer than {} seconds is aborted and written again with twice the time, up to {} minutes",
        (kafka_publishing.TIMEOUT_MS // 1000, kafka_publishing.TIMEOUT_MS_MAX // 60_000),
    ),
    ("docs/kafka.md", "notices the new id within {}", span(kafka_consumer.LOOK_S)),
    ("docs/kafka.md", "the size of a frame ({} MiB)", RECORD_BYTES // MIB),
    (
        "docs/kinesis.md",
        "longer than {} characters, or if the record is larger than {} MiB",
        (KEY_CHARS_MAX, kinesis.RECORD_BYTES // MIB),
    ),
    ("docs/kinesis.md", "It writes up to {} in a call", kinesis.PUT_RECORDS),
    ("docs/kinesis.md", "calls smaller than {:,} records", kinesis.READ_RECORDS),
    ("docs/kinesis.md", "If that takes longer than {} seconds, the shard stays", dealing.PATIENCE_MS // 1000),
    ("docs/kinesis.md", "tries the move again after {}, and then less often", span(dealing.FIRST_PAUSE_MS / 1000)),
    ("docs/kinesis.md", "commits that every {}", span(kinesis.LOOK_MS / 1000)),
    ("docs/kinesis.md", "hasn't advanced for {} seconds, which is KCL's default", kinesis.FAILOVER_MS // 1000),
    (
        "docs/logging.md",
        "about {} lines a second, of at most {:,} characters each, and holds at most {}",
        (2 * container.BATCH_MAX, container.CHARS_MAX, container.WAITING_MAX),
    ),
    ("docs/metrics.md", "at most {} of your series", counted.SERIES_MAX),
    ("docs/metrics.md", "at most {:,} commits wait", telemetry.ROOM),
    ("docs/metrics.md", "`OTEL_METRIC_EXPORT_INTERVAL` ({} ms)", telemetry._METRICS_EVERY_MS),
    ("docs/metrics.md", "`OTEL_BSP_SCHEDULE_DELAY` ({} ms)", telemetry._TRACES_EVERY_MS),
    ("docs/notebooks.md", "drain for at most {:g} s", run.AT_EXIT_S),
    (
        "docs/notebooks.md",
        "the first {:,} rows of each input",
        default(hr.Stream.head, "sample"),
    ),
    ("docs/plan.md", "inputs and outputs, at most {}", INTERMEDIATE_PARTITIONS_MAX),
    ("docs/plan.md", "other hosts keep current, up to {}", specs.STANDBY_MAX),
    ("docs/protocol.md", "has waited for an upstream task B for {} s", times(attempt.PATIENCE_MS)),
    (
        "docs/queryable-state.md",
        "An answer takes {} s at most, or `--timeout` ({} s is the maximum). At most {} queries may wait",
        (messages.LIMIT_MS // 1000, messages.LIMIT_MS_MAX // 1000, books.WAITING_MAX),
    ),
    ("docs/queryable-state.md", "holds about {} MB", books.ANSWER_BYTES_MAX // MIB),
    ("docs/queryable-state.md", "more than {} MB is an error", ROW_BYTES_MAX // MIB),
    ("docs/queryable-state.md", "{:,} keys at most", messages.KEYS_MAX),
    ("docs/queryable-state.md", "and {:,} at most. If there are more", messages.ROWS_MAX - 1),
    ("docs/reliability.md", "after {} s, tasks go on", times(attempt.PATIENCE_MS)),
    ("docs/reliability.md", "({} of them, and {} shapes without operators)", (len(CASES), len(SHAPES) + len(MOVED))),
    ("docs/reliability.md", "the {} factors with their {} values", (len(FACTORS), sum(map(len, FACTORS.values())))),
    ("docs/retention.md", "in steps of {} MiB", outlet.TRIM_STEP // MIB),
    ("docs/retention.md", "has grown by {} MiB", task_state.SNAPSHOT_AFTER_BYTES // MIB),
    ("docs/schema-registry.md", "within `timeout=` ({} s)", registry.TIMEOUT_MS // 1000),
    ("docs/schema-registry.md", "keeps the last {}", word(registry.KEPT_MAX)),
    ("docs/sizing.md", "at most {:,} of them a second for commits", scope.FRAMES_A_SECOND),
    ("docs/sizing.md", "a commit itself counts as {} frames", scope.COMMIT_FRAMES),
    ("docs/sizing.md", "at most every {} ms", scope.WATERMARK_INTERVAL_MS),
    ("docs/sizing.md", "keeps at most {} MiB in memory", chooser.MEMORY_BYTES_MAX // MIB),
    (
        "docs/sizing.md",
        "up to {:g} seconds behind, and with more than {:g} tasks up to {:g} ms for each",
        (
            container.STATUS_MS_MAX / 1000,
            container.STATUS_MS_MAX / container.STATUS_MS_A_TASK,
            container.STATUS_MS_A_TASK,
        ),
    ),
    ("docs/snapshots.md", "in pieces of {} MiB", transfer.PIECE_BYTES // MIB),
    ("docs/snapshots.md", "After {} s it continues in a folder of its own", times(ports.LETS_GO_MS)),
    ("docs/snapshots.md", "keeps {} snapshots of each task", word(snapshots.SNAPSHOTS_KEPT)),
    (
        "docs/waiting.md",
        "for more than {} seconds ({} in an expression)",
        (holdups.CALL_MS // 1000, holdups.STILL_MS // 1000),
    ),
    ("docs/windows.md", "in pieces of about {:,} rows", round(pieces.PIECE_ROWS, -4) - 10_000),
    ("docs/windows.md", "about {} million at most", word(round(runs._MERGED_ROWS_MAX / 1e6))),
    ("docs/windows.md", "{} MB of what is on disk", pieces.KEPT_BYTES_MAX // MIB),
    ("docs/windows.md", "more than about {:,} keys have windows", round(pieces.VALUE_ROWS_MAX, -4)),
    ("docs/windows.md", "a standard error of {:.1f} %", 104 / aggregation._REGISTERS**0.5),
    ("docs/windows.md", "{} bytes per row (for a join", runs._ROW_BYTES),
    ("CHANGELOG.md", "The commit format is now {}.", record.COMMIT_FORMAT),
]
"""A page, what it says, and the value in the code: where words stand for a number, the word if the number is that."""


@pytest.mark.parametrize(("page", "said", "value"), CLAIMS)
def test_a_claim_has_the_number_of_the_code(page: str, said: str, value: object) -> None:
    wanted = said.format(*value) if isinstance(value, tuple) else said.format(value)
    assert wanted in squashed(page)


def test_lists_have_as_many_entries_as_they_say() -> None:
    names = [name for name in hr.__all__ if not inspect.ismodule(getattr(hr, name)) and name != "__version__"]
    assert (
        f"The top of `hr` has {dict(zip([19, 20], ['nineteen', 'twenty'], strict=True))[len(names)]} names"
        in squashed("CHANGELOG.md")
    )
    assert len(re.findall(r"^## ", text("docs/recipes.md"), flags=re.M)) == 20
    assert squashed("docs/recipes.md").startswith("# Recipes Twenty questions")
    assert len(list(ROOT.glob("examples/nexmark/q*.py"))) == 10
    assert "Ten of them are in" in text("docs/nexmark.md")


# -- figures of performance, which only bench/page.py writes


def measured(title: str) -> list[dict[str, str]]:
    """The rows of the table with this title in docs/performance.md, by column; the first has no name."""
    _, found, rest = text("docs/performance.md").partition(f"\n{title}:\n\n")
    assert found, f"docs/performance.md has no table {title!r}"
    head, _, *rows = [
        [cell.strip() for cell in line[1:-1].split("|")] for line in rest.partition("\n\n")[0].splitlines()
    ]
    return [dict(zip(head, row, strict=True)) for row in rows]


def windowed_count() -> dict[str, dict[str, str]]:
    return {row[""]: row for row in measured("(b) windowed count in two stages")}


def test_the_readme_says_how_many_times_as_fast() -> None:
    """As the page does, and the picture above the sentence, which is of another run."""
    said = "A windowed count is about five times as fast as in Structured Streaming"
    assert said in squashed("README.md")
    assert round(float(windowed_count()["headrace"]["ratio"])) == 5
    picture = re.findall(r">(\d+\.\d) \(", text("docs/images/throughput.svg"))
    assert round(float(picture[0])) == 5


def test_throughput_is_told_on_one_page() -> None:
    """Others lead there, or are compared with it here: figures of two runs contradict each other."""
    rate = re.compile(r"\d,\d{3} (?:messages|records|msg)(?:/s| a second| per second)|\d\.\d times as fast")
    others = [page for page in (*PAGES, "ARCHITECTURE.md", "CHANGELOG.md") if page != "docs/performance.md"]
    told = {page: re.sub(r"```.*?```", "", text(page), flags=re.S) for page in others}
    assert [(page, found[0]) for page, shown in told.items() for found in rate.finditer(" ".join(shown.split()))] == []


def test_the_cost_of_frequent_checkpoints_is_the_measured_one() -> None:
    rows = {row[""]: row for row in measured("(b) by guarantee (expected ratio: 0.97 or better)")}
    ratios = {name: float(row["ratio"]) for name, row in rows.items()}
    often = ratios["exactly_once, 100ms"] / ratios["exactly_once"]
    assert f"throughput was about {often:.1f} times as high" in squashed("docs/cost.md")
    assert ratios["exactly_once"] > 0.97, "docs/cost.md says that it is as fast as at-least-once"


SHAPES_OF_MEMORY = {
    "table": "table",
    "tumbling window": "tumbling",
    "session": "session",
    "count window": "counted",
    "`deduplicate`": "deduplicate",
    "join, a million messages on either side": "join",
}


def test_memory_by_keys_is_the_measured_one() -> None:
    rows = measured("One task that reads one message for each key, until its input ends")
    peak = {(row["state"], row["keys"]): row["peak MB until the end"] for row in rows}
    table = dict(re.findall(r"^\| ([^|]+) \| (\d+ \|[ \d]*)\|$", text("docs/windows.md"), flags=re.M))
    assert set(table) == set(SHAPES_OF_MEMORY)
    for said, state in SHAPES_OF_MEMORY.items():
        shown = [peak.get((state, keys), "") for keys in ("1,000,000", "10,000,000")]
        assert [one.strip() for one in table[said].split("|")] == shown, said
    assert f"needed {int(peak['tumbling', '10,000,000']) / 1000:.1f} GB" in squashed("docs/sizing.md")


@pytest.mark.parametrize(("said", "shuffle"), [("100", "0"), ("100 that shuffle to 100", "1")])
def test_the_cost_of_tasks_is_the_measured_one(said: str, shuffle: str) -> None:
    rows = [
        row for row in measured("Containers with many tasks") if (row["shuffle"], row["partitions"]) == (shuffle, "100")
    ]
    row = rows[0]
    shown = [
        f"{float(row['start_s']):.1f} s",
        f"{float(row['settled_s']):.0f} s",
        row["descriptors"],
        f"{100 * float(row['idle_cores']):.1f} %",
        f"{row['rss_mb']} MB",
    ]
    assert f"| {said} | {' | '.join(shown)} |" in text("docs/sizing.md")


def test_what_an_idle_app_costs_is_said_alike() -> None:
    idle = re.search(r"^\| 1,000 \|(?:[^|]+\|){3} ([\d.]+) % \|", text("docs/sizing.md"), flags=re.M)
    assert idle is not None
    assert f"with 1,000 tasks in one process, {float(idle[1]):.0f} % of a core" in squashed("docs/cost.md")
