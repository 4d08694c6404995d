"""Names that other libraries use: the error says what to write here, and every advice names what exists."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api import other_names


def things() -> dict[str, tuple[Any, Mapping[str, str]]]:
    app = hr.App("names")
    views = app.input("views", {"member": pl.String, "ts": pl.Int64}, event_time="ts")
    return {
        "stream": (views, other_names.STREAM),
        "window": (views.window(hr.tumbling("10s"), key="member", id="w"), other_names.WINDOWED),
        "app": (app, other_names.APP),
        "table": (app.table("t", key="member", schema=views.schema), other_names.TABLE),
        "output": (app.output("out"), other_names.OUTPUT),
        "hr": (hr, other_names.HR),
        "hr.io": (hr.io, other_names.IO),
        "hr.aggregates": (hr.aggregates, other_names.AGGREGATES),
        "hr.windows": (hr.windows, other_names.WINDOWS),
    }


KINDS = list(things())


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_is_answered_and_none_of_them_exists(kind: str) -> None:
    thing, words = things()[kind]
    for word, advice in words.items():
        with pytest.raises(AttributeError) as caught:
            getattr(thing, word)
        assert repr(word) in str(caught.value)
        assert advice in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_an_advice_names_what_exists(kind: str) -> None:
    thing, words = things()[kind]
    app, stream = things()["app"][0], things()["stream"][0]
    for advice in words.values():
        for path in re.findall(r"\bhr\.[A-Za-z_.]+[A-Za-z_]", advice):
            found: Any = hr
            for name in path.split(".")[1:]:
                found = getattr(found, name)
        for name in re.findall(r"\bapp\.(\w+)\(", advice):
            assert hasattr(app, name), advice
        for name in re.findall(r"\bpl\.(\w+)", advice):
            assert hasattr(pl, name), advice
        for name in re.findall(r"(?:^|\bstream\.|, then | or )(\w+)\(", advice):
            assert hasattr(thing, name) or hasattr(stream, name), advice


def test_some_of_them_read_aloud() -> None:
    stream: Any = things()["stream"][0]
    with pytest.raises(AttributeError) as caught:
        stream.withColumn("x", 1)
    assert str(caught.value) == "a stream has no 'withColumn'; write with_columns(name=...)"
    hr_: Any = hr
    with pytest.raises(AttributeError, match=r"^hr has no 'kafka'; write hr\.io\.kafka\("):
        hr_.kafka("localhost:9092")
    with pytest.raises(AttributeError, match=r"^hr has no 'sliding'; write hr\.windows\.sliding$"):
        hr_.sliding("10s")


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("stream", "fliter", "filter"),
        ("stream", "partition_bye", "partition_by"),
        ("window", "aggr", "agg"),
        ("app", "outputs", "output"),
        ("hr", "tumblin", "tumbling"),
        ("hr", "Ap", "App"),
        ("hr.aggregates", "imploded", "implode"),
    ],
)
def test_a_misspelt_name_is_recognised(kind: str, name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no '{name}'; did you mean '{meant}'\?$"):
        getattr(things()[kind][0], name)


def test_a_name_that_is_like_nothing_is_just_missing() -> None:
    with pytest.raises(AttributeError, match=r"^a stream has no 'xyzzy'$"):
        _ = things()["stream"][0].xyzzy  # type: ignore[attr-defined, unused-ignore]


@pytest.mark.parametrize("kind", KINDS)
def test_questions_of_python_and_notebooks_get_a_plain_no(kind: str) -> None:
    thing = things()[kind][0]
    for name in ("_repr_markdown_", "_ipython_display_", "_ipython_canary_method_should_not_exist_", "__array__"):
        assert not hasattr(thing, name)
        with pytest.raises(AttributeError, match=f"has no '{name}'$"):
            getattr(thing, name)


def test_streams_are_copied_and_pickled_as_before() -> None:
    stream = things()["stream"][0]
    assert copy.copy(stream).node == stream.node
    assert copy.deepcopy(stream).schema == stream.schema
    assert pickle.loads(pickle.dumps(stream)).node == stream.node
    assert not hasattr(type(stream).__new__(type(stream)), "__deepcopy__")
    with pytest.raises(AttributeError):
        _ = type(stream).__new__(type(stream)).node


@pytest.mark.parametrize(
    ("use", "error", "says"),
    [
        (lambda s: s["member"], TypeError, r"a stream has no \[\]; the column is pl.col\('member'\)"),
        (lambda s: s.member, AttributeError, r"a stream has no 'member'; the column is pl.col\('member'\)"),
        (lambda s: s[["member", "ts"]], TypeError, r"write select\('member', 'ts'\)"),
        (lambda s: s[pl.col("member") == "a"], TypeError, r"write filter\(...\)"),
        (lambda s: s[:5], TypeError, r"head\(5\) returns"),
        (list, TypeError, "'Stream' object is not iterable"),
    ],
)
def test_a_stream_used_as_a_dataframe(use: Callable[[Any], object], error: type[Exception], says: str) -> None:
    stream = hr.App("framed").input("views", {"member": pl.String, "ts": pl.Int64})
    with pytest.raises(error, match=says):
        use(stream)
