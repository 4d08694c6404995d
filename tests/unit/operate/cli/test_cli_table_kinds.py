"""``headrace table`` for each kind of table and for stores of low-level tasks; what can't be queried is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from running_shop import RATES, Shop

import headrace as hr

Cli = Callable[..., Any]
VERSIONED = {**RATES, "ts": pl.Int64}


class Counted(hr.tasks.Task):
    """Where each currency was seen. Messages are partitioned by another column than its key."""

    seen = hr.tasks.Store(key={"currency": pl.String}, value={"n": pl.Int64, "partition": pl.Int64}, ttl="30d")

    def init(self, context: hr.tasks.TaskContext) -> None:
        self.partition = context.partition

    def process(self, message: Any, out: hr.tasks.Out) -> None:
        before = self.seen.get(message["currency"]) or {"n": 0}
        self.seen.put(message["currency"], {"n": before["n"] + 1, "partition": self.partition})


def nothing(keys: Any) -> list[Any]:
    del keys
    return []


class Kinds(Shop):
    """Rates in memory, with versions, with versions in memory, in a store; a remote table; a window."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.errors = []
        for name in ("rates-in", "sales"):
            hr.streams.create_stream(name, 2, VERSIONED, home=home)
        self.writers = {name: hr.streams.StreamWriter(name, home=home) for name in ("rates-in", "sales")}
        self.app = app = hr.App("shop", home=str(home), checkpoint_interval="200ms")
        rates = app.input("rates-in", VERSIONED, event_time="ts").partition_by("currency", id="by-currency")
        rates.send_to(app.table("fast", "currency", VERSIONED, storage="memory"))
        rates.send_to(app.table("past", "currency", VERSIONED, versions="1d"))
        rates.send_to(app.table("fast-past", "currency", VERSIONED, versions="1d", storage="memory"))
        rates.window(hr.tumbling("1s"), key="currency", id="per-second").agg(n=hr.count()).sink(_ignore)
        away = app.table("away", "currency", RATES, remote=hr.tables.remote(read=nothing))
        sales = app.input("sales", VERSIONED, event_time="ts")
        sales.join(away, how="left").sink(_ignore)
        sales.process(Counted(), id="counted")

    def write(self, stream: str, *rows: tuple[str, float, int]) -> None:
        self.writers[stream].write(pl.DataFrame(rows, VERSIONED, orient="row"))


def _ignore(rows: pl.DataFrame) -> None:
    del rows


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    shop = Kinds(tmp_path_factory.mktemp("kinds") / "home")
    shop.write("rates-in", ("CHF", 1.0, 1_000), ("CHF", 1.1, 2_000), ("USD", 0.9, 1_500))
    shop.write("sales", ("CHF", 1.0, 1), ("CHF", 1.0, 2), ("USD", 1.0, 1))
    shop.write("sales", ("USD", 1.0, 3))
    with shop.running():
        for table, rows in (("fast", 2), ("past", 2), ("fast-past", 2), ("counted.seen", 3)):
            shop.until_committed(table, rows)
        yield shop
    shop.close()


@pytest.fixture
def table(cli: Cli, shop: Kinds) -> Cli:
    return lambda verb, *words: cli("table", verb, "--home", shop.home, "shop", *words)


def found(outcome: Any) -> list[list[Any]]:
    assert outcome.code == 0, outcome.err
    return sorted([v for k, v in line.items() if not k.startswith("@")] for line in outcome.lines())


@pytest.mark.parametrize("name", ["fast", "past", "fast-past"])
def test_rows_are_those_of_a_table_on_disk(table: Cli, name: str) -> None:
    assert found(table("get", name, "CHF", "--json")) == [["CHF", 1.1, 2_000]]
    assert found(table("scan", name, "--json")) == [["CHF", 1.1, 2_000], ["USD", 0.9, 1_500]]
    assert found(table("scan", name, "--prefix", "U", "--json")) == [["USD", 0.9, 1_500]]
    assert table("get", name, "EUR").code == 1


