"""Runs without Spark are found like all others: by status, by table, and by a second run, which is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import pytest
from running_shop import SINCE, Shop

import headrace as hr
from headrace.coordinator import publication
from headrace.coordinator.publication import SPACE, all_running
from headrace.core.errors import FencedError, UnavailableError, UsageError
from headrace.life.metadata import FILE, SqliteMetadata
from running_apps import find_all

Cli = Callable[..., Any]


def test_a_local_run_shows_and_a_second_one_is_refused(cli: Cli, home: Path) -> None:
    shop = Shop(home)
    with shop.running():
        (status,) = cli("status", "shop", "--json").json()
        assert status["state"] == "running"
        assert [container["state"] for container in status["containers"]] == ["running"]
        with pytest.raises(UsageError, match="app 'shop' is already running with all stages"):
            shop.app.run(local=True, progress=False)
        assert cli("status", "shop").code == 0
    ended = cli("status", "shop")
    assert (ended.code, ended.out.startswith("shop  drained  ")) == (0, True)
    assert find_all(home) == []
    with shop.running():
        assert cli("status", "shop").code == 0
    shop.close()


def test_a_run_listens_where_the_environment_says(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LISTEN", "127.0.0.2")
    shop = Shop(home)
    with shop.running():
        (address,) = find_all(home)
        assert urlsplit(address.url).hostname == "127.0.0.2"
        assert cli("status", "shop", "--json").json()[0]["state"] == "running"
    monkeypatch.setenv("HEADRACE_ADVERTISE", "no/address")
    with pytest.raises(UsageError, match="advertise 'no/address' is neither HOST nor HOST:PORT"):
        shop.app.run(local=True, progress=False)
    shop.close()


def test_rows_show_when_their_version_is_committed(home: Path) -> None:
    shop = Shop(home, interval="36500d")  # only a drain commits
    articles = ["lamp", "desk", "sofa"]
    seen: list[int] = []
    for number, article in enumerate(articles):
        with shop.running(), hr.tables.open_table("shop", "prices", home=home, timeout="30s") as prices:
            assert sorted(prices.scan().get_column("article")) == sorted(articles[:number])
            seen.append(max(-1 if version is None else version for version in prices.versions.values()))
            shop.price(**{article: "1.00"})
            shop.until(lambda n=number: tables_rows(shop) == n + 1)
            assert prices.get(article) is None
    assert seen[0] < seen[1] < seen[2]
    shop.close()


def tables_rows(shop: Shop) -> int:
    """How many rows the run has put into the table of prices, committed or not."""
    status = shop.status()
    assert status is not None
    return sum(task.counters.get("rows_of_prices", 0) for task in status.tasks)


def test_what_python_reads_has_its_types(home: Path) -> None:
    shop = Shop(home)
    shop.price(lamp="20.50", desk="90.00")
    shop.put(("cellar", 1, 10))
    shop.put(("cellar", 1, 11))
    shop.put(("attic", 1, 7))
    with shop.running():
        shop.until_committed("prices", 2)
        shop.until_committed("stock", 2)
        with hr.tables.open_table("shop", "prices", home=home) as prices:
            row = prices.get("lamp")
            assert row is not None
            assert (str(row["euros"]), row["since"], row["picture"]) == ("20.50", SINCE, b"\x00\xff")
            assert prices.get("sofa") is None
            assert prices.get_rows([("lamp",), ("sofa",), ("desk",)]).height == 2
            assert prices.scan(prefix="d").get_column("article").to_list() == ["desk"]
            assert (prices.partitions, list(prices.key), prices.scan().schema) == (2, ["article"], prices.columns)
            first = prices.scan(limit=1)
            assert prices.after is not None
            rest = prices.scan(limit=1, after=prices.after)
            assert sorted([first.item(0, 0), rest.item(0, 0)]) == ["desk", "lamp"]
            assert prices.after is None
            with pytest.raises(UsageError, match="7 can't be a value of column 'article'"):
                prices.get(7)
            with pytest.raises(UsageError, match="0 keys"):
                prices.get_rows([])
        with hr.tables.open_table("shop", "stock", home=home) as stock:
            assert stock.get("attic", 1) == {"place": "attic", "shelf": 1, "pieces": 7}
            assert stock.get_rows([("cellar", 1)]).get_column("pieces").to_list() == [11]
            assert stock.scan("cellar", limit=None).height == 1
    shop.close()


def test_a_reader_finds_the_app_again_after_a_restart(home: Path) -> None:
    shop = Shop(home)
    shop.price(lamp="20.50")
    with shop.running():
        shop.until_committed("prices", 1)
        prices = hr.tables.open_table("shop", "prices", home=home)
        assert prices.get("lamp") is not None
    with pytest.raises(UnavailableError):
        prices.get("lamp")
    with pytest.raises(UnavailableError, match="isn't running"):
        prices.scan()
    with shop.running():
        shop.until_committed("prices", 1)
        assert isinstance(prices.scan(), pl.DataFrame)
        assert prices.get("lamp") is not None
        prices.close()
    shop.close()


def fetch(keys: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """The function that reads a remote table."""
    return [None for _ in keys]


def test_where_tables_are_stored_and_which_cant_be_read(home: Path, cli: Cli) -> None:
    hr.streams.create_stream("changes", 1, {"article": pl.String}, home=home)
    shop = Shop(home)
    table = shop.app.table("quick", key="article", schema={"article": pl.String}, storage="memory")
    changes = shop.app.input("changes", {"article": pl.String})
    changes.send_to(table)
    columns = {"article": pl.String, "euros": pl.Float64}
    away = shop.app.table("away", key="article", schema=columns, remote=hr.tables.remote(fetch))
    changes.join(away).send_to(shop.app.output("priced"))
    with shop.running():
        missed = cli("table", "get", "shop", "quick", "lamp")
        assert (missed.code, "has no row of the key lamp" in missed.err) == (1, True)
        remote = cli("table", "scan", "shop", "away")
        assert remote.code == 2
        assert "table 'away' of app 'shop' is remote: the app doesn't keep its rows" in remote.err
        facts = {one["table"]: (one["storage"], one["rows"]) for one in cli("table", "list", "shop", "--json").json()}
        assert (facts["away"], facts["quick"], facts["prices"]) == (("remote", None), ("memory", 0), ("disk", 0))
    shop.close()


def test_a_run_that_was_replaced_ends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "TOUCH_S", 0.05)
    shop = Shop(home)
    with pytest.raises(AssertionError), shop.running(), closing(SqliteMetadata(home / FILE)) as metadata:
        while entry := next(iter(all_running(metadata)), None):  # as another run would, which has taken it for gone
            metadata.delete_if(SPACE, entry.key, entry.version)
        shop.until(lambda: bool(shop.errors))
    (error,) = shop.errors
    assert isinstance(error, FencedError)
    assert "another run of app 'shop' has replaced this one" in str(error)
    shop.close()
