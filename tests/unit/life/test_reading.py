"""``hr.read_savepoint``: tables, windows that are open, and the stores of low-level tasks, of all tasks together."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from bank import Bank, balances_of

import headrace as hr
from headrace.core.errors import DeclarationError, UsageError


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    bank = Bank(tmp_path)
    bank.pay(ann=5, bob=7, cid=9, dan=1)
    bank.pay(ann=6)
    bank.run_until({"ann": 6, "bob": 7, "cid": 9, "dan": 1}, savepoint="one")
    return bank


def test_a_savepoint_is_read_as_dataframes(bank: Bank) -> None:
    saved = hr.read_savepoint(bank.app, "one")
    assert (saved.app, saved.name) == ("bank", "one")
    assert saved.version > 0
    assert balances_of(saved["accounts"]) == {"ann": 6, "bob": 7, "cid": 9, "dan": 1}
    assert saved["accounts"].schema == {"account": pl.String, "euros": pl.Int64}
    assert sorted(saved["visits.seen"].select("account", "n").rows()) == [
        ("ann", 2),
        ("bob", 1),
        ("cid", 1),
        ("dan", 1),
    ]
    totals = saved["per-10s"]
    assert sorted(totals.select("account", "euros").rows()) == [("ann", 11), ("bob", 7), ("cid", 9), ("dan", 1)]
    assert set(totals["window_start"]) == {datetime(1970, 1, 1)}


def test_reading_changes_nothing(bank: Bank) -> None:
    before = hr.read_savepoint(bank.app, "one")
    bank.pay(ann=8)
    bank.run_until({"ann": 8, "bob": 7, "cid": 9, "dan": 1})
    after = hr.read_savepoint(bank.app, "one")
    assert before["accounts"].sort("account").equals(after["accounts"].sort("account"))


def test_wrong_names_are_refused(bank: Bank) -> None:
    saved = hr.read_savepoint(bank.app, "one")
    with pytest.raises(UsageError, match="'one' of app 'bank' has no state of 'account'") as refused:
        saved["account"]
    assert "accounts, per-10s, visits.seen" in str(refused.value)
    with pytest.raises(UsageError, match="app 'bank' has no savepoint 'two'"):
        hr.read_savepoint(bank.app, "two")
    with pytest.raises(DeclarationError, match="not a usable id"):
        hr.read_savepoint(bank.app, "../one")
