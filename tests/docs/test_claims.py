"""README.md, docs/ and the pages for developers name only what there is: files, metrics, errors, commands, options.

Other tests compare whole tables: of commands, exit codes, metrics, alerts, settings and public names.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

import headrace as hr
from headrace.api.descriptors import NewFiles
from headrace.api.operators.steps import FAILED_COLUMNS
from headrace.api.specs import DEAD_LETTER_COLUMNS, OnError
from headrace.connectors.kafka.settings import KafkaColumn
from headrace.connectors.kinesis.api import RECORD_COLUMNS, LeaseAhead
from headrace.coordinator.messages import AppState, What
from headrace.core.deployment import SETTINGS
from headrace.core.frame import Kind
from headrace.core.metrics import BY_NAME
from headrace.kit import harness
from headrace.life.startpoints import State
from headrace.operate.cli.main import app as command_line
from headrace.plan.changes import Verdict
from headrace.rows import dtypes
from headrace.spark.reading import READING
from headrace.spark.writing import WRITING

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
ALL = [*PAGES, "ARCHITECTURE.md", "HACKING.md", "CHANGELOG.md"]


@cache
def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("src/headrace/**/*.py")))


def named(pattern: str, pages: Sequence[str] = PAGES) -> list[tuple[str, str]]:
    """What matches in the pages, each with its page."""
    return [(page, one) for page in pages for one in sorted(set(re.findall(pattern, text(page), flags=re.M)))]


def exists(one: Any, names: list[str]) -> bool:
    """Whether there is such a name. What an instance has isn't looked at."""
    for name in names:
        if not hasattr(one, name):
            return False
        one = getattr(one, name)
        if not (inspect.ismodule(one) or inspect.isclass(one)):
            return True
    return True


# -- names

OTHERS = {
    "hr.kafka": "a mistake that the changelog quotes",
    "hr.io.versions": "what a plug-in would add",
    "OperationalError": "of sqlite3",
    "headrace.metadata": "a group of entry points",
    "headrace.formats": "a group of entry points",
    "headrace.task.messages_in": "what OpenTelemetry calls a metric",
    "headrace.io": "a group of entry points",
    "headrace_docs": "a label of Prometheus",
    "HEADRACE_CONTINERS": "a mistake that a page shows",
    "headrace.app.page": "a setting of Spark for an app",
    "headrace_positions": "a table of a database",
    "headrace_metadata": "a table of a database",
    "headrace_metadata_entries": "a table of a database",
    "headrace_metadata_writes": "a table of a database",
}


def test_names_of_hr_exist() -> None:
    found = named(r"\bhr(?:\.[A-Za-z_]\w*)+", ALL)
    assert [(page, one) for page, one in found if one not in OTHERS and not exists(hr, one.split(".")[1:])] == []


def test_modules_exist() -> None:
    """Names such as ``headrace.kit.contracts``. What begins with no module's name is the name of something else."""
    inside = {path.stem for path in (ROOT / "src/headrace").iterdir()}
    found = [(page, one) for page, one in named(r"\bheadrace(?:\.[A-Za-z_]\w*)+") if one not in OTHERS]
    assert [(page, one) for page, one in found if one.split(".")[1] in inside and not imported(one.split("."))] == []
    assert len(found) > 20


def imported(parts: list[str]) -> bool:
    for length in range(len(parts), 1, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return exists(module, parts[length:])
    return False


def test_files_are_there() -> None:
    """Pages for developers are looked at by ``tests/tidy``."""
    found = named(r"`((?:headrace|src|tests|examples|docs|bench|chaos|simulator|seams)/[\w./-]+\.\w+)`")
    assert [(page, one) for page, one in found if not (ROOT / one).exists() and not (ROOT / "src" / one).exists()] == []
    assert len(found) > 3


def test_metrics_exist() -> None:
    found = named(r"\bheadrace_[a-z_]+[a-z]", ALL)
    assert [(page, one) for page, one in found if one not in BY_NAME and one not in OTHERS] == []


def test_members_of_classes_exist() -> None:
    """Names such as ``Operator.owes`` on pages for developers."""
    inside = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("simulator/*.py")) + source()
    classes = dict(re.findall(r"^class (\w+)(.*?)(?=^\S)", inside, flags=re.M | re.S))
    found = [(page, *one.split(".")) for page, one in named(r"`([A-Z]\w+\.[a-z_]\w+)`", ALL)]
    missing = [
        (page, of, name) for page, of, name in found if of in classes and not re.search(rf"\b{name}\b", classes[of])
    ]
    assert missing == []
    assert len([of for _, of, _ in found if of in classes]) > 20


