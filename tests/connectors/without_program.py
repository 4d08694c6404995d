"""Work in a process that can't import a connector, or several.

``python without_program.py each NAMES``: in a process for each, import all other modules, then plan and run a small app
in memory and over files. ``python without_program.py tests NAMES -- ARGUMENTS``: run tests without all of them.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

OF_OTHERS = (
    "pyarrow.parquet",
    "pandas",
    "pyspark.sql",
    "boto3",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "typer",
)


class Absent:
    """A finder that keeps a package from being found."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self.package or name.startswith(f"{self.package}."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def import_all(package: str) -> int:
    """Import all modules of Headrace that aren't in this package; return how many there are."""
    import headrace

    names = [found.name for found in pkgutil.walk_packages(headrace.__path__, "headrace.", onerror=lambda _: None)]
    others = [name for name in names if name != package and not name.startswith(f"{package}.")]
    for name in others:
        try:
            importlib.import_module(name)
        except ImportError as error:
            if (error.name or "").startswith("headrace"):  # a package of others may be missing
                raise
    return len(others)


def run_small_apps() -> None:
    """Count by key, in memory and from files to files."""
    import polars as pl

    import headrace as hr

    views = pl.DataFrame({"member": ["ann", "bob", "ann"], "ts": [1_000, 2_000, 3_000]})

    def declared(home: str, source: object = None, sink: object = None) -> hr.App:
        app = hr.App("small", home=home)
        rows = app.input("views", {"member": pl.String, "ts": pl.Int64}, event_time="ts", system=source)  # type: ignore[arg-type]
        counts = rows.partition_by("member", id="by-member").window(hr.tumbling("10s"), key="member", id="counted")
        counts.agg(n=pl.len()).select("member", "n").send_to(app.output("counts", system=sink))  # type: ignore[arg-type]
        return app

    def counted(rows: pl.DataFrame) -> list[tuple[object, ...]]:
        return sorted(rows.select("member", "n").rows())

    with TemporaryDirectory() as folder:
        with declared(folder).test() as t:
            t.feed("views", views)
            t.end()
            assert counted(t.read("counts")) == [("ann", 2), ("bob", 1)]
        Path(folder, "in").mkdir()
        views.write_parquet(f"{folder}/in/1.parquet")
        source, sink = hr.io.files(f"{folder}/in/*.parquet"), hr.io.files(f"{folder}/out", format="jsonl")
        app = declared(f"{folder}/home", source, sink)
        assert app.plan().stages
        app.run(local=True, progress=False)
        assert counted(pl.read_ndjson(sorted(Path(folder, "out").glob("*.jsonl")))) == [("ann", 2), ("bob", 1)]


def leave_out(*connectors: str) -> None:
    sys.meta_path[:0] = [Absent(f"headrace.connectors.{name}") for name in connectors]  # type: ignore[list-item]


def do_without(connector: str) -> None:
    """Do all of it in this process."""
    package = f"headrace.connectors.{connector}"
    leave_out(connector)
    modules = import_all(package)
    run_small_apps()
    assert not any(name.startswith(package) for name in sys.modules)
    print(f"{modules} modules and two apps do without {package}", flush=True)


def do_without_each(connectors: list[str]) -> int:
    """Fork a process for each. What others have written is imported once, before: most of the time goes there."""
    for name in OF_OTHERS:
        with suppress(ImportError):
            importlib.import_module(name)
    assert not any(name.partition(".")[0] == "headrace" for name in sys.modules)
    codes = []
    for connector in connectors:
        child = os.fork()
        if child == 0:
            try:
                do_without(connector)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return max(codes)


def main() -> int:
    """Do what is asked."""
    what, *names = sys.argv[1:]
    if what == "each":
        return do_without_each(names)
    import pytest

    end = names.index("--")
    leave_out(*names[:end])
    return int(pytest.main(names[end + 1 :]))


if __name__ == "__main__":
    sys.exit(main())
