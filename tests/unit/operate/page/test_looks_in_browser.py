"""Peeking and profiles on the page of a real app, in a real browser. Skipped where no browser is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.operate.page.live import page_url
from running_apps import find_all
from tests.browser import NAMES, Browser, found
from watched_app import until, views

PROGRAM = found()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"no browser is installed here: {', '.join(NAMES)}")


@pytest.fixture
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM) as browser:
        yield browser


def test_messages_and_profiles_are_shown_on_demand(tmp_path: Path, browser: Browser) -> None:
    with views(tmp_path, peek=True) as writer:
        (address,) = until(lambda: find_all(tmp_path))
        browser.open(page_url(address.url, address.token))
        browser.until("document.querySelectorAll('.plan .strip').length === 2")
        browser.ask("document.querySelector('.plan a[href=\"#operator-filter-1\"]').click()")
        browser.until("document.querySelector('#operator-filter-1 .look button') !== null")
        browser.ask("document.querySelector('#operator-filter-1 .look button').click()")

        def shown() -> bool:
            writer.write([{"n": n, "who": "<b>ann"} for n in range(40)])
            return bool(browser.ask("document.querySelectorAll('.look tbody tr').length === 20"))

        until(shown)
        cells = browser.ask(
            "[...document.querySelectorAll('.look tbody tr:first-child td')].map((td) => td.textContent)"
        )
        assert (cells[0], cells[2]) == ("by-n/0", "<B>ANN")
        assert browser.ask("document.querySelector('#operator-filter-1').offsetWidth") > 700  # they need room
        until(lambda: not browser.ask("document.querySelector('.look button').disabled"))
        browser.ask("location.hash = '#top'")
        browser.ask("document.querySelector('#containers button').click()")
        browser.until("document.querySelectorAll('#profile .frames li').length > 0")
        said = browser.ask("document.querySelector('#profile').textContent")
        assert "Profile of container 0" in said and "headrace.task.container." in said
        assert "as=collapsed" in browser.ask("document.querySelector('#profile a').href")
        assert browser.ask("document.documentElement.scrollWidth") <= 1400
        browser.resize(390, 900)
        assert browser.ask("document.documentElement.scrollWidth") <= 390
        assert browser.complaints == []


def test_no_messages_are_offered_unless_the_app_allows_it(tmp_path: Path, browser: Browser) -> None:
    with views(tmp_path, peek=False):
        (address,) = until(lambda: find_all(tmp_path))
        browser.open(page_url(address.url, address.token) + "#operator-filter-1")
        browser.until("document.querySelectorAll('.plan .strip').length === 2")
        browser.ask("document.querySelector('.plan a[href=\"#operator-filter-1\"]').click()")
        browser.until("document.querySelector('#operator-filter-1 .now dl') !== null")
        assert browser.ask("document.querySelector('.look')") is None
        assert browser.complaints == []
