"""An app in two containers on real Spark reads Kinesis from a server, while a shard splits."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from chaos.deployment import until
from chaos.kinesis_server import KinesisServer
from headrace.core.errors import HeadraceError
from servers.kinesis_streams import StreamOnServer

sys.path.insert(0, str(Path(__file__).parents[1] / "local"))
import kinesis_program
from kinesis_program import end_time, put, sums, sums_in


@pytest.mark.slow
def test_orders_count_once(kinesis_local: KinesisServer, tmp_path: Path) -> None:
    orders = StreamOnServer(kinesis_local, 2)
    put(orders.api, range(30))
    command = [kinesis_program.__file__, tmp_path, orders.name, kinesis_local.endpoint, "local[2]"]

    def committed(stream: str):
        assert process.poll() is None, f"it ended with {process.returncode}"
        try:
            return hr.streams.read_stream(stream, home=tmp_path)
        except HeadraceError:
            return None

    def copied(count: int) -> bool:
        rows = committed("copies")
        return rows is not None and sorted(rows["n"].to_list()) == list(range(count))

    with subprocess.Popen([sys.executable, *map(str, command)], cwd=tmp_path) as process:
        try:
            until(lambda: copied(30), "what was there is copied", 200)
            shard = orders.api.shards()[0]
            orders.split(shard.id, (shard.first + shard.last + 1) // 2)
            put(orders.api, range(30, 60))
            end_time(orders.api)
            until(lambda: copied(60), "all is copied", 120)
            until(lambda: sums_in(committed("sums")) == sums(range(60)), "all windows are complete", 60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    orders.delete()
    orders.close()
