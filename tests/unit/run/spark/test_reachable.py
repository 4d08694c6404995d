"""A standalone master that doesn't answer is reported at once, and not by Spark after a minute."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headrace.core.errors import UnavailableError
from headrace.run.spark.session import check_reachable


@pytest.fixture
def listening() -> Iterator[int]:
    """A port that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port that doesn't accept connections. It is bound, so that no other process takes it."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield unheard.getsockname()[1]


def test_a_master_that_refuses_is_reported_with_its_address(deaf: int) -> None:
    with pytest.raises(UnavailableError, match=rf"no Spark master answers .*127\.0\.0\.1:{deaf}: connection refused"):
        check_reachable(f"spark://127.0.0.1:{deaf}")


def test_a_master_that_does_not_answer_is_waited_for_until_the_limit() -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for client in (first, second):  # these fill the queue, and nothing accepts them
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        with pytest.raises(UnavailableError, match=r"no answer within 0\.2 s"):
            check_reachable(f"spark://127.0.0.1:{full.getsockname()[1]}", connect_s=0.2)


def test_a_name_that_can_not_be_resolved() -> None:
    with pytest.raises(UnavailableError, match=r"nowhere\.invalid:7077"):
        check_reachable("spark://nowhere.invalid:7077")


def test_one_of_several_is_enough(listening: int, deaf: int) -> None:
    check_reachable(f"spark://127.0.0.1:{deaf},127.0.0.1:{listening}")


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "yarn", "k8s://https://host:443", ""])
def test_others_are_not_asked(master: str) -> None:
    check_reachable(master)
