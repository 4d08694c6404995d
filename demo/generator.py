"""Writes page views at a steady rate for some seconds, seals the stream, and prints how many are not health checks."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import polars as pl

import headrace as hr

MEMBERS = 10_000
URLS = np.array(["/", "/search", "/cart", "/item", "/health"])
TICK_S = 0.02


def main() -> int:
    """``generator.py HOME SECONDS RATE``."""
    home, seconds, rate = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    random = np.random.default_rng(7)
    writer = hr.streams.StreamWriter("page-views", home=home)
    wait = threading.Event()
    begin = time.monotonic()
    written = counted = 0
    while (elapsed := time.monotonic() - begin) < seconds:
        due = int(elapsed * rate) - written
        if due > 0:
            urls = URLS[random.integers(0, len(URLS), due)]
            now = time.time_ns() // 1_000_000
            rows = pl.DataFrame(
                {
                    "member": "member-" + pl.Series(random.zipf(1.3, due) % MEMBERS).cast(pl.String),
                    "url": urls,
                    "ts": pl.Series(now - random.integers(0, 500, due)).cast(pl.Datetime("ms")),
                }
            )
            writer.write(rows)
            written += due
            counted += int((urls != "/health").sum())
        wait.wait(max(0.0, TICK_S - (time.monotonic() - begin - elapsed)))
    writer.seal()
    print(counted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
