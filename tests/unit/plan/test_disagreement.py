"""When partition counts can't agree, the error shows the whole way from one count to the other."""

from __future__ import annotations

import pytest
from graph_builder import AppBuilder

from headrace.core.errors import PlanError
from headrace.systems.base import StreamInfo


def error_of(app: AppBuilder) -> str:
    with pytest.raises(PlanError) as caught:
        app.plan()
    return str(caught.value)


def test_two_inputs():
    # The right-hand side of the seed's figure 3.
    app = AppBuilder()
    s1, s2 = app.input("s1", 8), app.input("s2", 16)
    app.output("out", app.join("j", s1, s2))
    assert error_of(app) == (
        "streams that meet in 'j' need equal partition counts, but can't have them:\n"
        "  source 's1' has 8 partitions (/app/pipeline.py:1: app.input(\"s1\"))\n"
        "  join 'j' (/app/pipeline.py:5: in-s1.join(in-s2)) brings together 's1' and 's2'\n"
        "  source 's2' has 16 partitions (/app/pipeline.py:3: app.input(\"s2\"))\n"
        "  hint: put a partition_by after 's1' or after 's2': "
        "an intermediate stream takes the partition count of the streams it meets"
    )


def test_an_intermediate_stream_between_two_inputs():
    # The seed's figure 5.
    app = AppBuilder()
    s1, s2, s4 = app.input("s1", 16), app.input("s2", 64), app.input("s4", 32)
    by_k = app.partition_by("s2-by-k", s2)
    app.output("s3", app.join("first", s1, by_k))
    app.output("s5", app.join("second", by_k, s4))
    lines = error_of(app).splitlines()
    assert lines[0] == "streams that meet in 'first' and 'second' need equal partition counts, but can't have them:"
    assert lines[1].startswith("  source 's1' has 16 partitions (/app/pipeline.py:1:")
    assert lines[2].startswith("  join 'first' (/app/pipeline.py:10: in-s1.join(in-s2-by-k)) brings together 's1' and")
    assert lines[3].startswith(
        "  join 'second' (/app/pipeline.py:13: in-s2-by-k.join(in-s4)) brings together 's2-by-k'"
    )
    assert lines[4].startswith("  source 's4' has 32 partitions (/app/pipeline.py:5:")


def test_a_long_way_shows_every_join_on_it_and_no_other():
    app = AppBuilder()
    a, b, c = (app.partition_by(name, app.input(f"from-{name}", 1)) for name in "abc")
    app.output("out", app.join("j1", app.input("s1", 4), a))
    app.output("out", app.join("j2", a, b))
    app.output("out", app.join("j3", b, c))
    app.output("out", app.join("j4", c, app.input("s2", 6)))
    app.output("out", app.join("aside", a, app.partition_by("d", "in-s1")))
    text = error_of(app)
    assert [line.split("'")[1] for line in text.splitlines()[2:6]] == ["j1", "j2", "j3", "j4"]
    assert "aside" not in text


def test_a_table_and_its_side_input_are_named():
    app = AppBuilder()
    t = app.table("t", app.side_input("side", 8))
    app.output("out", app.table_join("j", app.input("s", 4), t))
    text = error_of(app)
    assert "join 'j' with table 't' (/app/pipeline.py:5: in-s.join(t)) brings together 's' and 'side'" in text
    assert "side-input 'side' has 8 partitions" in text


def test_a_keyed_window_after_a_merge_is_named():
    app = AppBuilder()
    app.output("out", app.window("w", app.merge("m", app.input("s1", 4), app.input("s2", 6))))
    assert "window 'w' (/app/pipeline.py:6: w) brings together 's1' and 's2'" in error_of(app)


def test_a_fixed_count_is_called_a_declared_one_and_the_remedy_is_to_leave_it_out():
    app = AppBuilder()
    app.output("out", app.join("j", app.input("s1", 4), app.partition_by("a", app.input("s2", 4), partitions=6)))
    text = error_of(app)
    assert "intermediate 'a' is declared with 6 partitions" in text
    assert "hint: leave out partitions= of 'a'" in text


def test_two_existing_intermediate_streams_that_are_joined_only_now():
    app = AppBuilder()
    a, b = app.partition_by("a", app.input("s1", 4)), app.partition_by("b", "in-s1")
    app.output("out", app.join("j", a, b))
    app.facts |= {"a": StreamInfo("a", 4), "b": StreamInfo("b", 6)}
    text = error_of(app)
    assert "intermediate 'a' has 4 partitions" in text
    assert "hint: give 'a' another id" in text


def test_of_several_conflicts_the_shortest_is_reported():
    app = AppBuilder()
    a, b = (app.partition_by(name, app.input(f"from-{name}", 1)) for name in "ab")
    app.output("out", app.join("j1", app.input("s1", 4), a))
    app.output("out", app.join("j2", a, b))
    app.output("out", app.join("j3", b, app.input("s2", 6)))
    app.output("out", app.join("direct", app.input("s3", 4), app.input("s4", 6)))
    assert error_of(app).startswith("streams that meet in 'direct' need")


def test_what_writes_a_table_is_named_with_the_table():
    app = AppBuilder()
    t = app.table("t")
    app.fill(t, app.input("s1", 4))
    app.fill(t, app.input("s2", 6))
    lines = error_of(app).splitlines()
    assert lines[0] == "streams that meet in table 't' need equal partition counts, but can't have them:"
    assert lines[2] == "  table 't' (/app/pipeline.py:1: app.table(\"t\")) brings together 's1' and 's2'"


def test_a_side_input_is_not_told_to_be_partitioned():
    app = AppBuilder()
    t = app.table("t", app.side_input("side1", 8), app.side_input("side2", 4))
    app.output("out", app.table_join("j", app.partition_by("x", app.input("s", 4)), t))
    assert "hint: fill the table by send_to instead of side_inputs=, with a partition_by before it" in error_of(app)
