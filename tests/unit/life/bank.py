"""A bank that runs in this process: accounts in a table, totals by window, and a low-level task with a store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr
from headrace.core.errors import HeadraceError
from running_apps import find_all

PAYMENTS = {"account": pl.String, "euros": pl.Int64, "ts": pl.Datetime("ms")}
ACCOUNTS = {"account": pl.String, "euros": pl.Int64}
Balances = dict[str, int]


class Visits(hr.tasks.Task):
    """Counts payments by account."""

    seen = hr.tasks.Store(key={"account": pl.String}, value={"n": pl.Int64})

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        before = self.seen.get(message["account"]) or {"n": 0}
        self.seen.put(message["account"], {"n": before["n"] + 1})


class Bank:
    """Payments in two partitions; ``partitions`` tasks keep the accounts, which are what was paid last."""

    def __init__(self, home: Path, partitions: int = 3) -> None:
        self.home = home
        if not (home / "streams" / "payments").exists():
            hr.streams.create_stream("payments", 2, PAYMENTS, home=home)
        self.app = app = hr.App("bank", home=str(home), checkpoint_interval="100ms")
        accounts = app.table("accounts", key="account", schema=ACCOUNTS)
        payments = app.input("payments", PAYMENTS, event_time="ts")
        dealt = payments.partition_by("account", id="by-account", partitions=partitions)
        dealt.join(accounts, how="left", suffix="_before", id="before").send_to(app.output("changes"))
        dealt.select("account", "euros").send_to(accounts)
        dealt.window(hr.tumbling("10s"), key="account", id="per-10s").agg(euros=hr.sum("euros")).send_to(
            app.output("totals")
        )
        app.task(Visits(), inputs={"payments": dealt}, id="visits")

    def pay(self, **euros: int) -> None:
        """Pay into accounts, all at the same time."""
        rows = [{"account": account, "euros": paid, "ts": 1_000} for account, paid in euros.items()]
        frame = pl.DataFrame(rows, schema=PAYMENTS | {"ts": pl.Int64}).cast({"ts": pl.Datetime("ms")})
        with hr.streams.StreamWriter("payments", home=self.home) as writer:
            writer.write(frame)

    def run_until(self, balances: Balances, savepoint: str = "") -> None:
        """Run until the accounts are these; then drain, and take a savepoint."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                self.app.run(local=True, progress=False, savepoint=savepoint)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="bank")
        thread.start()
        try:
            _until(lambda: errors or self._balances() == balances, self._balances)
        finally:
            for address in find_all(self.home, "bank"):
                client = address.client()
                client.drain()
                client.close()
            thread.join(120)
        if errors:
            raise AssertionError("the app has failed") from errors[0]
        assert not thread.is_alive()

    def _balances(self) -> Balances | None:
        try:
            with hr.tables.open_table("bank", "accounts", home=self.home) as reader:
                return balances_of(reader.scan(limit=None))
        except HeadraceError as error:
            if not error.retry:
                raise
            return None

    def changes(self) -> list[tuple[str, int, int | None]]:
        """What the app has said of payments: account, paid, and what the account had before."""
        rows = hr.streams.read_stream("changes", home=self.home)
        return sorted(rows.select("account", "euros", "euros_before").rows(), key=str)


def balances_of(rows: pl.DataFrame) -> Balances:
    """Accounts as a dict."""
    return dict(rows.select("account", "euros").rows())


def _until(condition: Callable[[], Any], said: Callable[[], Any]) -> None:
    never = threading.Event()
    for _ in range(1500):
        if condition():
            return
        never.wait(0.02)
    raise AssertionError(f"it didn't come to that, but to {said()}")
