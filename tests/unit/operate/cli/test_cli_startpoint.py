"""The commands ``startpoint`` and ``offsets``, on an app that has run, and on one that runs."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "run"))
from startpoint_scene import Scene

from headrace.core.clock import WallClock
from headrace.task.host.task_host import Detours

FILE = """
import polars as pl
import headrace as hr
from dataclasses import dataclass

@dataclass(frozen=True)
class First(hr.startpoints.CustomStartpoint):
    kind = "first"
    skip: int = 0

    def offset(self, partition):
        return partition.oldest if not self.skip else partition.upcoming

app = hr.App("page-views", checkpoint_interval="200ms", startpoints=[First])
rates = app.input("rates", {"currency": pl.String, "rate": pl.Float64}, broadcast=True)
app.input("views", {"member": pl.String, "n": pl.Int64}).send_to(app.output("seen"))
"""


@pytest.fixture
def scene(home):
    scene = Scene(home)
    scene.write(10)
    scene.run()
    return scene


def lines(outcome):
    assert outcome.code == 0, outcome.err
    return [" ".join(line.split()) for line in outcome.out.splitlines()]


def test_set_list_and_delete(scene, cli):
    shown = lines(cli("startpoint", "set", "page-views", "views", "--oldest"))
    assert shown[0] == "input task from to what from time to time"
    assert sum("again" in line for line in shown) >= 1
    assert cli("startpoint", "set", "page-views", "views/0", "--upcoming").err.splitlines()[0] == (
        "note: this replaces oldest for log.views[0], which was never applied"
    )
    listed = lines(cli("startpoint", "list", "page-views"))
    assert listed[0] == "input partition task startpoint state set note"
    assert [re.sub(r" \S+@\S+ [0-9:. -]+Z", " BY", line) for line in listed[1:]] == [
        "log.views 0 all upcoming pending: waits for the next start BY",
        "log.views 1 all oldest pending: waits for the next start BY",
    ]
    assert len(lines(cli("startpoint", "list", "page-views", "views/1"))) == 2
    assert lines(cli("startpoint", "delete", "page-views", "views/0")) == ["deleted upcoming for log.views[0]"]
    assert cli("startpoint", "delete", "page-views", "views/0").err == "no startpoint is set for views/0\n"
    scene.run()
    assert cli("startpoint", "list", "page-views").err == "app 'page-views' has no startpoints\n"
    (done,) = [line for line in lines(cli("startpoint", "list", "page-views", "--done")) if "log.views 1" in line]
    assert "oldest applied at offset 32 by generation 2, committed in" in done


def test_a_dry_run_shows_what_would_happen_and_changes_nothing(scene, cli):
    outcome = cli("startpoint", "set", "page-views", "views", "--oldest", "--dry-run")
    assert "nothing was changed" in outcome.err
    assert "note: results of messages that are read again are sent again" in outcome.err
    assert "takes effect" not in outcome.err
    data = cli("startpoint", "set", "page-views", "views", "--oldest", "--dry-run", "--json").json()
    assert sum(move["messages"] for move in data["moves"]) == 10
    assert data["dryRun"] is True
    assert cli("startpoint", "list", "page-views", "--json").json() == []


def test_a_range_is_read_again_and_then_what_is_new(scene, cli):
    one = next(at for at in cli("offsets", "page-views", "--json").json() if at["input"] == "views" and at["committed"])
    oldest, newest, where = one["oldest"], one["newest"], one["partition"]
    assert newest > oldest
    outcome = cli("startpoint", "set", "page-views", f"views/{where}", "--oldest", "--until", str(newest))
    assert f"up to {newest:,}, then on as before" in outcome.out
    assert "note: results of messages that are read again are sent again" in outcome.err
    (listed,) = lines(cli("startpoint", "list", "page-views"))[1:]
    assert f"oldest until offset {newest:,} pending" in listed
    assert f"oldest until offset {newest:,} for log.views[{where}] (pending)" in cli("offsets", "page-views").err
    scene.write(4, first=10)
    scene.run()
    seen = scene.seen()
    assert set(seen) == set(range(14))
    assert 14 < len(seen) <= 14 + 10
    (done,) = lines(cli("startpoint", "list", "page-views", "--done"))[1:]
    assert f"applied at offset {oldest} until offset {newest:,} by generation 2, committed in" in done


def test_commands_say_where_an_app_goes_on_that_reads_a_range(scene, cli, monkeypatch):
    """It dies at the end of the range, before it has left it, and goes on from there."""
    one = next(at for at in cli("offsets", "page-views", "--json").json() if at["input"] == "views" and at["committed"])
    where, newest, task = one["partition"], one["newest"], one["task"]
    cli("startpoint", "set", "page-views", f"views/{where}", "--oldest", "--until", str(newest), "--task", task)
    scene.write(4, first=10)
    with monkeypatch.context() as stuck:
        stuck.setattr(Detours, "look", lambda *_: None)
        with scene.running():
            scene.until(lambda: scene.points.list(done=True)[0].state == "released")
            scene.until(lambda: len(scene.seen()) > 10)
    before = scene.seen()
    asked = cli("offsets", "page-views")
    assert f"views/{where} in task {task} is read again up to {newest:,}, and then on from {newest:,}" in asked.err
    (there,) = [at for at in cli("offsets", "page-views", "--json").json() if "until" in at]
    assert (there["until"], there["back"]) == (newest, newest)
    shown = cli("checkpoint", "show", "page-views", task)
    assert f"up to offset {newest:,} again, and then on from offset {newest:,}" in shown.out
    scene.run()
    assert set(scene.seen()) == set(range(14))
    assert len(scene.seen()) >= len(before)
    assert not [at for at in cli("offsets", "page-views", "--json").json() if "until" in at]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("views", "--upcoming", "--until", "5"), "--until doesn't go with --upcoming"),
        (("views", "--oldest", "--until", "500"), "input 'views' has 2 partitions, each with its own offsets"),
        (("views/0", "--oldest", "--until", "32"), "log.views[0]: the end, offset 32, isn't after the start"),
        (("views/0", "--oldest", "--until", "99999999"), "is after the end"),
        (("views", "--ago", "1h", "--until", "2h"), "isn't after the start"),
        (("views", "--ago", "2h", "--until", "1h"), "no message of 'views' lies in time"),
        (("views", "--oldest", "--until", "2999-01-01T00:00Z"), "the end, 2999-01-01 00:00:00Z, is in the future"),
        (("views", "--oldest", "--until", "soon"), "'soon' isn't a time"),
    ],
)
def test_an_end_that_makes_no_sense(scene, cli, options, message):
    outcome = cli("startpoint", "set", "page-views", *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert "hint" in outcome.err
    assert cli("startpoint", "list", "page-views", "--json").json() == []


def test_apply_waits_until_it_is_committed(scene, cli):
    with scene.running():
        scene.until(scene.caught_up)
        outcome = cli("startpoint", "set", "page-views", "views", "--oldest", "--apply")
    applied = [line for line in lines(outcome) if "applied at offset 32 by generation" in line]
    assert len(applied) == 2
    assert scene.seen() == sorted([*range(10)] * 2)


def test_without_apply_a_running_app_goes_on_and_the_command_says_so(scene, cli):
    with scene.running():
        scene.until(scene.caught_up)
        outcome = cli("startpoint", "set", "page-views", "views", "--oldest")
        assert "it takes effect at the app's next start" in outcome.err
        assert cli("startpoint", "set", "page-views", "nothing", "--oldest").err.startswith(
            "error: app 'page-views' has no input 'nothing'"
        )
        assert cli("startpoint", "delete", "page-views", "views").code == 0
    assert scene.seen() == list(range(10))


def test_a_time_without_a_zone_is_taken_for_utc_and_the_command_says_so(scene, cli):
    outcome = cli("startpoint", "set", "page-views", "views", "--time", "2001-01-01T12:00:00", "--dry-run")
    assert outcome.err.startswith("note: 2001-01-01T12:00:00 names no zone, so it is read as UTC: 2001-01-01 12:00:00Z")


def test_the_apps_file_in_place_of_its_name(scene, cli, tmp_path, clean_modules):
    (tmp_path / "pipeline.py").write_text(FILE)
    outcome = cli("startpoint", "set", "pipeline.py", "views", "--custom", '{"kind": "first"}')
    assert sum("again" in line for line in lines(outcome)) >= 1
    assert any("first {}" in line for line in lines(cli("startpoint", "list", "page-views")))
    wrong = cli("startpoint", "set", "pipeline.py", "views", "--custom", '{"kind": "first", "skip": "x"}')
    assert (wrong.code, "the startpoint 'first' doesn't take" in wrong.err) == (2, True)


def test_offsets(scene, cli):
    scene.write(3, first=50)
    shown = lines(cli("offsets", "page-views"))
    assert shown[0] == "input task committed lag oldest end committed time oldest time newest time"
    data = [one for one in cli("offsets", "page-views", "--json").json() if one["input"] == "views"]
    assert sum(one["lag"] for one in data) == 3
    assert {one["oldest"] for one in data} == {32}


def test_a_waiting_startpoint_shows_where_the_app_is_with_who_set_it_and_why(scene, cli, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ann")
    before = WallClock().now_ms()
    offsets = cli("offsets", "page-views", "--json").json()
    zero, one = [at["task"] for at in offsets if at["input"] == "views"]
    cli("startpoint", "set", "page-views", "views", "--oldest", "--note", "OPS-7: lost orders")
    cli("startpoint", "set", "page-views", "views/0", "--upcoming", "--task", zero)
    shown = cli("offsets", "page-views")
    me = f"ann@{socket.gethostname()}"
    assert f"startpoint upcoming for log.views[0] in task {zero} (pending), set by {me} at 2" in shown.err
    assert re.search(rf"oldest for log.views\[1\] \(pending\), set by {me} at .*Z: OPS-7: lost orders\n", shown.err)
    offsets = cli("offsets", "page-views", "--json").json()
    waiting = {at["task"]: at["startpoint"] for at in offsets if at["startpoint"] is not None}
    assert {task: at["startpoint"]["kind"] for task, at in waiting.items()} == {zero: "upcoming", one: "oldest"}
    assert waiting[one]["by"] == me
    assert before <= waiting[one]["startpoint"]["createdMs"] <= WallClock().now_ms()
    assert "OPS-7" in "".join(lines(cli("startpoint", "list", "page-views")))
    wrong = cli("startpoint", "set", "page-views", "views", "--oldest", "--note", "a\nb")
    assert (wrong.code, "must be one line" in wrong.err) == (2, True)


def test_the_plan_shows_what_waits_for_the_next_start(scene, cli, tmp_path, clean_modules):
    (tmp_path / "pipeline.py").write_text(FILE)
    assert "startpoints" not in cli("plan", "pipeline.py").out
    cli("startpoint", "set", "pipeline.py", "views/0", "--oldest", "--note", "OPS-7")
    shown = cli("plan", "pipeline.py").out.partition("startpoints, for the next live start; a batch job applies none")
    assert re.match(r"\n  oldest for log.views\[0\] \(pending\), set by \S+@\S+ at 2.*Z: OPS-7\n", shown[2])
    assert "OPS-7" in cli("plan", "pipeline.py", "--against", "page-views").out
    (state,) = json.loads(cli("plan", "pipeline.py", "--against", "page-views", "--json").out)["startpoints"]
    assert (state["state"], state["note"]) == ("pending", "OPS-7")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("views",), "no position is given"),
        (("views", "--oldest", "--upcoming"), "--oldest and --upcoming are different positions"),
        (("views/0", "--offset", "1.5"), "--offset 1.5: expected an integer"),
        (("views/0", "--offset", "-3"), "--offset -3: expected an integer"),
        (("views/0", "--offset", "9999999"), "is after the end"),
        (("views", "--offset", "32"), "input 'views' has 2 partitions, each with its own offsets"),
        (("views/x", "--oldest"), "'views/x': expected INPUT/PARTITION"),
        (("views/7", "--oldest"), "input 'views' has no partition 7; its partitions are 0 to 1"),
        (("clicks", "--oldest"), "app 'page-views' has no input 'clicks'"),
        (("by-member", "--oldest"), "'by-member' is an intermediate stream of app 'page-views'"),
        (("views", "--time", "noon"), "'noon' isn't a time"),
        (("views", "--oldest", "--or-oldest"), "--or-oldest doesn't go with --oldest"),
        (("views", "--time", "2200-01-01"), "2200-01-01 00:00:00Z is in the future"),
        (("views", "--ago", "5"), "ago: '5' isn't a duration"),
        (("views", "--custom", "{"), "--custom: not JSON"),
        (("views", "--custom", "{}"), "--custom: the JSON has no"),
        (("views", "--custom", '{"kind": "magic"}'), "doesn't know positions of the kind 'magic'"),
        (("views", "--oldest", "--task", "views/9"), "task 'views/9' of app 'page-views' doesn't read views"),
        (("views", "--oldest", "--apply"), "app 'page-views' isn't running in"),
    ],
)
def test_wrong_usage(once, monkeypatch, cli, words, message):
    monkeypatch.setenv("HEADRACE_HOME", str(once.home))
    outcome = cli("startpoint", "set", "page-views", *words)
    assert message in outcome.err
    assert "hint: " in outcome.err
    assert outcome.code == 2
    assert cli("startpoint", "list", "page-views", "--json").json() == []


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """An app that has run, for commands that change nothing."""
    scene = Scene(tmp_path_factory.mktemp("once") / "home")
    scene.write(10)
    scene.run()
    return scene


@pytest.mark.parametrize("words", [("startpoint", "list", "shop"), ("offsets", "shop")])
def test_an_unknown_app(cli, words):
    outcome = cli(*words)
    assert outcome.code == 2
    assert outcome.err.startswith("error: app 'shop' has never run on")
