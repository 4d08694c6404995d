"""A reader process for the latency measurement: it tails a stream of the log, and measures the age of its messages.

``python -m bench.tail HOME STREAM WARM_UP_S``. It reads user frames as they arrive, committed or not, until its
standard input has a line or ends. It prints as JSON the percentiles of the ages of all messages that were sent more
than ``WARM_UP_S`` seconds after the first one arrived.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from headrace.core.files import which_readable
from headrace.core.frame import Kind, body_of, decode_header
from headrace.core.ids import SSP, StreamId
from headrace.rows.ipc import decode_rows
from headrace.systems.base import Edge, Records
from headrace.systems.log.system import LogSystem

WHICH = ("p50", "p90", "p99", "p99.9", "max")


def main() -> None:
    """Tail the stream that the arguments name."""
    home, stream, warm_up_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
    system = LogSystem(Path(home) / "streams")
    info = system.admin().describe(stream)
    assert info is not None, f"there is no stream {stream}"
    consumer = system.consumer()
    for partition in range(info.partitions):
        consumer.register(SSP(StreamId("log", stream), partition), Edge.OLDEST)
    wake = consumer.fileno()
    ended = sys.stdin.fileno()
    waits = (ended,) if wake is None else (ended, wake)
    ages: list[np.ndarray] = []
    warm_from: int | None = None
    print("ready", flush=True)
    while True:
        ready = which_readable(waits, 500)
        for polled in consumer.poll():
            for payload in polled.payloads if isinstance(polled, Records) else ():
                if decode_header(payload).kind is not Kind.USER:
                    continue
                sent = decode_rows(body_of(payload), checked=True)["sent"].to_numpy()
                now = time.time_ns() // 1000
                if warm_from is None:
                    warm_from = now + int(warm_up_s * 1e6)
                ages.append((now - sent)[sent >= warm_from])
        if ended in ready:
            break
    consumer.close()
    print(json.dumps(summary(ages)))


def summary(ages: list[np.ndarray]) -> dict[str, float]:
    """Return percentiles in ms of ages in µs."""
    all_ms = np.concatenate(ages) / 1000 if ages else np.empty(0)
    if not len(all_ms):
        return {"messages": 0}
    shares = dict(zip(WHICH, np.percentile(all_ms, [50, 90, 99, 99.9, 100]), strict=True))
    return {"messages": len(all_ms)} | {f"{which}_ms": float(value) for which, value in shares.items()}


if __name__ == "__main__":
    main()