def test_errors_exist() -> None:
    found = [(page, one) for page, one in named(r"\b[A-Z]\w+Error\b") if one not in OTHERS]
    assert [(page, one) for page, one in found if not hasattr(hr.errors, one) and not hasattr(builtins, one)] == []


def test_variables_of_the_environment_are_read() -> None:
    found = named(r"\bHEADRACE_[A-Z_]+[A-Z]")
    settings = {one.variable for one in SETTINGS.values()} | OTHERS.keys()
    assert [(page, one) for page, one in found if one not in settings and f'"{one}"' not in source()] == []


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), flags=re.M))
    assert [(page, one) for page, one in named(r"(?:`|^\$ )make ([a-z-]+)", ALL) if one not in targets] == []


def test_tools_exist() -> None:
    found = named(r"python -m ((?:bench|simulator|chaos|seams|fuzz|manual)(?:\.\w+)?)", ALL)
    places = {(page, one): ROOT / one.replace(".", "/") for page, one in found}
    assert [
        one for one, at in places.items() if not any(map(Path.exists, (at.with_suffix(".py"), at / "__main__.py")))
    ] == []


def test_parts_of_the_benchmark_exist() -> None:
    parts = set(re.findall(r'^    "([a-z-]+)": ', text("bench/parts.py").partition("\nPARTS = ")[2], flags=re.M))
    found = named(r"(?:bench [^`\n]*|`)--only ([a-z][a-z,-]*)", ALL)
    assert [(page, one) for page, one in found if not set(one.split(",")) <= parts] == []


def test_places_within_pages_exist() -> None:
    missing = []
    for page in ALL:
        for file, place in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", re.sub(r"```.*?```", "", text(page), flags=re.S)):
            target = (ROOT / page).parent / file if file else ROOT / page
            if target.suffix == ".md" and place not in places_of(str(target.resolve().relative_to(ROOT))):
                missing.append((page, file, place))
    assert missing == []


@cache
def places_of(page: str) -> set[str]:
    shown = re.sub(r"```.*?```", "", text(page), flags=re.S)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one) for one in re.findall(r"^#+ (.*)", shown, flags=re.M)]
    made = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in titles}
    return made | set(re.findall(r'<a id="([^"]+)"', shown))


# -- commands


def below(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from below(one, f"{path}{name} ")
        else:
            yield path + name, one


VERBS: Mapping[str, Any] = dict(below(typer.main.get_command(command_line)))
OF = {verb: {one for of in command.params for one in (*of.opts, *of.secondary_opts)} for verb, command in VERBS.items()}
EVERYWHERE = {"--help", "--traceback", "--log-level", "--log-format", "--install-completion"}
ELSEWHERE = {
    "only", "stages", "seed", "rate", "disorder", "queries", "archives", "py-files", "add", "large", "case", "list",
    "in-process", "moving", "seconds",
}  # fmt: skip
"""Options of the tools of this repository, and of Spark."""


def test_commands_and_their_options_exist() -> None:
    wrong: list[tuple[str, ...]] = []
    for page, line in named(r"(?:^\$ |^|`)headrace ([a-z][^`\n#|]*)", ALL):
        words = line.split()
        verb = next((one for one in (" ".join(words[:2]), words[0]) if one in VERBS), None)
        if verb is None:
            wrong += [(page, line)] if not any(one.startswith(f"{words[0]} ") for one in VERBS) else []
            continue
        given = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line.split(" -- ")[0]))
        wrong += [(page, verb, option) for option in given - OF[verb] - EVERYWHERE]
    assert wrong == []


def test_options_that_stand_alone_exist() -> None:
    known = EVERYWHERE.union(*OF.values()) | {f"--{one}" for one in ELSEWHERE}
    assert [(page, one) for page, one in named(r"`(--[a-z][a-z-]*)", ALL) if one not in known] == []


