"""Work in a process that can't import a connector: ``python without_program.py NAME [ARGUMENTS OF PYTEST]``.

It imports all other modules, plans and runs a small app in memory and over files, and then runs tests.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


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


def main() -> int:
    """Do all of it."""
    connector, *arguments = sys.argv[1:]
    package = f"headrace.connectors.{connector}"
    sys.meta_path.insert(0, Absent(package))  # type: ignore[arg-type]
    modules = import_all(package)
    run_small_apps()
    assert not any(name.startswith(package) for name in sys.modules)
    print(f"{modules} modules and two apps do without {package}", flush=True)
    if not arguments:
        return 0
    import pytest

    return int(pytest.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
