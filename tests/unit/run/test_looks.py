"""Looks into a real app that runs: rows that a step takes, if the app allows that, and what the threads do."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import polars as pl
import pytest

import headrace as hr
from headrace.core.clock import ManualClock
from headrace.operate.cli.main import main
from headrace.operate.page.live import page_url
from headrace.run.looks import OTHERS, ROWS_MAX, VALUE_CHARS_MAX, ProfileThread, as_peeked
from headrace.task.operators.base import ROWS_A_BATCH, Tap
from running_apps import find_all
from watched_app import until, views


class Page:
    """What a browser gets that has opened an app's page."""

    def __init__(self, home: Path) -> None:
        (address,) = until(lambda: find_all(home))
        url = page_url(address.url, address.token)
        self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self.text = self._browser.open(url, timeout=10).read().decode()
        self._below = url.partition("?")[0]

    def ask(self, what: str, **query: object) -> tuple[Any, dict[str, str]]:
        answer = self._browser.open(f"{self._below}/{what}?{urlencode(query)}", timeout=10)
        body = answer.read().decode()
        return json.loads(body) if answer.headers["content-type"] == "application/json" else body, answer.headers

    def until(self, over: Callable[[Any], bool], what: str, **query: object) -> Any:
        def asked() -> Any:
            found = self.ask(what, **query)[0]
            return found if "error" not in found and over(found) else None

        return until(asked)


def test_the_rows_that_a_step_takes_can_be_seen_while_it_takes_them(tmp_path: Path) -> None:
    with views(tmp_path, peek=True) as writer:
        page = Page(tmp_path)
        assert "data-peek" in page.text
        query = {"stage": "by-n", "step": "filter-1", "id": "one"}
        page.until(lambda found: "columns" in found, "peek", **query)  # it is armed now
        rows = [{"n": n, "who": f"ann{n}\x1b[2J"} for n in range(40)]

        def written(found: Any) -> bool:
            writer.write(rows)
            return bool(found["over"])

        found = page.until(written, "peek", **query)
        assert found["columns"] == ["task", "n", "who"]
        assert {row[0] for row in found["rows"]} == {"by-n/0", "by-n/1"}
        assert len(found["rows"]) == 2 * ROWS_MAX
        assert all(row[2] == f"ANN{row[1]}\\x1b[2J" for row in found["rows"])
        assert page.ask("peek", **query)[0] == found  # whoever asks again gets the same
        nothing, _ = page.ask("peek", stage="by-n", step="gone", id="two")
        assert nothing["error"] == "no running task has a step 'gone'"
        assert "filter-1" in nothing["hint"]


def test_no_row_is_shown_unless_the_app_allows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with views(tmp_path, peek=False) as writer:
        writer.write([{"n": 1, "who": "ann"}])
        page = Page(tmp_path)
        assert "data-peek" not in page.text
        found = page.ask("peek", step="filter-1", id="one")[0]
        assert "doesn't allow its messages to be shown" in found["error"]
        assert "peek=True" in found["hint"]
        assert main(["peek", "views", "filter-1", "--home", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith("error: this app doesn't allow its messages to be shown")


def test_the_command_shows_rows_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with views(tmp_path, peek=True) as writer:
        Page(tmp_path).until(lambda found: "columns" in found, "peek", step="filter-1", id="one")
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(0.05):
                writer.write([{"n": n, "who": "ann"} for n in range(40)])

        thread = threading.Thread(target=write)
        thread.start()
        try:
            assert main(["peek", "views", "filter-1", "--home", str(tmp_path), "--json"]) == 0
        finally:
            stop.set()
            thread.join()
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 2 * ROWS_MAX
    assert {row["who"] for row in found} == {"ANN"}
    assert {row["@task"] for row in found} == {"by-n/0", "by-n/1"}


def test_a_profile_says_what_the_threads_of_a_container_do(tmp_path: Path) -> None:
    with views(tmp_path, peek=False):
        page = Page(tmp_path)
        query = {"container": 0, "seconds": 1, "id": "p-1"}
        begun = page.until(lambda found: "samples" in found, "profile", **query)
        assert begun["leftMs"] > 0
        other, _ = page.ask("profile", container=0, seconds=1, id="p-2")
        assert "is being profiled already" in other["error"]
        found = page.until(lambda found: found["leftMs"] == 0, "profile", **query)
        assert found["samples"] >= 10
        loops = [stack for stack in found["stacks"] if "headrace.task.container." in stack]
        assert sum(found["stacks"][stack] for stack in loops) >= found["samples"] * 0.9
        text, headers = page.ask("profile", **query, **{"as": "collapsed"})
        assert headers["content-disposition"] == 'attachment; filename="views-container-0.collapsed.txt"'
        lines = [line.rpartition(" ") for line in text.splitlines()]
        assert {stack: int(times) for stack, _, times in lines} == found["stacks"]
        for wrong in ({"container": 7}, {"seconds": 31}, {"seconds": 0}, {"id": "no/id"}, {"container": "x"}):
            assert "error" in page.ask("profile", **(query | wrong))[0]


def test_a_profile_finds_the_function_that_takes_the_time() -> None:
    stop = threading.Event()

    def spin_for_the_test() -> None:
        while not stop.is_set():
            sum(range(500))

    thread = threading.Thread(target=spin_for_the_test, name="spins")
    thread.start()
    sampler = ProfileThread(30)
    assert sampler.result().left_ms > 0
    until(lambda: sampler._samples >= 20)
    sampler.close()
    stop.set()
    thread.join()
    found = sampler.result()
    mine = sum(times for stack, times in found.stacks.items() if stack.startswith("spins;"))
    assert mine == found.samples
    assert any("spin_for_the_test (test_looks.py:" in stack for stack in found.stacks)
    assert OTHERS not in found.stacks
    assert not any("headrace-profile" in stack for stack in found.stacks)


def test_a_tap_takes_some_rows_of_each_batch_until_it_has_enough_or_time_is_over() -> None:
    clock = ManualClock(0)
    rows = pl.DataFrame({"n": range(100)})
    tap = Tap(2 * ROWS_A_BATCH + 1, 1000, clock.monotonic_ms)
    assert [tap.take(rows) for _ in range(4)] == [True, True, False, False]
    assert [taken.height for taken in tap.taken] == [ROWS_A_BATCH, ROWS_A_BATCH, 1]
    late = Tap(5, 1000, clock.monotonic_ms)
    clock.advance(1000)
    assert not late.take(rows)
    assert late.taken == ()


def test_rows_are_shown_as_text_of_bounded_length() -> None:
    rows = pl.DataFrame({"text": ["x" * 999, None], "__time": [1, 2], "raw": [b"\0", b"a"]})
    found = as_peeked([rows], over=True)
    assert found.columns == ["text", "raw"]
    assert found.rows == [["x" * VALUE_CHARS_MAX + "…", r"b'\x00'"], ["null", "b'a'"]]


def test_peek_has_to_be_true_or_false() -> None:
    with pytest.raises(hr.errors.DeclarationError, match="peek='yes' is not True or False"):
        hr.App("views", peek="yes")  # type: ignore[arg-type]
