"""The examples in the API's docstrings run, and print what they show."""

import doctest
import inspect
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr
from chaos.deployment import until
from headrace.api.app import Declarations
from headrace.core.errors import UnavailableError
from running_apps import find_all

MODULES = [
    "api.aggregates",
    "api.app",
    "api.composed",
    "api.descriptors",
    "api.draft",
    "api.flow",
    "api.remote",
    "api.stream",
    "api.tasks",
    "api.windows",
    "connectors.formats.descriptor",
    "connectors.kinesis.descriptor",
]

SPACES = (
    hr.aggregates,
    hr.calls,
    hr.io,
    hr.metrics,
    hr.streams,
    hr.tables,
    hr.triggers,
    hr.windows,
)
FUNCTIONS = [hr.count, hr.sum, hr.tumbling, hr.hopping, hr.session] + [
    one for space in SPACES for name in space.__all__ if inspect.isfunction(one := getattr(space, name))
]


def given() -> dict[str, Any]:
    """What every example may use without declaring it."""
    app = hr.App("examples")
    views = app.input(
        "page-views",
        {"member": pl.String, "url": pl.String, "ms": pl.Int64, "ts": pl.Datetime("ms")},
        event_time="ts",
    )
    return {"hr": hr, "pl": pl, "app": app, "views": views}


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [import_module(f"headrace.{name}") for name in MODULES]
    return [test for module in modules for test in finder.find(module) if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example(example: doctest.DocTest) -> None:
    example.globs = given()
    report: list[str] = []
    result = doctest.DocTestRunner().run(example, out=report.append, clear_globs=False)
    assert result.failed == 0, "".join(report)


def test_examples_of_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of a module run in order, because later ones use what earlier ones created."""
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(exclude_empty=True)
    found: dict[str, doctest.DocTest] = {}
    for public in (hr.streams.create_stream, hr.streams.StreamWriter, hr.streams.read_stream, hr.streams.StreamReader):
        found |= {test.name: test for test in finder.find(public) if test.examples}
    assert [*found] == ["create_stream", "StreamWriter", "read_stream", "StreamReader", "StreamReader.follow"]
    report: list[str] = []
    for example in found.values():
        example.globs = given()
        doctest.DocTestRunner().run(example, out=report.append)
    assert not report, "".join(report)


def test_examples_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that has ended."""
    monkeypatch.chdir(tmp_path)
    columns = {"article": pl.String, "euros": pl.Float64}
    hr.streams.create_stream("sales", 1, columns)
    with hr.streams.StreamWriter("sales") as writer:
        writer.write(pl.DataFrame({"article": ["lamp", "desk"], "euros": [20.0, 90.0]}))
        writer.seal()
    app = hr.App("shop")
    app.input("sales", columns).send_to(app.output("sold"))
    run = app.start(local=True, progress=False)
    run.wait(timeout="60s")
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in hr.runs.__all__ for test in finder.find(getattr(hr.runs, name), name) if test.examples]
    members = ("app", "drain", "metrics", "savepoint", "status", "stop", "wait")
    assert [test.name for test in found] == [
        *("Run", *(f"Run.{member}" for member in members), "RunStatus", "RunStatus.to_dict", "running"),
    ]
    report: list[str] = []
    for example in found:
        example.globs = given() | {"app": app, "run": run}
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append)
    assert not report, "".join(report)


def test_examples_of_startpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = hr.startpoints.__all__
    found = [test for name in names for test in finder.find(getattr(hr.startpoints, name), name) if test.examples]
    assert {test.name for test in found} == {
        *("CustomStartpoint", "ago", "at", "custom", "offset", "oldest", "open_startpoints", "upcoming"),
    }
    report: list[str] = []
    for example in found:
        example.globs = given()
        doctest.DocTestRunner().run(example, out=report.append)
    assert not report, "".join(report)


def test_examples_of_savepoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prices = {"article": pl.String, "euros": pl.Float64}
    hr.streams.create_stream("changes", 1, prices)
    app = hr.App("shop")
    app.input("changes", prices).send_to(app.table("prices", key="article"))
    hr.write_savepoint(app, "monday", {"prices": pl.DataFrame({"article": ["lamp", "desk"], "euros": [200.0, -9.0]})})
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [
        test for public in (hr.read_savepoint, hr.write_savepoint, hr.restore_savepoint) for test in finder.find(public)
    ]
    assert [test.name for test in found if test.examples] == ["read_savepoint", "write_savepoint", "restore_savepoint"]
    report: list[str] = []
    for example in found:
        example.globs = given() | {"app": app}
        doctest.DocTestRunner().run(example, out=report.append)
    assert not report, "".join(report)
    assert hr.read_savepoint(app, "repaired")["prices"].rows() == [("lamp", 200.0)]


def are_committed() -> bool:
    try:
        return hr.tables.open_table("shop", "prices").scan().height == 2
    except UnavailableError:
        return False  # it isn't running yet, or is restoring


def test_examples_of_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an app runs, as the page assumes."""
    monkeypatch.chdir(tmp_path)
    prices = {"article": pl.String, "euros": pl.Float64}
    hr.streams.create_stream("changes", 1, prices)
    with hr.streams.StreamWriter("changes") as writer:
        writer.write(pl.DataFrame({"article": ["lamp", "desk"], "euros": [20.0, 90.0]}))
    app = hr.App("shop", checkpoint_interval="100ms")
    app.input("changes", prices).send_to(app.table("prices", key="article"))
    running = threading.Thread(target=app.run, kwargs={"local": True, "progress": False})
    running.start()
    try:
        until(are_committed, "the app runs and has committed", 120)
        finder = doctest.DocTestFinder(exclude_empty=True)
        found = [
            test
            for public in (hr.tables.open_table, hr.tables.TableReader)
            for test in finder.find(public)
            if test.examples
        ]
        assert [test.name for test in found] == [
            *("open_table", "TableReader", "TableReader.get_rows", "TableReader.scan"),
        ]
        report: list[str] = []
        for example in found:
            example.globs = given()
            doctest.DocTestRunner().run(example, out=report.append)
        assert not report, "".join(report)
    finally:
        for address in find_all(Path(".headrace"), "shop"):
            client = address.client()
            client.drain()
            client.close()
        running.join(120)


@pytest.mark.parametrize(
    "public", [Declarations, hr.Stream, hr.windows.WindowedStream, *FUNCTIONS], ids=lambda p: p.__name__
)
def test_everything_public_has_an_example(public: Any) -> None:
    members = [public] if not isinstance(public, type) else [
        member for name, member in inspect.getmembers(public, callable) if not name.startswith("_")
    ]  # fmt: skip
    assert [m.__name__ for m in members if ">>>" not in (m.__doc__ or "")] == []
