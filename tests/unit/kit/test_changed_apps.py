"""A changed app takes over what fits, and is refused before it runs where nothing fits: no wrong result, no wait."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import DeploymentError, PlanError, UsageError

VIEWS = {"member": pl.String, "url": pl.String, "ts": pl.Int64}
Windowed = Callable[[hr.App], hr.App]


def views(app: hr.App, name: str = "views") -> hr.Stream:
    return app.input(name, VIEWS, event_time="ts")


def view(member: str, ts: int, url: str = "/") -> dict[str, object]:
    return {"member": member, "url": url, "ts": ts}


def counting(size: str = "10s", id_: str = "w", key: str = "member", **aggregates: pl.Expr) -> hr.App:
    app = hr.App("counts")
    shuffled = views(app).partition_by("member", id="p")
    window = shuffled.window(hr.tumbling(size), key=["member", key] if key != "member" else "member", id=id_)
    counts = window.agg(**(aggregates or {"n": pl.len()}))
    counts.select("member", "window_start", "window_end", "n").send_to(app.output("out"))
    return app


def with_some(app: hr.App) -> hr.testing.harness.TestApp:  # type: ignore[name-defined]
    t = app.test()
    t.feed("views", [view("ann", 1_000), view("ann", 2_000), view("bob", 3_000)])
    return t


def rows(t: object, output: str = "out") -> list[tuple[object, ...]]:
    return sorted(t.read(output, committed=False).rows())  # type: ignore[attr-defined]


def test_an_unchanged_app_goes_on() -> None:
    with with_some(counting()) as t:
        t.change(counting())
        t.feed("views", [view("ann", 4_000)])
        t.end()
        assert rows(t) == [("ann", 0, 10_000, 3), ("bob", 0, 10_000, 1)]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda: counting("20s"), "step 'w': shape was tumbling 10s, and is now tumbling 20s"),
        (lambda: counting(id_="v"), "step 'w': it is gone, and its state would be lost"),
        (lambda: counting(n=pl.col("ts").sum()), "'n' was count, and is now sum"),
        (lambda: counting(key="url"), "step 'w': key was member: String, and is now member: String, url: String"),
    ],
)
def test_a_window_that_means_something_else_is_refused(changed: Callable[[], hr.App], why: str) -> None:
    with with_some(counting()) as t:
        with pytest.raises(PlanError) as caught:
            t.change(changed())
        assert why in str(caught.value)
        assert "--drop-state w" in (caught.value.hint or "")
        t.end()  # the version before goes on
        assert rows(t) == [("ann", 0, 10_000, 2), ("bob", 0, 10_000, 1)]


def test_a_dropped_window_begins_empty_and_a_renamed_one_keeps_its_state() -> None:
    with with_some(counting()) as t:
        t.change(counting("20s"), drop_state=["w", "p"])
        t.feed("views", [view("ann", 15_000)])
        t.end()
        assert rows(t) == [("ann", 0, 20_000, 1)]
    with with_some(counting()) as t:
        t.change(counting(id_="v"), rename={"v": "w"})
        t.change(counting(id_="v"), rename={"v": "w"})  # it has happened already
        t.end()
        assert rows(t) == [("ann", 0, 10_000, 2), ("bob", 0, 10_000, 1)]


def test_the_id_of_a_step_that_is_gone_can_be_that_of_a_table() -> None:
    """The table begins empty, and the step's state doesn't disappear silently."""
    app = counting(id_="v")
    app.input("rows", {"member": pl.String}).send_to(app.table("w", key="member", schema={"member": pl.String}))
    with counting().test() as t:
        with pytest.raises(PlanError, match="step 'w': it is gone, and its state would be lost"):
            t.change(app)
        t.change(app, drop_state=["w"])
        t.feed("rows", [{"member": "ann"}])


def test_a_table_that_gains_a_time_to_live_is_refused_before_it_runs() -> None:
    """Its rows have no times from which they could expire."""

    def remembering(ttl: str | None) -> hr.App:
        app = hr.App("remembers")
        table = app.table("last", key="member", schema={"member": pl.String}, ttl=ttl)
        views(app).select("member").send_to(table)
        return app

    with with_some(remembering(None)) as t:
        with pytest.raises(PlanError, match="table 'last': expiry was none, and is now by ttl"):
            t.change(remembering("1h"))
        t.change(remembering("1h"), drop_state=["last"])
        t.feed("views", [view("ann", 4_000)])
        t.change(remembering("2h"))


def test_state_is_dropped_only_where_it_must_be() -> None:
    with with_some(counting()) as t:
        t.change(counting(), drop_state=["w"])
        t.end()
        assert rows(t) == [("ann", 0, 10_000, 2), ("bob", 0, 10_000, 1)]


def test_what_is_accepted_has_to_exist() -> None:
    with with_some(counting()) as t:
        with pytest.raises(UsageError, match="--drop-state typo: the app has nothing with this id"):
            t.change(counting(), drop_state=["typo"])
        with pytest.raises(UsageError, match="--rename typo=v: the app had nothing with the id 'typo'"):
            t.change(counting(id_="v"), rename={"v": "typo"})
        with pytest.raises(UsageError, match="--rename w=v: the app has nothing with the id 'v'"):
            t.change(counting(), rename={"v": "w"})


def passing_on(*inputs: str, output: str = "out") -> hr.App:
    app = hr.App("passing")
    first, *others = (views(app, name) for name in inputs)
    first.merge(*others).send_to(app.output(output)) if others else first.send_to(app.output(output))
    return app


def test_a_further_input_leaves_the_stage_its_name_and_position() -> None:
    with passing_on("ev").test() as t:
        t.feed("ev", [view("ann", 1)])
        t.change(passing_on("ev", "aa"))
        assert [stage.name for stage in t.plan.stages] == ["ev"]
        t.feed("aa", [view("bob", 2)])
        t.end()
        assert [row[0] for row in rows(t)] == ["ann", "bob"]


def two_stages(*inputs: str) -> hr.App:
    app = hr.App("two")
    first, *others = (views(app, name) for name in inputs)
    merged = first.merge(*others) if others else first
    shuffled = merged.partition_by("member", id="p")
    shuffled.window(hr.tumbling("10s"), key="member", id="w").agg(n=pl.len()).send_to(app.output("out"))
    return app


def test_a_further_input_before_a_shuffle_holds_nothing_up() -> None:
    with two_stages("ev").test() as t:
        t.feed("ev", [view("ann", 1_000)])
        t.change(two_stages("ev", "aa"))
        t.feed("aa", [view("ann", 2_000), view("ann", 12_000)])
        t.feed("ev", [view("ann", 11_000)])
        assert rows(t) == [("ann", 0, 10_000, 2)]
        t.end()
        assert rows(t) == [("ann", 0, 10_000, 2), ("ann", 10_000, 20_000, 2)]


def test_a_removed_output_leaves_the_rest_as_it_was() -> None:
    def app(*outputs: str) -> hr.App:
        app = hr.App("outs")
        source = views(app)
        for name in outputs:
            source.send_to(app.output(name))
        return app

    with app("a", "b").test() as t:
        t.feed("views", [view("ann", 1)])
        t.change(app("a"))
        t.feed("views", [view("bob", 2)])
        t.change(app("a", "b"))
        t.feed("views", [view("eve", 3)])
        t.end()
        assert [row[0] for row in rows(t, "a")] == ["ann", "bob", "eve"]
        assert [row[0] for row in t.read("b", committed=True).rows()] == ["ann", "eve"]


def test_the_guarantee_may_change() -> None:
    def app(guarantee: str) -> hr.App:
        app = hr.App("guaranteed", guarantee=guarantee)  # type: ignore[arg-type]
        shuffled = views(app).partition_by("member", id="p")
        shuffled.window(hr.tumbling("10s"), key="member", id="w").agg(n=pl.len()).send_to(app.output("out"))
        return app

    for before, after in (("exactly_once", "at_least_once"), ("at_least_once", "exactly_once")):
        with app(before).test() as t:
            t.feed("views", [view("ann", 1)])
            t.change(app(after))
            t.end()
            assert t.ended
            assert rows(t) == [("ann", 0, 10_000, 1)]


def test_a_stage_that_is_gone_ends_in_the_streams_that_are_left() -> None:
    def app(*inputs: str) -> hr.App:
        app = hr.App("gone")
        kept = app.table("last", key="member")
        for name in inputs:
            views(app, name).partition_by("member", id=f"by-{name}").send_to(kept)
        return app

    with app("a", "b").test() as t:
        t.feed("a", [view("ann", 1)])
        t.feed("b", [view("bob", 1)])
        with pytest.raises(PlanError) as caught:
            t.change(app("a"))
        assert "input 'b': it is gone, and its position would be forgotten" in str(caught.value)
        assert "--drop-state b" in (caught.value.hint or "")
        t.change(app("a"), drop_state=["b", "by-b"])
        t.feed("a", [view("eve", 1)])
        t.end()
        assert t.ended


def test_what_has_ended_takes_nothing_new() -> None:
    with two_stages("ev").test() as t:
        t.feed("ev", [view("ann", 1_000)])
        t.end()
        with pytest.raises(DeploymentError, match="task ev/0 has written the end of stream 'p'"):
            t.change(two_stages("ev", "aa"))
    with passing_on("ev").test() as t:
        t.end()
        with pytest.raises(DeploymentError, match=r"task ev/0 has ended, and can't go on .*: .*\.aa\[0\]"):
            t.change(passing_on("ev", "aa"))


def test_a_store_of_a_task_that_gains_a_time_to_live_is_refused_before_it_runs() -> None:
    def seen(ttl: str | None) -> hr.App:
        class Seen(hr.tasks.Task):
            urls = hr.tasks.Store(key={"member": pl.String}, value={"url": pl.String}, ttl=ttl)

            def process(self, message: dict[str, str], out: hr.tasks.Out) -> None:
                self.urls.put(message["member"], {"url": message["url"]})

        app = hr.App("seen")
        views(app).partition_by("member", id="by-member").process(Seen(), id="seen")
        return app

    with with_some(seen(None)) as t, pytest.raises(PlanError, match="expiry was none, and is now by ttl"):
        t.change(seen("1h"))


def spread(partitions: int, key: str = "member") -> hr.App:
    app = hr.App("spread")
    shuffled = views(app).partition_by(key, id="p", partitions=partitions)
    shuffled.deduplicate(["member", "url"], within="1h", id="once").send_to(app.output("out"))
    again = shuffled.partition_by("member", id="p2", partitions=2)
    again.window(hr.tumbling("10s"), key="member", id="w").agg(n=pl.len()).send_to(app.output("counts"))
    return app


@pytest.mark.parametrize("changed", [lambda: spread(1), lambda: spread(3), lambda: spread(2, "url")])
def test_state_that_a_shuffle_would_spread_otherwise_is_refused(changed: Callable[[], hr.App]) -> None:
    with spread(2).test() as t:
        t.feed("views", [view(member, 1_000) for member in "abcd"])
        with pytest.raises(PlanError, match="--drop-state p"):
            t.change(changed())
        with pytest.raises(PlanError, match="step 'once': "):
            t.change(changed(), drop_state=["p"])
        t.change(changed(), drop_state=["p", "once"])
        t.feed("views", [view(member, 2_000) for member in "abcd"])
        t.end()
        assert t.ended
        assert [row[0] for row in rows(t)] == [*"aabbccdd"]
        assert [(row[0], row[3]) for row in rows(t, "counts")] == [(member, 2) for member in "abcd"]


def test_tasks_that_have_ended_do_not_come_back() -> None:
    with spread(3).test() as t:
        for partitions in (1, 3, 2, 3):
            t.change(spread(partitions), drop_state=["p", "once"])
            t.feed("views", [view(member, 1_000) for member in "abcd"])
        t.end()
        assert t.ended
        assert [(row[0], row[3]) for row in rows(t, "counts")] == [(member, 4) for member in "abcd"]


def test_a_step_that_begins_empty_in_an_ended_task_has_nothing_to_say() -> None:
    def app(size: str, partitions: int) -> hr.App:
        app = hr.App("empty")
        shuffled = views(app).partition_by("member", id="p", partitions=partitions)
        shuffled.select("member").send_to(app.output("seen"))
        windows = shuffled.window(hr.tumbling(size), key="member", id="w").agg(n=pl.len())
        again = windows.partition_by("member", id="p2", partitions=1)
        again.window(hr.tumbling("1m"), key="member", id="w2").agg(n=hr.sum("n")).send_to(app.output("out"))
        return app

    with app("10s", 3).test() as t:
        t.change(app("10s", 1), drop_state=["p", "w"])
        t.change(app("20s", 1), drop_state=["w"])
        t.feed("views", [view("ann", 1_000)])
        t.end()
        assert t.ended
        assert [(row[0], row[3]) for row in rows(t)] == [("ann", 1)]


def test_a_test_app_commits_what_follows_a_stage_that_is_new() -> None:
    def app(*inputs: str) -> hr.App:
        app = hr.App("following")
        kept = app.table("last", key="member", schema=VIEWS)
        for name in inputs:
            app.input(name, VIEWS).partition_by("member", id=f"by-{name}").send_to(kept)
        shuffled = views(app).partition_by("member", id="p")
        shuffled.select("member").join(kept, how="left").select("member").send_to(app.output("out"))
        return app

    with app("a").test() as t:
        t.restart(checkpoint=True)
        t.change(app("a", "b"))
        t.feed("views", [view("ann", 1)])
        t.restart(checkpoint=True)
        assert t.read("out", committed=True).height == 1


def test_streams_that_two_stages_have_read_do_not_meet_in_one() -> None:
    def app(*, together: bool) -> hr.App:
        app = hr.App("meeting")
        left = views(app, "a").partition_by("member", id="p", partitions=1).select("member")
        right = views(app, "b").partition_by("member", id="q", partitions=1).select("member")
        if together:
            left.merge(right).send_to(app.output("out"))
        else:
            left.send_to(app.output("out"))
            right.send_to(app.output("other"))
        return app

    with app(together=False).test() as t:
        t.feed("a", [view("ann", 1)])
        t.feed("b", [view("bob", 1)])
        with pytest.raises(PlanError, match="intermediate stream 'q': it moves from stage 'q' to 'p'"):
            t.change(app(together=True))
        t.change(app(together=True), drop_state=["q"])
        t.feed("b", [view("eve", 2)])
        t.end()
        assert t.ended
        assert [row[0] for row in rows(t)] == ["ann", "eve"]
