"""A container whose task is fenced says so to the coordinator: only one that was replaced ends without a word."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from driven_app import DrivenApp, Orders, orders_app

from headrace.coordinator.ledger import Ledger
from headrace.coordinator.server import Coordinator
from headrace.core.errors import FencedError
from headrace.core.ids import SSP, StreamId
from headrace.life.metadata import SqliteMetadata
from headrace.run.spark.container_main import ContainerPayload, container_main
from headrace.run.spark.hosting import ContainerArgs
from headrace.run.spark.shipping import ship
from headrace.systems.log.system import LogSystem


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


def test_a_current_container_that_can_not_go_on_is_no_secret(tmp_path: Path, orders: Orders) -> None:
    """Started again and again it would meet the same for ever, and nobody would know why."""
    with DrivenApp(orders_app(tmp_path)) as app:
        container = app.start()
        for _ in range(3):
            orders.write()
            app.run(300)
        orders.write()
        app.run(60)  # and no commit
        app.kill(container)
    admin = LogSystem(tmp_path / "streams").admin()
    name = app.plan.streams["by-member"].spec.stream.name
    for number, extent in enumerate(admin.extents(name)):
        admin.trim(SSP(StreamId("log", name), number), extent.upcoming)
    stages = {stage.name: [task.name for task in stage.tasks] for stage in app.plan.stages}
    ledger = Ledger("orders", stages, 1, started_at=0, guarantee="exactly_once")
    metadata = SqliteMetadata(tmp_path / "metadata.db")
    try:
        with Coordinator(ledger, metadata) as coordinator:
            payload = ship(ContainerPayload(app.plan, coordinator.url, coordinator.token, ()))
            with pytest.raises(FencedError, match="would have to read trimmed records"):
                container_main(ContainerArgs(0, 0, payload))
            assert _open_sockets_to(urlsplit(coordinator.url).port) == []
            (status,) = coordinator.status().containers
            assert status.state == "failed"
            assert status.error is not None
            assert "would have to read trimmed records" in status.error.message
    finally:
        metadata.close()


def _open_sockets_to(port: int | None) -> list[socket.socket]:
    found = []
    for one in gc.get_objects():
        if isinstance(one, socket.socket) and one.fileno() != -1:
            with suppress(OSError):  # it listens, or nobody is at its other end
                found += [one] if one.getpeername()[1:2] == (port,) else []
    return found
