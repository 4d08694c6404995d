"""The text: aligned, complete, with the lines of the user's file. The golden cases show whole plans."""

from __future__ import annotations

from graph_builder import AppBuilder

from headrace.plan.render import render, to_text


def an_app() -> AppBuilder:
    app = AppBuilder()
    t = app.table("t", app.side_input("side", 1))
    app.output("out", app.table_join("j", app.broadcast("all", app.input("s", 1)), t))
    return app


def test_columns_begin_at_the_same_place():
    stage = to_text(render(an_app().plan())).split("\n\n")[2].splitlines()
    assert stage[0] == "stage all: 1 task"
    for word in (
        "1 partition, broadcast",
        "1 partition, partitioned by k, keeps t",
        "from all, with table t, inner on k",
    ):
        assert any(line[24:].startswith(word) for line in stage), word
    assert len({line.index("pipeline.py") for line in stage[1:]}) == 1


def test_streams_and_tables_are_listed_at_the_end():
    *_, streams, tables = to_text(render(an_app().plan())).split("\n\n")
    assert streams.splitlines()[1].split(maxsplit=5) == [
        "all",
        "intermediate",
        "log.all",
        "1",
        "partition",
        "s -> all        pipeline.py:5",
    ]
    assert tables == "tables\n  t  local  key k  kept by side  joined by j  pipeline.py:2\n"


def test_numbers_are_grouped_and_grouping_by_container_is_said():
    app = AppBuilder(grouping="container")
    app.output("out", app.input("s", 1200))
    text = to_text(render(app.plan()))
    assert text.startswith("test-app: 1 stage, 1 task, at-least-once, one task for each container\n")
    assert "1,200 partitions" in text


def test_no_line_ends_in_blanks():
    app = AppBuilder()
    app.output("out", app.input("s", 2))
    assert all(line == line.rstrip() for line in to_text(render(app.plan())).splitlines())
