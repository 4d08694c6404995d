"""The book of questions: which container gets which, what happens to lost and late answers, and its bounds."""

from __future__ import annotations

import pytest

from headrace.coordinator.books import WAITING_MAX, QueryBook
from headrace.coordinator.messages import (
    KEYS_MAX,
    ROWS_MAX,
    TASKS_MAX,
    Answer,
    Ask,
    ErrorReport,
    QueriesStatus,
    TaskAnswer,
)
from headrace.core.errors import ProtocolError, UnavailableError, UsageError

SILENT = ErrorReport(type="UnavailableError", message="silent")


@pytest.fixture
def book() -> QueryBook:
    """Container 0 has a/0 and b/0, container 1 a/1."""
    return QueryBook([["a/0", "b/0"], ["a/1"]])


def answer(number: int, *tasks: str, version: int = 1) -> Answer:
    return Answer(number=number, answers=[TaskAnswer(task=task, version=version) for task in tasks])


def test_each_container_is_asked_for_its_tasks_and_answers_come_in_the_order_asked(book: QueryBook) -> None:
    assert book.next(0) is None
    number = book.ask(Ask(table="t", tasks=["a/1", "a/0"], keys=(b"\x01k\x00",), rows=7))
    first, second = book.next(0), book.next(1)
    assert first is not None
    assert second is not None
    assert (first.tasks, second.tasks) == (["a/0"], ["a/1"])
    assert (first.number, first.table, first.keys, first.rows) == (number, "t", (b"\x01k\x00",), 7)
    book.answer(0, answer(number, "a/0"))
    assert (book.next(0), book.waits_for(number)) == (None, {1: ["a/1"]})
    book.answer(1, answer(number, "a/1"))
    assert not book.waits_for(number)
    assert [one.task for one in book.take(number)] == ["a/1", "a/0"]
    assert book.status() == QueriesStatus(answered=1)


def test_a_question_is_handed_out_until_it_is_answered(book: QueryBook) -> None:
    number = book.ask(Ask(table="t", tasks=["a/0"]))
    later = book.ask(Ask(table="u", tasks=["b/0"]))
    for _ in range(2):
        found = book.next(0)
        assert found is not None
        assert found.number == number
    book.answer(0, answer(number, "a/0", version=1))
    book.answer(0, answer(number, "a/0", version=2))  # repeated, as its reply got lost
    assert book.take(number) == [TaskAnswer(task="a/0", version=1)]
    found = book.next(0)
    assert found is not None
    assert found.number == later


def test_missing_answers_are_reported_and_late_ones_ignored(book: QueryBook) -> None:
    number = book.ask(Ask(table="t", tasks=["a/0", "a/1"]))
    book.answer(1, answer(number, "a/1"))
    first, second = book.take(number, SILENT)
    assert (first.error, second.error) == (SILENT, None)
    assert book.next(0) is None
    book.answer(0, answer(number, "a/0"))
    assert book.status() == QueriesStatus(timed_out=1)


def test_an_answer_for_other_tasks_is_refused(book: QueryBook) -> None:
    number = book.ask(Ask(table="t", tasks=["a/0"]))
    with pytest.raises(ProtocolError, match="answered for tasks"):
        book.answer(0, answer(number, "b/0"))
    book.answer(1, answer(number, "a/0"))  # not its question
    assert book.waits_for(number) == {0: ["a/0"]}


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (Ask(table="t", tasks=[]), "at least one"),
        (Ask(table="t", tasks=["a/0", "a/0"]), "once"),
        (Ask(table="t", tasks=["c/0"]), "has the tasks c/0"),
        (Ask(table="t", tasks=["a/0"], rows=0), "0 rows"),
        (Ask(table="t", tasks=["a/0"], rows=ROWS_MAX + 1), "a query for .* rows"),
        (Ask(table="t", tasks=["a/0"], keys=(b"k",) * (KEYS_MAX + 1)), "a query for .* keys"),
    ],
)
def test_refuses(book: QueryBook, ask: Ask, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        book.ask(ask)
    assert book.status() == QueriesStatus()


def test_so_many_tasks_at_once_and_no_more() -> None:
    names = [f"a/{number}" for number in range(TASKS_MAX + 1)]
    book = QueryBook([names])
    book.ask(Ask(table="t", tasks=names[:-1]))
    with pytest.raises(UsageError, match=r"a query of \d+ tasks at once"):
        book.ask(Ask(table="t", tasks=names))


def test_so_many_wait_and_no_more(book: QueryBook) -> None:
    numbers = [book.ask(Ask(table="t", tasks=["a/0"])) for _ in range(WAITING_MAX)]
    with pytest.raises(UnavailableError, match="waiting already"):
        book.ask(Ask(table="t", tasks=["a/1"]))
    assert book.status() == QueriesStatus(waiting=WAITING_MAX, refused=1)
    book.take(numbers[0], SILENT)
    book.ask(Ask(table="t", tasks=["a/1"]))
