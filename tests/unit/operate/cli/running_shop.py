"""A shop that runs in this process, as ``app.run(local=True)`` does, on the home of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

import headrace as hr
from headrace.coordinator.messages import AppStatus
from headrace.core.errors import HeadraceError
from running_apps import find_all, wait_until

PRICES = {"article": pl.String, "euros": pl.Decimal(10, 2), "since": pl.Datetime("us", "UTC"), "picture": pl.Binary}
STOCK = {"place": pl.String, "shelf": pl.Int64, "pieces": pl.Int64}
RATES = {"currency": pl.String, "rate": pl.Float64}
SINCE = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Shop:
    """Prices by article (two partitions), stock by place and shelf (as its input is), rates (in every task)."""

    def __init__(self, home: Path, interval: str = "200ms") -> None:
        self.home = home
        for name, columns in (("prices-in", PRICES), ("stock-in", STOCK), ("rates-in", RATES), ("sales", RATES)):
            key = ("place", "shelf") if name == "stock-in" else ()
            hr.streams.create_stream(name, 2, columns, key=key, home=home)
        self.app = hr.App("shop", home=str(home), checkpoint_interval=interval, peek=True)
        prices = self.app.table("prices", key="article", schema=PRICES)
        stock = self.app.table("stock", key=("place", "shelf"), schema=STOCK)
        rates = self.app.table("rates", key="currency", side_inputs=self.app.input("rates-in", RATES), kind="global")
        self.app.input("prices-in", PRICES).partition_by("article", id="by-article", partitions=2).send_to(prices)
        self.app.input("stock-in", STOCK).send_to(stock)
        self.app.input("sales", RATES).join(rates, how="left").send_to(self.app.output("worth"))
        self.writers = {
            name: hr.streams.StreamWriter(name, home=home) for name in ("prices-in", "stock-in", "rates-in", "sales")
        }
        self.errors: list[BaseException] = []

    def price(self, **euros: str) -> None:
        rows = [{"article": a, "euros": Decimal(e), "since": SINCE, "picture": b"\x00\xff"} for a, e in euros.items()]
        self.writers["prices-in"].write(pl.DataFrame(rows, schema=PRICES))

    def put(self, *rows: tuple[str, int, int]) -> None:
        self.writers["stock-in"].write(pl.DataFrame(rows, schema=STOCK, orient="row"))

    def rate(self, **rates: float) -> None:
        rows = list(rates.items())
        self.writers["rates-in"].write(pl.DataFrame(rows, schema=RATES, orient="row"))

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()

    @contextmanager
    def running(self, *stages: str) -> Iterator[None]:
        """Run the shop until the end of the block, which drains it."""

        def run() -> None:
            try:
                self.app.run(local=True, progress=False, stages=stages or None)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, name="shop")
        thread.start()
        try:
            self.until(self.is_running)
            yield
        finally:
            self.drain()
            thread.join(120)
        assert self.errors == []
        assert not thread.is_alive()

    # -- what there is to see

    def status(self) -> AppStatus | None:
        for address in find_all(self.home, "shop"):
            client = address.client()
            try:
                return client.status()
            finally:
                client.close()
        return None

    def drain(self) -> None:
        for address in find_all(self.home, "shop"):
            client = address.client()
            client.drain()
            client.close()

    def is_running(self) -> bool:
        status = self.status()
        return bool(self.errors) or (status is not None and status.state == "running")

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that happens in a thread without an event for others."""
        wait_until(condition, self.errors, 6000)

    def until_committed(self, table: str, rows: int) -> None:
        """Wait until this many rows of a table can be read."""

        def there() -> bool:
            try:
                with hr.tables.open_table("shop", table, home=self.home) as reader:
                    return reader.scan(limit=None).height == rows
            except HeadraceError as error:
                if not error.retry:
                    raise
                return False

        self.until(there)
