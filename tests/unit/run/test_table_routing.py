"""Which tasks are asked: for keys, bounds and pages."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from headrace.coordinator.messages import TASKS_MAX, Answers, Ask, ErrorReport, TableFacts, TaskAnswer
from headrace.core.errors import UnavailableError, UsageError
from headrace.rows.hashing import partition_of
from headrace.rows.ipc import encode_rows
from headrace.run.table_routing import TableColumns, TableScan, found, gets, owners
from headrace.stores.encoding import KeyEncoding

TOWNS = {"land": pl.String(), "town": pl.String(), "people": pl.Int64()}


def facts(tasks: int = 4, kind: str = "local", owned_by: list[str] | None = None, **types: str) -> TableFacts:
    return TableFacts(
        id="towns",
        kind=kind,
        stage="by-town",
        key=types or {"land": "String", "town": "String"},
        values={"people": "Int64"},
        tasks=[f"by-town/{number}" for number in range(tasks)],
        owned_by=owned_by,
    )


def keys(*rows: tuple[Any, ...]) -> pl.DataFrame:
    return TableColumns(facts()).keys(rows)


# -- keys


def test_a_key_is_asked_of_the_task_it_hashes_to() -> None:
    columns = TableColumns(facts())
    asked = keys(*(("AT", f"town {n}") for n in range(20)))
    for names in (["town"], ["town", "land"], ["land", "town"]):
        wanted = sorted({f"by-town/{n}" for n in partition_of(asked, names, 4).tolist()})
        assert sorted(owners(facts(owned_by=names), columns, asked)) == wanted
    one = keys(("AT", "Graz"))
    assert owners(facts(owned_by=["town"]), columns, one) == (f"by-town/{partition_of(one, ['town'], 4)[0]}",)


def test_golden_owners() -> None:
    columns = TableColumns(facts())
    asked = [owners(facts(owned_by=["town"]), columns, keys(("AT", town)))[0] for town in ("Graz", "Linz", "Wels", "")]
    assert asked == ["by-town/2", "by-town/1", "by-town/0", "by-town/0"]


def test_a_key_without_an_owner_is_asked_of_all_and_of_a_global_table_of_one() -> None:
    columns = TableColumns(facts())
    one = keys(("AT", "Graz"))
    assert owners(facts(), columns, one) == tuple(facts().tasks)
    assert len(owners(facts(kind="global"), columns, one)) == 1


def test_keys_go_out_as_the_store_has_them_to_so_many_tasks_at_once() -> None:
    columns = TableColumns(facts(TASKS_MAX + 2))
    first, second = gets(facts(TASKS_MAX + 2), columns, keys(("AT", "Graz")), 250)
    assert (len(first.tasks), len(second.tasks), second.limit_ms) == (TASKS_MAX, 2, 250)
    assert first.keys == second.keys == (b"\x01AT\x00\x01Graz\x00",)


@pytest.mark.parametrize(
    ("types", "row", "text"),
    [
        ({}, ("AT",), "the key of table 'towns' is land .String., town .String.; 1 values were given"),
        ({}, ("AT", 7), "7 can't be a value of column 'town' of table 'towns', which is String"),
        ({}, ("AT", None), "column 'town' of table 'towns' is part of the key, so it can't be null"),
        ({"n": "Int64"}, ("7",), "'7' can't be a value of column 'n'"),
        ({"n": "Int64"}, (1.5,), "1.5 can't be a value of column 'n'"),
        ({"n": "Int64"}, (True,), "True can't be a value of column 'n'"),
        ({"n": "Int8"}, (300,), "300 can't be a value of column 'n'"),
        ({"n": "Date"}, ("today",), "'today' can't be a value of column 'n'"),
    ],
)
def test_keys_that_dont_fit(types: dict[str, str], row: tuple[Any, ...], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        TableColumns(facts(**types)).keys([row])


@pytest.mark.parametrize(
    ("type_", "value"), [("Float64", 2), ("Int64", -5), ("Boolean", True), ("Binary", b"\x00\xff")]
)
def test_keys_that_fit(type_: str, value: Any) -> None:
    assert TableColumns(facts(n=type_)).keys([(value,)]).item() == value


def test_what_was_found_and_what_failed() -> None:
    columns = TableColumns(facts())
    rows = pl.DataFrame([("AT", "Graz", 3)], schema=TOWNS, orient="row")
    there = Answers(answers=[TaskAnswer(task="a/0", version=3, rows=encode_rows(rows)), TaskAnswer(task="a/1")])
    one, other = found(columns, there)
    assert one.rows.equals(rows)
    assert (one.version, other.version, other.rows.schema) == (3, None, TOWNS)
    with pytest.raises(UsageError, match="too large for one answer"):
        found(columns, Answers(answers=[TaskAnswer(task="a/0", more=True)]))
    report = ErrorReport.of(UnavailableError("its state is being restored", hint="again"))
    with pytest.raises(UnavailableError, match="restored") as caught:
        found(columns, Answers(answers=[TaskAnswer(task="a/0", error=report)]))
    assert caught.value.hint == "again"


# -- bounds


def inside(first: tuple[Any, ...] = (), **bounds: Any) -> list[tuple[str, str]]:
    """The keys that are within the bounds."""
    some = [("AT", ""), ("AT", "Graz"), ("AT", "Gr\0"), ("AT", "Linz"), ("ATX", "Graz"), ("BE", "Gent"), ("", "x")]
    low, high = TableColumns(facts()).range(first, **bounds)
    encoded = KeyEncoding({"land": pl.String(), "town": pl.String()}).encode(
        pl.DataFrame(some, schema=["land", "town"], orient="row")
    )
    return [key for key, data in zip(some, encoded, strict=True) if low <= data < high]


def test_bounds() -> None:
    assert len(inside()) == 7
    assert inside(("AT",)) == [("AT", ""), ("AT", "Graz"), ("AT", "Gr\0"), ("AT", "Linz")]
    assert inside(("AT", "Graz")) == [("AT", "Graz")]
    assert inside(("AT",), prefix="Gr") == [("AT", "Graz"), ("AT", "Gr\0")]
    assert inside(("AT",), prefix="Gr\0") == [("AT", "Gr\0")]
    assert inside(prefix="AT") == [("AT", ""), ("AT", "Graz"), ("AT", "Gr\0"), ("AT", "Linz"), ("ATX", "Graz")]
    assert inside(prefix="") == inside()
    assert inside(start="AT", stop="ATX") == inside(("AT",))
    assert inside(("AT",), start="Graz") == [("AT", "Graz"), ("AT", "Linz")]
    assert inside(("AT",), stop="Graz") == [("AT", ""), ("AT", "Gr\0")]
    assert inside(stop="AT") == [("", "x")]
    assert inside(start="B", stop="A") == []


def test_bounds_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="2 values were given"):
        TableColumns(facts()).range(("AT", "Graz"), prefix="x")
    with pytest.raises(UsageError, match="'n' of table 'towns' is Int64: only text and binary have prefixes"):
        TableColumns(facts(n="Int64")).range((), prefix="1")
    with pytest.raises(UsageError, match="can't be a value of column 'n'"):
        TableColumns(facts(n="Int64")).range((), start=Decimal("1.5"))


# -- pages


class Tasks:
    """Tasks with rows, which answer as containers do."""

    def __init__(self, *towns: list[str], most: int = 1000) -> None:
        self.facts = facts(len(towns), town="String")
        self.columns = TableColumns(self.facts)
        self.most = most
        self.asked: list[list[str]] = []
        self._rows = {
            task: pl.DataFrame({"town": sorted(names), "people": [len(names)] * len(names)})
            for task, names in zip(self.facts.tasks, towns, strict=True)
        }

    def page(self, limit: int, **options: Any) -> TableScan:
        scan = TableScan(self.facts, self.columns, (b"", b"\x02"), limit=limit, limit_ms=1, **options)
        while (ask := scan.ask()) is not None:
            self.asked.append(ask.tasks)
            scan.take(Answers(answers=[self._answer(task, ask) for task in ask.tasks]))
        return scan

    def all(self, limit: int) -> list[str]:
        names: list[str] = []
        page = self.page(limit)
        while True:
            assert page.rows <= limit
            names += [name for part in page.parts for name in part.rows.get_column("town")]
            if page.after is None:
                return names
            page = self.page(limit, after=page.after)

    def _answer(self, task: str, ask: Ask) -> TaskAnswer:
        rows = self._rows[task]
        kept = [low <= key for key in self.columns.encode(rows)] if (low := ask.low) else [True] * rows.height
        rows = rows.filter(pl.Series(kept, dtype=pl.Boolean))
        told, more = rows.head(most := min(ask.rows, self.most)), rows.height > most
        last = self.columns.encode(told.tail(1))[0] if more else b""
        return TaskAnswer(task=task, version=1, rows=encode_rows(told), more=more, last=last)


def test_tasks_are_asked_in_growing_numbers_until_the_page_is_full() -> None:
    tasks = Tasks(*([f"t{n}"] for n in range(10)))
    page = tasks.page(5)
    assert page.rows == 5
    assert [len(names) for names in tasks.asked] == [1, 2, 4]
    tasks.asked.clear()
    assert tasks.page(1).after is not None
    assert [len(names) for names in tasks.asked] == [1, 2]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 9, 10, 100])
@pytest.mark.parametrize("most", [1, 2, 1000])
def test_pages_together_are_everything_once(limit: int, most: int) -> None:
    towns = [["b", "a", "d"], [], [], ["f", "e"], ["g"], [], ["h", "i", "k", "l"], []]
    tasks = Tasks(*towns, most=most)
    assert tasks.all(limit) == [name for names in towns for name in sorted(names)]


def test_a_page_that_is_just_full_has_no_next() -> None:
    assert Tasks(["a", "b"], ["c"], []).page(3).after is None


def test_a_task_that_had_no_room_is_asked_again() -> None:
    tasks = Tasks(["a"], ["b"], ["c"])
    scan = TableScan(tasks.facts, tasks.columns, (b"", b""), limit=9, limit_ms=1)
    for _ in range(2):
        ask = scan.ask()
        assert ask is not None
        full = ask.tasks != ["by-town/0"]
        scan.take(
            Answers(answers=[TaskAnswer(task=t, more=True) if full else tasks._answer(t, ask) for t in ask.tasks])
        )
    assert (scan.ask(), scan.after) == (None, "by-town/1@")
    rest = tasks.page(9, after=scan.after)
    assert [part.rows.get_column("town").to_list() for part in rest.parts] == [["b"], ["c"]]


def test_one_partition_alone() -> None:
    tasks = Tasks(["a"], ["b"], ["c"])
    assert [part.task for part in tasks.page(9, partition=1).parts] == ["by-town/1"]
    with pytest.raises(UsageError, match="no partition 3; its partitions are 0 to 2"):
        tasks.page(9, partition=3)


@pytest.mark.parametrize("after", ["", "x", "by-town/9@", "by-town/0@%%%", "by-town/0@\N{SNOWMAN}"])
def test_places_that_are_none(after: str) -> None:
    with pytest.raises(UsageError, match="isn't the end of a page"):
        Tasks(["a"]).page(9, after=after)


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_limits(limit: int) -> None:
    with pytest.raises(UsageError, match="1 to 10000 rows"):
        Tasks(["a"]).page(limit)
