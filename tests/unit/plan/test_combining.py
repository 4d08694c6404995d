"""combining: which windows are aggregated in part before the shuffle."""

from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest

import headrace as hr
from headrace.plan.passes import combined_windows

COLUMNS = {"member": pl.String, "page": pl.String, "ts": pl.Int64}
COUNT = {"n": hr.count()}


def app_with(steps: Callable[[hr.App, hr.Stream], None]) -> hr.App:
    app = hr.App("combining")
    steps(app, app.input("views", COLUMNS, event_time="ts"))
    return app


def per_member(app: hr.App, views: hr.Stream) -> None:
    window = views.partition_by("member", id="by-member").window(hr.tumbling("1s"), key="member", id="w").agg(**COUNT)
    window.send_to(app.output("out"))


def finer_keys(app: hr.App, views: hr.Stream) -> None:
    window = (
        views.partition_by("member", id="by-member")
        .window(hr.tumbling("1s"), key=["page", "member"], id="w")
        .agg(**COUNT)
    )
    window.send_to(app.output("out"))


def sessions(app: hr.App, views: hr.Stream) -> None:
    shuffled = views.partition_by("member", id="by-member")
    shuffled.window(hr.session("1s"), key="member", id="w").agg(**COUNT).send_to(app.output("out"))


def sessions_with_panes(app: hr.App, views: hr.Stream) -> None:
    shuffled = views.partition_by("member", id="by-member")
    shuffled.window(hr.session("1s"), key="member", id="w", early=hr.triggers.every(2)).agg(**COUNT).send_to(
        app.output("out")
    )


def sessions_whose_late_messages_are_wanted(app: hr.App, views: hr.Stream) -> None:
    shuffled = views.partition_by("member", id="by-member")
    late = app.output("late")
    shuffled.window(hr.session("1s"), key="member", id="w", late_to=late).agg(**COUNT).send_to(app.output("out"))


def other_keys(app: hr.App, views: hr.Stream) -> None:
    window = views.partition_by("member", id="by-member").window(hr.tumbling("1s"), key="page", id="w").agg(**COUNT)
    window.send_to(app.output("out"))


def a_step_between(app: hr.App, views: hr.Stream) -> None:
    shuffled = views.partition_by("member", id="by-member").filter(pl.col("page") != "/")
    shuffled.window(hr.tumbling("1s"), key="member", id="w").agg(**COUNT).send_to(app.output("out"))


def messages_wanted_too(app: hr.App, views: hr.Stream) -> None:
    shuffled = views.partition_by("member", id="by-member")
    shuffled.window(hr.tumbling("1s"), key="member", id="w").agg(**COUNT).send_to(app.output("out"))
    shuffled.send_to(app.output("copies"))


@pytest.mark.parametrize("steps", [per_member, finer_keys, sessions])
def test_a_window_that_groups_by_the_keys_of_the_shuffle_is_combined(
    steps: Callable[[hr.App, hr.Stream], None],
) -> None:
    assert combined_windows(app_with(steps).graph()) == {"by-member": "w"}


@pytest.mark.parametrize(
    "steps",
    [other_keys, a_step_between, messages_wanted_too, sessions_with_panes, sessions_whose_late_messages_are_wanted],
)
def test_others_are_not(steps: Callable[[hr.App, hr.Stream], None]) -> None:
    assert combined_windows(app_with(steps).graph()) == {}


def test_it_can_be_left_out() -> None:
    graph = app_with(per_member).graph()
    assert combined_windows(replace(graph, settings=replace(graph.settings, combine=False))) == {}
