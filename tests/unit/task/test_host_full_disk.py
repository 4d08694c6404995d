"""A disk that is full while tasks run: a clear error, nothing corrupted, and on with it when there is room.

The limit on the size of files stands in for the disk: a write beyond it is cut short, and then refused.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from driven_app import INTERVAL_MS, DrivenApp, Orders, check, orders_app

from headrace.core.errors import InfrastructureError
from headrace.task.container import Container


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    orders = Orders(tmp_path)
    yield orders
    orders.close()


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def largest(home: Path, pattern: str) -> int:
    return max(path.stat().st_size for path in home.glob(pattern))


def dies(app: DrivenApp, container: Container) -> None:
    """As a process does that has met an error: it closes everything, which may fail the same way."""
    try:
        for host in container.hosts:
            host.close()
        container.close()
    except InfrastructureError:
        app.kill(container)
    else:
        app.living.remove(container)


LIMITS: dict[str, Callable[[Path], int]] = {
    "no room at all": lambda _: 0,
    "a changelog is full": lambda home: largest(home, "streams/orders-by-member-changelog/*.log") + 50,
    "a changelog is full a little later": lambda home: largest(home, "streams/orders-by-member-changelog/*.log") + 700,
    "an intermediate stream is full": lambda home: largest(home, "streams/orders-by-member/*.log") + 300,
    "an output is full": lambda home: largest(home, "streams/seen/*.log") + 100,
    "the state is full": lambda home: largest(home, "state/orders/*/*.log") + 10,
}


@pytest.mark.parametrize("full", LIMITS)
@pytest.mark.parametrize("separate", [False, True])
def test_a_full_disk_ends_containers_and_corrupts_nothing(
    tmp_path: Path, orders: Orders, full: str, separate: bool
) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        groups = [[stage.name] for stage in app.plan.stages] if separate else [[]]
        for group in groups:
            app.start(*group)
        for _ in range(4):
            orders.write()
            app.run(300)
        for _ in range(4):
            orders.write()
        errors: list[InfrastructureError] = []
        with files_no_larger_than(LIMITS[full](tmp_path)):
            for _ in range(3 * INTERVAL_MS // 20):
                for container in list(app.living):
                    try:
                        app.turn(container)
                    except InfrastructureError as error:
                        errors.append(error)
                        dies(app, container)
        assert errors
        for error in errors:
            assert error.retry
            assert "free up space" in (error.hint or ""), str(error)
        for container in list(app.living):
            app.kill(container)
        app.start()
        orders.end()
        app.finish()
        check(app, orders)


def test_containers_that_start_again_and_again_on_a_full_disk(tmp_path: Path, orders: Orders) -> None:
    with DrivenApp(orders_app(tmp_path)) as app:
        app.start()
        for _ in range(3):
            orders.write()
            app.run(300)
        orders.write()
        failures = 0
        with files_no_larger_than(largest(tmp_path, "streams/orders-by-member-changelog/*.log") + 400):
            while failures < 8:
                try:
                    if not app.living:
                        app.start()
                    app.run(INTERVAL_MS)
                except InfrastructureError as error:
                    assert error.retry
                    failures += 1
                    dies(app, app.living[0])
        app.start()
        orders.end()
        app.finish()
        check(app, orders)
