"""split, sample and pipe: operators made of other operators."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.api.composed import sampler
from headrace.api.operators.steps import Filter
from headrace.rows.hashing import partition_of

VIEWS: dict[str, Any] = {"member": pl.String, "ms": pl.Int64}


def test_split_sends_a_message_to_the_first_branch_that_is_true() -> None:
    app = hr.App("views")
    views = app.input("views", VIEWS)
    parts = views.split({"slow": pl.col("ms") > 100, "long": pl.col("ms") > 10, "ann": pl.col("member") == "ann"})
    for name, part in parts.items():
        part.send_to(app.output(name))
    with app.test() as t:
        t.feed(
            "views", [{"member": m, "ms": ms} for m, ms in [("a", 101), ("b", 11), ("ann", 500), ("ann", 1), ("c", 2)]]
        )
        assert [t.read(name)["ms"].to_list() for name in parts] == [[101, 500], [11], [1]]


@given(
    rows=st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.integers(0, 9))), max_size=30)
)
def test_split_with_others_loses_and_doubles_nothing(rows: list[tuple[str | None, int | None]]) -> None:
    app = hr.App("views")
    views = app.input("views", VIEWS)
    parts = views.split({"a": pl.col("member") == "a", "few": pl.col("ms") < 5}, others="rest")
    for name, part in parts.items():
        part.send_to(app.output(name))
    expected: dict[str, list[Any]] = {"a": [], "few": [], "rest": []}
    for member, ms in rows:
        expected["a" if member == "a" else "few" if ms is not None and ms < 5 else "rest"].append((member, ms))
    with app.test() as t:
        if rows:
            t.feed("views", [{"member": member, "ms": ms} for member, ms in rows])
        assert {name: t.read(name).rows() for name in parts} == expected


def test_split_takes_a_boolean_column_and_one_branch_with_others(app: hr.App) -> None:
    views = app.input("flags", {"flag": pl.Boolean})
    parts = views.split({"yes": "flag"}, others="no")
    assert list(parts) == ["yes", "no"]
    assert all(part.schema == views.schema for part in parts.values())


def sampled(frame: pl.DataFrame, fraction: float, by: Any = "member", seed: int | None = None) -> pl.DataFrame:
    return sampler(hr.Schema.of(VIEWS), fraction, by, seed)(frame)


def test_a_sample_by_key_has_all_messages_of_some_keys() -> None:
    frame = pl.DataFrame({"member": [f"m{n % 2_000}" for n in range(8_000)], "ms": range(8_000)})
    part = sampled(frame, 0.1)
    assert 150 <= part["member"].n_unique() <= 250
    assert part.group_by("member").len()["len"].unique().to_list() == [4]
    assert pl.concat([sampled(half, 0.1, seed=0) for half in (frame[:3_000], frame[3_000:])]).equals(part)
    assert set(part["member"]) < set(sampled(frame, 0.3)["member"])
    assert set(sampled(frame, 0.1, seed=1)["member"]) != set(part["member"])
    assert sampled(frame, 1).equals(frame)


def test_a_sample_by_key_is_the_same_for_ever() -> None:
    frame = pl.DataFrame({"member": [f"m{n}" for n in range(30)], "ms": range(30)})
    assert sampled(frame, 0.2, seed=7)["ms"].to_list() == [0, 1, 4, 6, 7, 14, 25]


def test_a_sample_by_key_has_keys_of_every_partition() -> None:
    frame = pl.DataFrame({"member": [f"m{n}" for n in range(4_000)], "ms": range(4_000)})
    part = sampled(frame, 0.25, ["member"])
    assert all(150 <= (partition_of(part, ["member"], 4) == n).sum() <= 350 for n in range(4))


def test_a_null_key_is_chosen_or_not_as_any_other() -> None:
    frame = pl.DataFrame({"member": [None, None], "ms": [1, 2]}, schema=VIEWS)
    assert {sampled(frame, 0.5, seed=seed).height for seed in range(40)} == {0, 2}


def test_a_sample_without_a_key_takes_about_so_many() -> None:
    app = hr.App("views")
    app.input("views", VIEWS).sample(0.25).send_to(app.output("out"))
    with app.test() as t:
        t.feed("views", pl.DataFrame({"member": ["a"] * 10_000, "ms": range(10_000)}))
        assert 2_000 <= t.read("out").height <= 3_000  # this fails by chance once in 10^30
    assert sampled(pl.DataFrame({"member": ["a"] * 9}), 1, None).height == 9


def test_a_sample_keeps_columns_and_event_time(views: hr.Stream) -> None:
    part = views.sample(0.5, key=["member", "url"], seed=3)
    assert (part.schema, part.event_time) == (views.schema, views.event_time)


@pytest.mark.parametrize("by", [None, "member"])
def test_a_sample_can_be_sent_to_containers(by: str | None) -> None:
    there = pickle.loads(pickle.dumps(sampler(hr.Schema.of(VIEWS), 1, by, None)))
    assert there(pl.DataFrame({"member": ["a", "b"], "ms": [1, 2]})).height == 2


def test_pipe_calls_an_operator_of_the_users(app: hr.App, views: hr.Stream) -> None:
    def slower_than(stream: hr.Stream, ms: int, *, only: str) -> hr.Stream:
        return stream.filter(pl.col("ms") > ms).select(only)

    slow = views.pipe(slower_than, 100, only="url")
    slow.send_to(app.output("out"))
    assert list(slow.schema.columns) == ["url"]
    node = app.graph().nodes["filter-1"]
    assert isinstance(node.operator, Filter)
    assert "slower_than" not in node.location.text  # the line inside the operator, where the filter is
    assert views.pipe(lambda stream: 3) == 3


WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda s: s.split({}), "split: split() needs at least one predicate"),
    (lambda s: s.split("ms"), "split: split() needs at least one predicate"),
    (lambda s: s.split({"a": "ms"}), 'the predicate col("ms") is Int64, not Boolean'),
    (lambda s: s.split({"a": pl.col("nope") > 1}), "there is no column 'nope'"),
    (lambda s: s.split({"a": lambda row: True}), "the predicate of 'a' must be a column name or a Polars expression"),
    (lambda s: s.split({3: pl.col("ms") > 1}), "the name of a branch is a string, not 3"),
    (lambda s: s.split({"a": pl.col("ms") > 1}, others=""), "the name of a branch is a string, not ''"),
    (lambda s: s.split({"a": pl.col("ms") > 1}, others="a"), "others='a' is already the name of a branch"),
    (lambda s: s.sample(0), "fraction=0 is not in (0, 1]"),
    (lambda s: s.sample(1.1), "fraction=1.1 is not in (0, 1]"),
    (lambda s: s.sample(-0.5, key="url"), "fraction=-0.5 is not in (0, 1]"),
    (lambda s: s.sample(float("nan")), "fraction=nan is not in (0, 1]"),
    (lambda s: s.sample(True), "fraction=True is not in (0, 1]"),
    (lambda s: s.sample("0.1"), "fraction='0.1' is not in (0, 1]"),
    (lambda s: s.sample(0.1, key=[]), "sample: key= names no column"),
    (lambda s: s.sample(0.1, key="nope"), "there is no column 'nope'"),
    (lambda s: s.sample(0.1, seed=3), "seed= chooses by key"),
    (lambda s: s.sample(0.1, key="url", seed=-1), "seed=-1 is not a whole number of at least 0"),
    (lambda s: s.sample(0.1, key="url", seed="x"), "seed='x' is not a whole number of at least 0"),
]


@pytest.mark.parametrize(("step", "message"), WRONG)
def test_what_is_wrong_is_said_with_the_users_line(
    views: hr.Stream, step: Callable[[hr.Stream], object], message: str
) -> None:
    with pytest.raises(hr.errors.DeclarationError) as info:
        step(views)
    assert message in str(info.value)
    assert "test_stream_composed.py:" in str(info.value)


def test_a_split_by_nothing_says_how_to_write_it(views: hr.Stream) -> None:
    for call in (views.split, lambda: views.split({}), lambda: views.split(others="rest")):
        with pytest.raises(hr.errors.DeclarationError, match="needs at least one predicate"):
            call()
