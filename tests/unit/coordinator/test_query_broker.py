"""Questions over real connections: containers that listen, answer and are replaced, and clients that give up."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from conversation import Process, new_ledger

from headrace.coordinator import server as query_broker
from headrace.coordinator.client import CoordinatorClient
from headrace.coordinator.messages import Answer, Ask, Listening, Question, TableList, TaskAnswer
from headrace.coordinator.server import Coordinator
from headrace.core.errors import FencedError, ProtocolError
from headrace.life.metadata import MemoryMetadata
from headrace.run.tables import AnswerThread


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    threads = set(threading.enumerate())
    with Coordinator(new_ledger(), MemoryMetadata(), tables=TableList(app="app")) as coordinator:
        yield coordinator
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def connect(coordinator: Coordinator) -> Iterator[Callable[[], CoordinatorClient]]:
    clients: list[CoordinatorClient] = []

    def one() -> CoordinatorClient:
        clients.append(CoordinatorClient(coordinator.url, coordinator.token, timeout_s=30))
        return clients[-1]

    yield one
    for client in clients:
        client.close()


def answer_to(question: Question, version: int = 5) -> Answer:
    return Answer(number=question.number, answers=[TaskAnswer(task=task, version=version) for task in question.tasks])


class Echo:
    """Takes the place of a container's tables, and answers each question at once."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def answer(self, question: Question) -> Answer:
        self.asked.append(question)
        return answer_to(question)

    def close(self) -> None:
        pass


def listening(client: CoordinatorClient, container: int, incarnation: str) -> AnswerThread:
    return AnswerThread.over(client, container, incarnation, Echo())  # type: ignore[arg-type]  # it has answer() and close()


def test_a_question_goes_to_the_listening_containers_and_its_answers_back(
    connect: Callable[[], CoordinatorClient],
) -> None:
    client = connect()
    client.register(Process(0, "u0").register())
    client.register(Process(1, "u1").register())
    threads = [listening(client, 0, "u0"), listening(client, 1, "u1")]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            answers = client.ask(Ask(table="t", tasks=["a/1", "a/0"])).answers
            assert answers == [TaskAnswer(task="a/1", version=5), TaskAnswer(task="a/0", version=5)]
        assert client.status().queries.answered == 20
        assert client.tables().app == "app"
    finally:
        for thread in threads:
            thread.close()


def test_a_client_gives_up_in_time_and_learns_why(connect: Callable[[], CoordinatorClient]) -> None:
    client = connect()
    client.register(Process(0, "u0").register())
    began = time.monotonic()
    one, two = client.ask(Ask(table="t", tasks=["a/0", "a/1"], limit_ms=50)).answers
    assert time.monotonic() - began < 15
    assert one.error == two.error
    assert one.error is not None
    assert one.error.retry
    assert one.error.message == (
        "no answer from a/0, a/1 in time: container 0 is busy; container 1 has not registered yet"
    )
    assert client.status().queries.timed_out == 1


def test_no_query_waits_for_a_container_that_has_ended(connect: Callable[[], CoordinatorClient]) -> None:
    client = connect()
    one = Process(1, "u1")
    client.register(one.register())
    client.finished(one.finished("a/1"))
    began = time.monotonic()
    (answer,) = client.ask(Ask(table="t", tasks=["a/1"], limit_ms=20_000)).answers
    assert time.monotonic() - began < 10
    assert answer.error is not None
    assert "container 1 has ended" in answer.error.message


def test_a_replacement_answers_what_its_predecessor_was_asked(connect: Callable[[], CoordinatorClient]) -> None:
    client, old, new = connect(), connect(), connect()
    client.register(Process(1, "old").register())
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(client.ask, Ask(table="t", tasks=["a/1"], limit_ms=20_000))
        question = old.listen(Listening(container=1, incarnation="old")).question
        assert question is not None
        new.register(Process(1, "new", attempt=1).register())  # the old one is killed before it answers
        again = new.listen(Listening(container=1, incarnation="new")).question
        assert again == question
        with pytest.raises(FencedError):
            old.listen(Listening(container=1, incarnation="old", answer=answer_to(question, version=4)))
        pool.submit(new.listen, Listening(container=1, incarnation="new", answer=answer_to(question)))
        assert asked.result(20).answers == [TaskAnswer(task="a/1", version=5)]
        old.close()
        new.close()


def test_who_is_replaced_while_it_listens_gets_no_question(connect: Callable[[], CoordinatorClient]) -> None:
    client, old = connect(), connect()
    client.register(Process(1, "old").register())
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(old.listen, Listening(container=1, incarnation="old"))
        client.register(Process(1, "new", attempt=1).register())
        client.ask(Ask(table="t", tasks=["a/1"], limit_ms=1))
        client.ask(Ask(table="t", tasks=["a/1"], limit_ms=200))
        with pytest.raises(FencedError, match="not the current one"):
            waiting.result(20)


def test_a_listener_is_let_go_after_a_while(
    connect: Callable[[], CoordinatorClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_broker, "HOLD_MS", 20.0)
    client = connect()
    client.register(Process(1, "u1").register())
    assert client.listen(Listening(container=1, incarnation="u1")).question is None


def test_closing_lets_everybody_go() -> None:
    with ThreadPoolExecutor() as pool, Coordinator(new_ledger(), MemoryMetadata()) as coordinator:
        coordinator.register(Process(1, "u1").register())
        listener = pool.submit(coordinator.listen, Listening(container=1, incarnation="u1"))
        coordinator.hang_up()
        assert listener.result(30).question is None


def test_without_the_token_nothing_is_answered(coordinator: Coordinator) -> None:
    place = urlsplit(coordinator.url)
    assert place.hostname == "127.0.0.1"
    for method, path in (("GET", "/tables"), ("POST", "/tables"), ("POST", "/questions")):
        connection = http.client.HTTPConnection(place.hostname, place.port or 0, timeout=10)
        connection.request(method, path, b"{}", {"Authorization": "Bearer no"})
        assert connection.getresponse().status == 401
        connection.close()


def test_nonsense_is_refused(connect: Callable[[], CoordinatorClient]) -> None:
    with pytest.raises(
        ProtocolError, match="answered /tables with status 400: no container of this run has the tasks nobody/0"
    ):
        connect().ask(Ask(table="t", tasks=["nobody/0"]))
