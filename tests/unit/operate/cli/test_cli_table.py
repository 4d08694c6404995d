"""``headrace table`` while an app runs: what it shows, and the error for each mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from running_shop import Shop

from headrace.coordinator.publication import publish
from headrace.life.metadata import FILE, SqliteMetadata

Cli = Callable[..., Any]
PRICES_COLUMNS = {
    "article": "lamp",
    "euros": "20.50",
    "since": "2026-01-31T12:00:00.000000+00:00",
    "picture": "AP8=",
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("shop") / "home")
    shop.price(**{"lamp": "20.50", "desk": "90.00", "a chair": "15.25"})
    shop.put(("cellar", 1, 10), ("cellar", -2, 5), ("cellar", 30, 1), ("attic", 1, 7))
    shop.rate(CHF=1.05, USD=0.9)
    with shop.running():
        shop.until_committed("prices", 3)
        shop.until_committed("stock", 4)
        shop.until_committed("rates", 2)
        yield shop
    shop.close()


@pytest.fixture
def table(cli: Cli, shop: Shop) -> Cli:
    """``headrace table VERB shop ...`` in the home folder of the shop."""
    return lambda verb, *words: cli("table", verb, "--home", shop.home, "shop", *words)


def rows(outcome: Any) -> list[Any]:
    return [{k: v for k, v in line.items() if not k.startswith("@")} for line in outcome.lines()]


# -- list


def test_the_tables_there_are(table: Cli, shop: Shop) -> None:
    shop.until(lambda: [one["rows"] for one in table("list", "--json").json()] == [3, 2, 4])
    prices, rates, stock = table("list", "--json").json()
    assert (prices["table"], prices["key"], prices["partitions"], prices["stage"]) == (
        *("prices", {"article": "String"}, 2, "by-article"),
    )
    assert (rates["kind"], rates["partitions"], stock["key"]) == ("global", 2, {"place": "String", "shelf": "Int64"})
    shown = table("list")
    assert shown.code == 0
    assert shown.out.splitlines()[0].split() == [
        *("table", "kind", "key", "stage", "partitions", "rows", "other", "columns"),
    ]
    assert "place: String, shelf: Int64" in shown.out


# -- get


def test_get_shows_the_row_and_its_version(table: Cli) -> None:
    found = table("get", "prices", "lamp", "--json")
    assert found.code == 0, found.err
    (line,) = found.lines()
    assert line.pop("@task") in ("by-article/0", "by-article/1")
    assert line.pop("@version") > 0
    assert line == PRICES_COLUMNS
    shown = table("get", "prices", "a chair")
    assert shown.code == 0
    assert shown.out.splitlines()[0].split() == ["article", "euros", "since", "picture"]
    assert "a chair" in shown.out
    assert "15.25" in shown.out
    assert shown.err.startswith("1 row of by-article/")
    assert " at version " in shown.err


def test_a_key_of_two_columns_of_which_one_is_negative(table: Cli) -> None:
    assert rows(table("get", "stock", "cellar", "30", "--json")) == [{"place": "cellar", "shelf": 30, "pieces": 1}]
    negative = table("get", "stock", "--json", "cellar", "--", "-2")
    assert rows(negative) == [{"place": "cellar", "shelf": -2, "pieces": 5}]


def test_a_global_table_answers_once(table: Cli) -> None:
    assert rows(table("get", "rates", "CHF", "--json")) == [{"currency": "CHF", "rate": 1.05}]
    assert len(rows(table("scan", "rates", "--json"))) == 2


def test_a_key_that_isnt_there(table: Cli) -> None:
    missing = table("get", "prices", "sofa")
    assert (missing.code, missing.out) == (1, "")
    assert "table 'prices' has no row of the key sofa" in missing.err
    assert "0 rows of by-article/" in missing.err
    assert table("get", "prices", "sofa", "--json").out == ""


# -- scan


def test_scan_goes_by_task_and_key(table: Cli) -> None:
    lines = table("scan", "stock", "--json").lines()
    assert len(lines) == 4
    by_task: dict[str, list[tuple[str, int]]] = {}
    for line in lines:
        by_task.setdefault(line["@task"], []).append((line["place"], line["shelf"]))
    assert list(by_task) == sorted(by_task)
    assert all(keys == sorted(keys) for keys in by_task.values())
    shown = table("scan", "stock")
    assert shown.err.startswith("4 rows of ")
    assert len(shown.out.splitlines()) == 6


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["attic"], [("attic", 1)]),
        (["cellar"], [("cellar", -2), ("cellar", 1), ("cellar", 30)]),
        (["cellar", "--from", "1"], [("cellar", 1), ("cellar", 30)]),
        (["cellar", "--from=-2", "--to", "30"], [("cellar", -2), ("cellar", 1)]),
        (["--prefix", "at"], [("attic", 1)]),
        (["--from", "b"], [("cellar", -2), ("cellar", 1), ("cellar", 30)]),
        (["--to", "b"], [("attic", 1)]),
        (["cellar", "1"], [("cellar", 1)]),
    ],
)
def test_scan_within_bounds(table: Cli, words: list[str], keys: list[tuple[str, int]]) -> None:
    found = table("scan", "stock", *words, "--json")
    assert found.code == 0, found.err
    assert sorted((line["place"], line["shelf"]) for line in found.lines()) == keys


def test_pages(table: Cli) -> None:
    seen: list[Any] = []
    words: list[str] = []
    for _ in range(4):
        lines = table("scan", "stock", "--limit", "1", "--json", *words).lines()
        seen.append((lines[0]["place"], lines[0]["shelf"]))
        words = ["--after", lines[1]["@after"]] if len(lines) == 2 else []
    assert (sorted(seen), words) == ([("attic", 1), ("cellar", -2), ("cellar", 1), ("cellar", 30)], [])
    first = table("scan", "stock", "--limit", "3")
    assert "for the next rows, add --after " in first.err
    rest = table("scan", "stock", "--after", first.err.split()[-1])
    assert rest.err.startswith("1 row of ")


def test_one_partition(table: Cli) -> None:
    tasks = [{line["@task"] for line in table("scan", "prices", "--partition", n, "--json").lines()} for n in (0, 1)]
    assert tasks[0] <= {"by-article/0"}
    assert tasks[1] <= {"by-article/1"}
    assert tasks[0] | tasks[1]


# -- mistakes


def test_no_such_app(cli: Cli, shop: Shop) -> None:
    unknown = cli("table", "get", "store", "prices", "x", "--home", shop.home)
    assert (unknown.code, unknown.out) == (1, "")
    assert f"no app 'store' has ever run in {shop.home}; running there: shop" in unknown.err


def test_the_app_doesnt_run(cli: Cli, home: Path) -> None:
    with closing(SqliteMetadata(home / FILE)) as metadata:
        publish(metadata, "shop", "http://127.0.0.1:1", "x", stages=["a"], all_stages=True, started_at=1).close()
    for words in (["list", "shop"], ["get", "shop", "prices", "x"], ["scan", "shop", "prices"]):
        gone = cli("table", *words)
        assert gone.code == 1
        assert f"app 'shop' isn't running in {home}; running there: nothing" in gone.err
        assert "start it with headrace run" in gone.err


@pytest.mark.parametrize(
    ("words", "code", "messages"),
    [
        (
            ["get", "price", "x"],
            2,
            ["has no table 'price'; its tables: prices, rates, stock", "did you mean 'prices'?"],
        ),
        (["get", "prices", "x", "y"], 2, ["got 2 values, but the key of table 'prices' is article (String)"]),
        (["get", "stock", "cellar"], 2, ["the key of table 'stock' is place (String), shelf (Int64); 1 values"]),
        (
            ["get", "stock", "cellar", "one"],
            2,
            ["'one' isn't a value for column 'shelf' of table 'stock', whose type is Int64"],
        ),
        (["get", "stock", "cellar", "1.5"], 2, ["'1.5' isn't a value for column 'shelf'"]),
        (["scan", "stock", "a", "1", "--from", "2"], 2, ["got 3 values"]),
        (["scan", "stock", "cellar", "--prefix", "1"], 2, ["only text and binary have prefixes", "use from and to"]),
        (["scan", "stock", "--limit", "0"], 2, ["can't return 0 rows at once", "1 to 10000 rows"]),
        (["scan", "stock", "--limit", "10001"], 2, ["1 to 10000 rows"]),
        (["scan", "stock", "--partition", "7"], 2, ["no partition 7; its partitions are 0 to 1"]),
        (["scan", "stock", "--after", "here"], 2, ["'here' isn't the end of a page"]),
        (["scan", "stock", "--timeout", "31s"], 2, ["a timeout of '31s'", "at most 30 s"]),
        (["get", "prices"], 2, ["Missing argument 'KEY'"]),
    ],
)
def test_wrong_usage(table: Cli, words: list[str], code: int, messages: list[str]) -> None:
    wrong = table(*words)
    assert (wrong.code, wrong.out) == (code, "")
    for text in messages:
        assert text in wrong.err


def test_a_stage_that_isnt_deployed_here(cli: Cli, tmp_path: Path) -> None:
    shop = Shop(tmp_path / "parts")
    with shop.running("by-article"):
        away = cli("table", "get", "shop", "stock", "cellar", "1", "--home", shop.home)
        assert away.code == 1
        assert "is kept by stage stock-in, which isn't running in" in away.err
        listed = cli("table", "list", "shop", "--home", shop.home, "--json").json()
        assert {one["table"]: one["running"] for one in listed} == {"prices": True, "rates": False, "stock": False}
        assert {one["table"]: one["rows"] for one in listed}["stock"] is None
    shop.close()


def test_the_help_says_how(cli: Cli) -> None:
    for verb in ("list", "get", "scan"):
        shown = cli("table", verb, "--help")
        assert shown.code == 0
        assert "running app" in shown.out
    assert "running app" in cli("table", "--help").out
