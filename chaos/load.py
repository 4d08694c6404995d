"""The load of the app under chaos: messages written at a steady rate."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
from typing_extensions import override

from headrace.core.clock import WallClock

MEMBERS = 500
JITTER_MS = 400
PAYMENT_DELAY_MS = 800
BATCH = 200


@dataclass(frozen=True, slots=True)
class Written:
    """All messages of a run, including both copies of duplicated orders."""

    orders: pl.DataFrame
    payments: pl.DataFrame


class Messages:
    """Generates orders and payments from a seed. Their event times follow the clock, out of order but never late."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._next = 0

    def batch(self, rows: int = BATCH) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the next orders, some of them twice, and payments for most of them."""
        numbers = np.arange(self._next, self._next + rows, dtype=np.int64)
        self._next += rows
        now = WallClock().now_ms()
        orders = pl.DataFrame(
            {
                "order": numbers,
                "member": self._random.zipf(1.4, rows).astype(np.int64) % MEMBERS,
                "amount": self._random.integers(-5, 100, rows),
                "ts": now - self._random.integers(0, JITTER_MS, rows),
            }
        )
        paid = orders.filter(pl.Series(self._random.random(rows) < 0.7))
        delays = pl.Series(self._random.integers(0, PAYMENT_DELAY_MS, paid.height))
        payments = paid.select("order", paid=pl.col("amount"), at=pl.col("ts") + delays)
        again = orders.filter(pl.Series(self._random.random(rows) < 0.1))
        return pl.concat([orders, again]), payments


class Writer(Protocol):
    """Writes one stream."""

    def write(self, rows: pl.DataFrame, /) -> object:
        """Write rows."""
        ...

    def seal(self) -> object:
        """Nothing will come any more: let event time pass."""
        ...

    def close(self) -> object:
        """Write no more."""
        ...


class Load(threading.Thread):
    """Writes at a steady rate until ``finish``, and keeps everything for the oracle."""

    def __init__(self, orders: Writer, payments: Writer, seed: int, rate: int) -> None:
        """Write ``rate`` orders a second."""
        super().__init__(name="chaos-load", daemon=True)
        self._writers = orders, payments
        self._messages = Messages(seed)
        self._interval_s = BATCH / rate
        self._over = threading.Event()
        self._written: list[tuple[pl.DataFrame, pl.DataFrame]] = []
        self.error: BaseException | None = None

    @override
    def run(self) -> None:
        due = time.monotonic()
        try:
            while not self._over.wait(max(0.0, due - time.monotonic())):
                batch = self._messages.batch()
                for writer, rows in zip(self._writers, batch, strict=True):
                    writer.write(rows)
                self._written.append(batch)
                due += self._interval_s
        except BaseException as error:  # noqa: BLE001 - ``finish`` raises it again
            self.error = error

    def finish(self) -> Written:
        """Stop writing, seal the streams, and return everything that was written."""
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error
        for writer in self._writers:
            writer.seal()
            writer.close()
        orders, payments = zip(*self._written, strict=True)
        return Written(pl.concat(orders), pl.concat(payments))