def test_the_page_of_commands_has_their_arguments_and_their_help() -> None:
    wrong = []
    for name, verb in VERBS.items():
        usage = " ".join(verb.collect_usage_pieces(typer.Context(verb, info_name=name))[1:])
        usage = re.sub(r"\{([^}]+)\}", r"\1", usage.replace(" [ARGUMENTS]...", ""))
        usage = re.sub(r"\[(\[\w+\](?:\.\.\.)?)\](?:\.\.\.)?", r"\1", usage)
        first = verb.help.partition("\n")[0].partition(". ")[0].removesuffix(".")
        row = f"| `headrace {name} {usage}".rstrip() + f"` | {first[0].lower()}{first[1:]} |"
        wrong += [row] if row not in text("docs/command-line.md") else []
    assert wrong == []


# -- lists that are whole

OPTIONS: Mapping[Callable[..., Any], tuple[str, ...]] = {
    hr.io.kafka: ("kafka.md", "kafka-output.md"),
    hr.io.kafka_log: ("kafka.md",),
    hr.io.kinesis: ("kinesis.md",),
    hr.io.files: ("files.md",),
    hr.io.csv: ("files.md",),
    hr.io.delta: ("delta.md",),
    hr.io.sql: ("databases.md",),
    hr.io.registry: ("schema-registry.md",),
    hr.io.dataframe: ("dataframe-inputs.md",),
    hr.tables.remote: ("calls-and-remote-tables.md",),
    hr.tables.sql_table: ("calls-and-remote-tables.md",),
    hr.tables.cached: ("calls-and-remote-tables.md",),
    hr.calls.retry: ("calls-and-remote-tables.md",),
}


