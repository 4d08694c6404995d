"""``hr.write_savepoint``: a first load of tables, and the repair of some. Both are restored, and the app runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from bank import ACCOUNTS, PAYMENTS, Bank, balances_of

import headrace as hr
from headrace.core.errors import DeclarationError, PlanError, UsageError
from headrace.life.folder import Shelf, verify
from headrace.life.metadata import open_metadata
from headrace.operate.cli.main import main
from headrace.rows.hashing import partition_of
from headrace.run.savepoints import writing
from headrace.run.savepoints.restoring import Restoring, restore

LOADED = {f"a{n}": n for n in range(40)}


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path)


def frame(balances: Mapping[str, int]) -> pl.DataFrame:
    return pl.DataFrame({"account": list(balances), "euros": list(balances.values())}, schema=ACCOUNTS)


def restored(bank: Bank, name: str, **partitions: int) -> None:
    metadata = open_metadata(bank.home)
    try:
        given = {"by-account": partitions["tasks"]} if partitions else {}
        restore(Restoring(home=bank.home, app="bank", metadata=metadata, name=name, partitions=given))
    finally:
        metadata.close()


# -- a first load -----------------------------------------------------------------------------------------


def test_an_app_that_never_ran_begins_with_what_is_loaded(bank: Bank) -> None:
    bank.pay(a1=100, new=5)
    hr.write_savepoint(bank.app, "first", {"accounts": frame(LOADED)})
    restored(bank, "first")
    bank.run_until({**LOADED, "a1": 100, "new": 5}, savepoint="then")
    assert bank.changes() == [("a1", 100, 1), ("new", 5, None)]
    assert hr.read_savepoint(bank.app, "then")["visits.seen"].height == 2


def test_commands_know_that_it_was_written(bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    hr.write_savepoint(bank.app, "first", {"accounts": frame(LOADED)})
    where = ["--home", str(bank.home)]
    assert main(["savepoint", "show", "bank", "first", "--check", *where]) == 0
    assert ", written 20" in capsys.readouterr().out
    assert main(["savepoint", "restore", "bank", "first", "--quiet", *where]) == 0
    assert capsys.readouterr().out == "bank begins timeline 2 with savepoint first\n"


def test_rows_are_dealt_as_a_shuffle_would(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROWS_AT_ONCE", 3)
    hr.write_savepoint(bank.app, "first", {"accounts": frame(LOADED)})
    folder = Shelf(bank.home, "bank").path("first")
    found = hr.read_savepoint(bank.app, "first")["accounts"]
    # Tasks are read in order, so the rows of each partition follow those of the one before.
    assert partition_of(found, ["account"], 3).tolist() == sorted(partition_of(frame(LOADED), ["account"], 3).tolist())
    assert balances_of(found) == LOADED
    manifest = Shelf(bank.home, "bank").manifest("first")
    verify(folder, manifest)
    assert manifest.written
    assert {copy.ended for copy in manifest.tasks} == {False}


def test_what_is_loaded_can_be_rescaled(bank: Bank) -> None:
    hr.write_savepoint(bank.app, "first", {"accounts": frame(LOADED)})
    restored(bank, "first", tasks=5)
    bank = Bank(bank.home, partitions=5)
    bank.pay(a7=70)
    bank.run_until({**LOADED, "a7": 70})
    assert bank.changes() == [("a7", 70, 7)]


def test_an_app_that_has_run_begins_again_with_what_is_loaded(bank: Bank) -> None:
    bank.pay(ann=5)
    bank.run_until({"ann": 5})
    hr.write_savepoint(bank.app, "again", {"accounts": frame({"ann": 1, "bob": 2})})
    restored(bank, "again")
    bank.run_until({"ann": 5, "bob": 2})
    assert bank.changes() == [("ann", 5, 1), ("ann", 5, None)]


@dataclass
class Account:
    account: str
    euros: int


def test_rows_are_given_in_many_ways(bank: Bank) -> None:
    hr.write_savepoint(
        bank.app, "dicts", {"accounts": [{"account": "ann", "euros": 1}, {"account": "ann", "euros": 2}]}
    )
    hr.write_savepoint(bank.app, "objects", {"accounts": [Account("ann", 3)]})
    hr.write_savepoint(bank.app, "cast", {"accounts": frame({"ann": 4}).cast({"euros": pl.Int16})})
    hr.write_savepoint(bank.app, "empty", {"accounts": frame({})})
    found = [balances_of(hr.read_savepoint(bank.app, name)["accounts"]) for name in ("dicts", "objects", "cast")]
    assert found == [{"ann": 2}, {"ann": 3}, {"ann": 4}]
    assert hr.read_savepoint(bank.app, "empty").tables == {}


# -- a repair ---------------------------------------------------------------------------------------------


def test_a_repair_replaces_a_table_and_keeps_all_else(bank: Bank) -> None:
    bank.pay(ann=5, bob=-7, cid=9)
    bank.run_until({"ann": 5, "bob": -7, "cid": 9}, savepoint="broken")
    broken = hr.read_savepoint(bank.app, "broken")
    hr.write_savepoint(bank.app, "right", {"accounts": broken["accounts"].filter(pl.col("euros") > 0)}, base="broken")
    right = hr.read_savepoint(bank.app, "right")
    assert right.version == broken.version
    assert balances_of(right["accounts"]) == {"ann": 5, "cid": 9}
    assert right["visits.seen"].equals(broken["visits.seen"])
    assert right["per-10s"].equals(broken["per-10s"])
    assert balances_of(hr.read_savepoint(bank.app, "broken")["accounts"]) == {"ann": 5, "bob": -7, "cid": 9}
    Shelf(bank.home, "bank").delete("broken")
    restored(bank, "right")
    bank.pay(bob=1, ann=6)
    bank.run_until({"ann": 6, "bob": 1, "cid": 9}, savepoint="then")
    assert bank.changes() == [("ann", 5, None), ("ann", 6, 5), ("bob", -7, None), ("bob", 1, None), ("cid", 9, None)]
    assert sorted(hr.read_savepoint(bank.app, "then")["visits.seen"].select("account", "n").rows()) == [
        ("ann", 2),
        ("bob", 2),
        ("cid", 1),
    ]


def test_a_repair_that_does_not_fit_its_base_is_refused(bank: Bank) -> None:
    bank.pay(ann=5)
    bank.run_until({"ann": 5}, savepoint="one")
    other = Bank(bank.home, partitions=4)
    with pytest.raises(PlanError, match="by-account"):
        hr.write_savepoint(other.app, "two", {"accounts": frame({})}, base="one")
    assert Shelf(bank.home, "bank").names() == ["one"]


# -- kinds of tables --------------------------------------------------------------------------------------


def kinds(home: Path, **table: Any) -> hr.App:
    app = hr.App("kinds", home=str(home))
    hr.streams.create_stream("payments", 2, PAYMENTS, home=home)
    payments = app.input("payments", PAYMENTS, event_time="ts")
    kept = app.table("kept", key="account", schema=PAYMENTS, **table)
    payments.partition_by("account", id="by-account").send_to(kept)
    return app


@pytest.mark.parametrize(
    "table",
    [{"storage": "memory"}, {"ttl": "1h"}, {"versions": "1d"}, {"versions": "1d", "storage": "memory"}],
    ids=str,
)
def test_every_kind_of_table_is_written(tmp_path: Path, table: dict[str, Any]) -> None:
    app = kinds(tmp_path, **table)
    rows = pl.DataFrame({"account": ["ann", "bob"], "euros": [1, 2], "ts": [0, 0]}).cast(PAYMENTS)  # type: ignore[arg-type]
    hr.write_savepoint(app, "one", {"kept": rows})
    assert hr.read_savepoint(app, "one")["kept"].select(rows.columns).sort("account").equals(rows)
    hr.write_savepoint(app, "two", {"kept": rows.head(1)}, base="one")
    assert hr.read_savepoint(app, "two")["kept"].select(rows.columns).equals(rows.head(1))


def test_each_task_gets_all_rows_of_a_global_table(tmp_path: Path) -> None:
    hr.streams.create_stream("payments", 2, PAYMENTS, home=tmp_path)
    app = hr.App("kinds", home=str(tmp_path))
    kept = app.table("kept", key="account", schema=ACCOUNTS, kind="global")
    payments = app.input("payments", PAYMENTS)
    payments.select("account", "euros").broadcast(id="to-all").send_to(kept)
    payments.join(kept, how="left", id="before").send_to(app.output("changes"))
    hr.write_savepoint(app, "one", {"kept": frame({"ann": 1})})
    assert hr.read_savepoint(app, "one")["kept"].rows() == [("ann", 1)] * 2


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({}, "doesn't name a table"),
        ([1], "doesn't name a table"),
        ({"acounts": frame({})}, "'acounts' is not a table of the app"),
        ({"per-10s": frame({})}, "'per-10s' is state of a step"),
        ({"accounts": frame({}).drop("euros")}, r"column 'euros' \(Int64\) is missing"),
        ({"accounts": frame({}).with_columns(x=1)}, "has no column 'x'"),
        ({"accounts": pl.DataFrame({"account": ["a"], "euros": ["many"]})}, "'euros' should be Int64"),
        ({"accounts": pl.DataFrame({"account": ["a", None], "euros": [1, 2]})}, "no key in 1 of 2: 'account' is null"),
        ({"accounts": 7}, "rows must be a DataFrame"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_bad_rows_are_refused(bank: Bank, tables: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        hr.write_savepoint(bank.app, "one", tables)
    assert refused.value.hint
    assert Shelf(bank.home, "bank").names() == []


def test_bad_names_are_refused(bank: Bank) -> None:
    rows = {"accounts": frame({"ann": 1})}
    hr.write_savepoint(bank.app, "one", rows)
    with pytest.raises(UsageError, match="has a savepoint 'one' already"):
        hr.write_savepoint(bank.app, "one", rows)
    with pytest.raises(UsageError, match="no savepoint 'none'"):
        hr.write_savepoint(bank.app, "two", rows, base="none")
    with pytest.raises(DeclarationError, match="not a usable id"):
        hr.write_savepoint(bank.app, "a/b", rows)


def test_tables_that_others_fill_are_refused(tmp_path: Path) -> None:
    for stream in ("rates", "payments"):
        hr.streams.create_stream(stream, 2, PAYMENTS, home=tmp_path)
    app = hr.App("kinds", home=str(tmp_path))
    copied = app.table("copied", key="account", side_inputs=app.input("rates", PAYMENTS), kind="global")
    remote = app.table("remote", key="account", schema=ACCOUNTS, remote=hr.tables.remote(read=lambda keys: keys))
    direct = app.table("direct", key="account", schema=PAYMENTS)
    payments = app.input("payments", PAYMENTS, key="account")
    payments.send_to(direct)
    payments.join(copied, id="one", suffix="_1").join(remote, id="two", suffix="_2").send_to(app.output("out"))
    for table, why in (
        ("copied", "is a copy of side input 'rates'"),
        ("remote", "is remote"),
        ("direct", "it isn't known which of its 2 tasks keeps a row: its messages come from 'payments'"),
    ):
        rows = pl.DataFrame(schema=PAYMENTS)
        with pytest.raises(UsageError, match=why):
            hr.write_savepoint(app, "one", {table: rows})
    assert Shelf(tmp_path, "kinds").names() == []


@pytest.mark.parametrize(("setting", "why"), [("guarantee", "at_least_once"), ("grouping", "container")])
def test_settings_without_savepoints_are_refused(tmp_path: Path, setting: str, why: str) -> None:
    app = hr.App("bank", home=str(tmp_path), **{setting: why})  # type: ignore[arg-type]
    app.input("payments", PAYMENTS).send_to(app.table("accounts", key="account"))
    with pytest.raises(UsageError, match=why):
        hr.write_savepoint(app, "one", {"accounts": frame({})})
