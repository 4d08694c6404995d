"""A producer process for the latency measurement: it stamps messages with the time, and sends them every millisecond.

``python -m bench.feeder log HOME STREAM RATE SECONDS`` appends to a stream of the embedded log, and seals it.
``python -m bench.feeder socket PORT_FILE RATE SECONDS`` listens, writes its port to the file, and sends lines.
``python -m bench.feeder files FOLDER RATE SECONDS`` moves a Parquet file into the folder every 20 ms.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import polars as pl

import headrace as hr

TICK_S = 0.001
FILE_TICK_S = 0.02
MEMBERS = 10_000
AT_ONCE = 500_000


def feed(send: Callable[[int, int], object], rate: int, seconds: float, tick_s: float = TICK_S) -> None:
    """Call ``send(first number, count)`` so that ``rate`` messages a second are sent."""
    _columns()  # takes longer than a tick the first time
    begin, sent = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begin) < seconds:
        due = int(elapsed * rate) - sent
        if due > 0:
            send(sent, due)
            sent += due
        time.sleep(max(0.0, tick_s - (time.perf_counter() - begin - elapsed)))


@cache
def _columns() -> tuple[pl.Series, pl.Series]:
    """The columns that repeat, for as many messages as a stall of seconds may leave to be sent at once."""
    number = pl.int_range(0, MEMBERS + AT_ONCE, eager=True)
    url = (number % 5 == 0).cast(pl.Int8).replace_strict({1: "/health", 0: "/item"})
    return url.alias("url"), ("member-" + (number % MEMBERS).cast(pl.String)).alias("member")


def messages(first: int, count: int) -> pl.DataFrame:
    """Return messages stamped with the current time (µs). Every fifth is a health check.

    This happens a thousand times a second beside what is measured, so it takes no query of Polars.
    """
    repeated = [column.slice(first % MEMBERS, count) for column in _columns()]
    return pl.DataFrame([pl.Series("sent", [time.time_ns() // 1000] * count, dtype=pl.Int64), *repeated])


def into_log(home: str, stream: str, rate: int, seconds: float) -> None:
    """Append one frame at each tick, to the partitions in turn."""
    with hr.streams.StreamWriter(stream, home=home) as writer:
        feed(lambda first, count: writer.write(messages(first, count)), rate, seconds)
        writer.seal()


def into_socket(port_file: Path, rate: int, seconds: float) -> None:
    """Send lines of ``sent,url,member`` to the one reader that connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        partial = port_file.with_suffix(".new")
        partial.write_text(str(server.getsockname()[1]))
        partial.rename(port_file)
        reader, _ = server.accept()
        reader.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send(first: int, count: int) -> None:
            reader.sendall(messages(first, count).write_csv(include_header=False).encode())

        try:
            feed(send, rate, seconds)
        except (BrokenPipeError, ConnectionResetError):
            return  # the reader has closed the connection


def into_files(target: Path, rate: int, seconds: float) -> None:
    """Write one file at each tick, and move it into place when it is complete."""
    staging = target.with_name(target.name + ".staging")
    staging.mkdir()

    def send(first: int, count: int) -> None:
        name = f"{first:012}.parquet"
        messages(first, count).write_parquet(staging / name)
        (staging / name).rename(target / name)

    feed(send, rate, seconds, FILE_TICK_S)


def main() -> None:
    """Run the command that the module head describes."""
    match sys.argv[1:]:
        case ["log", home, stream, rate, seconds]:
            into_log(home, stream, int(rate), float(seconds))
        case ["socket", port_file, rate, seconds]:
            into_socket(Path(port_file), int(rate), float(seconds))
        case ["files", target, rate, seconds]:
            into_files(Path(target), int(rate), float(seconds))
        case other:
            sys.exit(f"{__doc__}\ngot: {other}")


if __name__ == "__main__":
    main()