@pytest.mark.parametrize("function", OPTIONS, ids=lambda one: one.__name__)
def test_options_are_on_the_page_of_their_subject(function: Callable[..., Any]) -> None:
    shown = " ".join(text(f"docs/{page}") for page in OPTIONS[function])
    options = [one.name for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert [name for name in options if not re.search(rf"\b{name}\b", shown)] == []


METHODS: Sequence[tuple[str, str, type]] = [
    ("docs/testing.md", r"\bt", harness.TestApp),
    ("docs/changing-an-app.md", r"\bt", harness.TestApp),
    ("docs/notebooks.md", r"\brun", hr.runs.Run),
    ("docs/queryable-state.md", r"\bprices", hr.tables.TableReader),
    ("docs/queryable-state.md", r"\bTableReader", hr.tables.TableReader),
    ("docs/streams-and-the-log.md", r"\breader", hr.streams.StreamReader),
    ("docs/streams-and-the-log.md", r"\bStreamReader", hr.streams.StreamReader),
    ("docs/low-level-tasks.md", r"(?<!\w)out", hr.tasks.Out),
    ("docs/low-level-tasks.md", r"\bcontext", hr.tasks.TaskContext),
    ("docs/startpoints.md", r"\bpoints", hr.startpoints.Startpoints),
]


@pytest.mark.parametrize(("page", "name", "of"), METHODS)
def test_methods_exist(page: str, name: str, of: type) -> None:
    found = [one for _, one in named(rf"{name}\.(\w+)", [page])]
    assert [one for one in found if not hasattr(of, one) and f"self.{one}" not in inspect.getsource(of)] == []
    assert found


def test_the_page_about_tests_has_all_that_a_test_can_do() -> None:
    public = {name for name in vars(harness.TestApp) if not name.startswith("_")} - {"close"}
    assert [name for name in sorted(public) if f"`t.{name}" not in text("docs/testing.md")] == []


@pytest.mark.parametrize(
    ("opening", "columns"),
    [("A dead letter has the columns", DEAD_LETTER_COLUMNS), ("A letter has the columns", FAILED_COLUMNS)],
)
def test_letters_have_the_columns_that_the_page_lists(opening: str, columns: Mapping[str, Any]) -> None:
    listed = re.findall(r"`([a-z_]+)`", text("docs/errors-and-policies.md").partition(opening)[2])
    assert listed[: len(columns)] == list(columns)


def test_every_kind_of_wait_is_explained() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", text("docs/waiting.md"), flags=re.M)
    assert set(re.findall(r"`([^`]+)`", " ".join(rows))) - {"what"} == set(get_args(What))


def test_every_namespace_of_the_metadata_store_is_listed() -> None:
    found = set(re.findall(r'(?:_namespace = |return )f"([a-z]+)/\{(?:app|folder_name\(app, timeline\))\}"', source()))
    found |= set(re.findall(r'^(?:NAMESPACE|SPACE) = "([a-z]+)"', source(), flags=re.M))
    section = text("docs/formats.md").partition("## The metadata store")[2].partition("\n## ")[0]
    assert {one.removesuffix("/<app>") for one in re.findall(r"^\| `([^`]+)`", section, flags=re.M)} == found
    assert len(found) > 6


LISTS: Sequence[tuple[str, str, Collection[str]]] = [
    ("docs/changing-an-app.md", "^\\| {} \\|", [verdict.value for verdict in Verdict]),
    ("docs/dataframes.md", "`{}`|\\| {},", READING),
    ("docs/dataframes-writing.md", "`{}`|\\| {},", WRITING),
    ("docs/deploying.md", "`{}`", set(get_args(AppState)) - {"starting", "running", "draining", "unreachable"}),
    ("docs/errors-and-policies.md", '^\\| `"{}"`', get_args(OnError)),
    ("docs/files.md", '^\\| `"{}"`', get_args(NewFiles)),
    ("docs/formats.md", "`{}`", dtypes._SHORT),
    ("docs/kafka.md", '`"{}"`', get_args(KafkaColumn)),
    ("docs/kinesis.md", '`"{}"`', RECORD_COLUMNS),
    ("docs/kinesis.md", '"{}"', get_args(LeaseAhead)),
    ("docs/plug-ins.md", "`headrace.{}`", ["systems", "row_systems", "io", "formats", "metadata"]),
    ("docs/startpoints.md", "^\\| {}|, {} \\|", get_args(State)),
    ("docs/windows.md", "`hr.triggers.{}\\(", set(hr.triggers.__all__) - {"Trigger"}),
    ("docs/windows.md", "{}(?:\\(|`)", set(hr.aggregates.__all__) - {"Aggregate"}),
]
"""A page, how an entry of a list or a table looks there, and all entries that there are."""


@pytest.mark.parametrize(("page", "looks", "entries"), LISTS)
def test_a_list_is_whole(page: str, looks: str, entries: Collection[str]) -> None:
    missing = [one for one in entries if not re.search(looks.replace("{}", re.escape(one)), text(page), flags=re.M)]
    assert missing == []


def test_kinds_of_frames_have_their_numbers() -> None:
    rows = re.findall(r"^\| (\d+(?:, \d+)*) \| ([a-z ,]+) \|", text("docs/formats.md"), flags=re.M)
    shown = {
        kind: int(n) for numbers, kinds in rows for n, kind in zip(numbers.split(", "), kinds.split(", "), strict=True)
    }
    named = {"end of stream": Kind.END_OF_STREAM} | {kind.name.lower(): kind for kind in Kind if "_" not in kind.name}
    assert shown == named


# -- what the program says

SHOWN = [
    ("docs/calls-and-remote-tables.md", "waiting for calls:"),
    ("docs/changing-an-app.md", "undo the change"),
    ("docs/changing-an-app.md", "or accept the loss:"),
    ("docs/changing-an-app.md", "doesn't match its kept state"),
    (
        "docs/errors-and-policies.md",
        "fix the code that ends the process; a function that can't continue should raise an error",
    ),
    ("docs/errors-and-policies.md", "times in a row, without a commit in between"),
    ("docs/errors-and-policies.md", "did you mean"),
    (
        "docs/kinesis.md",
        "stop that application, or name another table; two applications on one table process each record twice",
    ),
    ("docs/kinesis.md", "which is alive"),
    ("docs/logging.md", "rebuilding it"),
    ("docs/logging.md", "has replaced attempt"),
    ("docs/savepoints.md", "as before the restore of savepoint"),
    ("docs/schema-registry.md", "can't be read as the columns of the input"),
    ("docs/schema-registry.md", "no header of a schema registry: it begins with 0x"),
    ("docs/tables.md", "reading its side inputs:"),
    ("docs/tables.md", "% are read"),
    ("docs/waiting.md", "waiting for a watermark of"),
    ("docs/waiting.md", "no newer message has arrived"),
    ("docs/waiting.md", "wait: it counts as idle after"),
    ("docs/waiting.md", "waiting for the end of"),
    ("docs/waiting.md", "make the function"),
]
"""A page, and words of the program that it shows."""


@pytest.mark.parametrize(("page", "words"), SHOWN)
def test_words_of_the_program_are_its_own(page: str, words: str) -> None:
    assert words in " ".join(text(page).split())
    assert words in source()