@pytest.mark.parametrize("name", ["past", "fast-past"])
def test_rows_as_they_were_at_a_time(table: Cli, shop: Kinds, name: str) -> None:
    for at in ("1999", "1970-01-01T00:00:01.999", "1970-01-01T01:00:01.999+01:00"):
        assert found(table("get", name, "CHF", "--at", at, "--json")) == [["CHF", 1.0, 1_000]]
    assert found(table("scan", name, "--at", "1499", "--json")) == [["CHF", 1.0, 1_000]]
    early = table("get", name, "USD", "--at", "0")
    assert (early.code, early.out) == (1, "")
    assert f"table {name!r} had no row of the key USD" in early.err
    with hr.tables.open_table("shop", name, home=shop.home) as reader:
        assert reader.get("CHF", at=1_999) == {"currency": "CHF", "rate": 1.0, "ts": 1_000}
        assert reader.get("CHF", at=datetime(1970, 1, 1, 0, 0, 2)) == reader.get("CHF")
        assert reader.scan(at=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), limit=None)["rate"].to_list() == [1.0]
        assert reader.get_rows([("CHF",), ("USD",)], at=1_200)["currency"].to_list() == ["CHF"]
        with pytest.raises(hr.errors.UsageError, match="'soon' isn't a time"):
            reader.get("CHF", at="soon")  # type: ignore[arg-type]


def test_records_of_a_task_are_in_whichever_task_put_them(table: Cli, shop: Kinds) -> None:
    assert found(table("get", "counted.seen", "USD", "--json")) == [["USD", 1, 0], ["USD", 1, 1]]
    assert found(table("get", "counted.seen", "CHF", "--json")) == [["CHF", 2, 0]]
    with hr.tables.open_table("shop", "counted.seen", home=shop.home) as reader:
        assert reader.get("CHF") == {"currency": "CHF", "n": 2, "partition": 0}
        with pytest.raises(hr.errors.DataError, match=r"'counted.seen' has 2 rows of one key") as caught:
            reader.get("USD")
        assert "what its task writes isn't partitioned by the key" in (caught.value.hint or "")


def test_the_list_shows_kinds_and_sizes(table: Cli, shop: Kinds) -> None:
    shop.until(lambda: {one["table"]: one["rows"] for one in table("list", "--json").json()}["counted.seen"] == 3)
    listed = {one["table"]: one for one in table("list", "--json").json()}
    assert {name: one["rows"] for name, one in listed.items()} == {
        "away": None,
        "counted.seen": 3,
        "fast": 2,
        "fast-past": 3,
        "past": 3,
    }
    assert listed["past"]["versionsMs"] == 86_400_000
    assert listed["counted.seen"]["kind"] == "store"
    shown = table("list").out
    for words in (
        "remote",
        "store, ttl 30d",
        "local, in memory ",
        "local, in memory, versions 1d",
        "local, versions 1d",
    ):
        assert words in shown


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["get", "away", "CHF"], ["table 'away' of app 'shop' is remote: the app doesn't keep its rows"]),
        (["get", "per-second", "CHF"], ["'per-second' of app 'shop' is a window, not a table", "to a table"]),
        (["scan", "counted"], ["'counted' of app 'shop' is a low-level task", "query its stores: counted.seen"]),
        (["get", "seen", "CHF"], ["has no table 'seen'", "did you mean 'counted.seen'?"]),
        (["get", "fats", "CHF"], ["its tables: away, counted.seen, fast, fast-past, past", "did you mean 'fast'?"]),
        (["get", "fast", "CHF", "--at", "5"], ["table 'fast' keeps no versions", "versions="]),
        (["get", "counted.seen", "CHF", "--at", "5"], ["table 'counted.seen' keeps no versions"]),
        (["scan", "past", "--at", "soon"], ["--at 'soon' isn't a time", "2026-01-31T12:00:00+00:00"]),
        (["scan", "past", "--at", "9" * 20], ["isn't a time"]),
        (["get", "counted.seen", "CHF", "2"], ["the key of table 'counted.seen' is currency (String)"]),
    ],
)
def test_what_cant_be_asked_says_why(table: Cli, words: list[str], messages: list[str]) -> None:
    wrong = table(*words)
    assert (wrong.code, wrong.out) == (2, "")
    for text in messages:
        assert text in wrong.err


def test_an_app_of_nearly_that_name(cli: Cli, shop: Kinds) -> None:
    wrong = cli("table", "list", "shpo", "--home", shop.home)
    assert wrong.code == 1
    assert "did you mean 'shop'? Otherwise check its name" in wrong.err
