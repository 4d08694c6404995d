"""The live page in a real browser: it draws what it receives, and follows changes. Skipped where no browser is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.coordinator import messages as m
from headrace.coordinator.server import Coordinator
from headrace.life.metadata import MemoryMetadata
from headrace.operate.page.live import LivePage, page_token, page_url
from page_scene import container, holdup, ledger, rendered, status, task
from tests.browser import NAMES, Browser, found

PROGRAM = found()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"no browser is installed here: {', '.join(NAMES)}")


@pytest.fixture(scope="module")
def page() -> LivePage:
    return LivePage(rendered(100))


@pytest.fixture(scope="module")
def address(page) -> Iterator[str]:
    token = "t" * 20
    with Coordinator(ledger(100), MemoryMetadata(), token=token, pages=page.site(page_token(token))) as coordinator:
        yield page_url(coordinator.url, token)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM) as browser:
        yield browser


def names(stage: str) -> list[str]:
    return [f"{stage}/{number}" for number in range(100)]


def well() -> m.AppStatus:
    return status(*(task(name) for stage in ("views", "by-member") for name in names(stage)))


def in_trouble() -> m.AppStatus:
    """One task is slow, all of the next stage wait for it, and a container has died."""
    slow = holdup("user code", "the function of step 'map-1' in task views/7, at pipeline.py:12", "views/7")
    waits = holdup("watermark", "log.by-member[0]: the watermark of views/7 stands still", "views/7")
    first = [task(name, holdups=[slow] if name == "views/7" else []) for name in names("views")]
    second = [task(name, holdups=[waits]) for name in names("by-member")]
    error = m.ErrorReport(type="E", message="<b>raised</b> at pipeline.py:9", hint="fix it", traceback="Traceback ...")
    died = container(1, *names("by-member"), restarts=2, error=error)
    return status(*first, *second, containers=[container(0, *names("views")), died])


def test_it_follows_an_app_into_trouble(page, address, browser):
    page.look(well())
    browser.open(address)
    browser.until("document.querySelectorAll('.plan .strip').length === 2")
    assert browser.ask("location.href").endswith("/dashboard")
    assert "2 stages · 200 tasks" in browser.ask("document.getElementById('summary').textContent")
    assert browser.ask("document.getElementById('reasons').hidden")
    # 200 tasks are cells of two drawings, not boxes.
    cells = "[...document.querySelectorAll('.plan .strip path')].map((p) => p.getAttribute('d').split('M').length - 1)"
    assert sum(browser.ask(cells)) == 200

    page.look(in_trouble())
    browser.until("!document.getElementById('reasons').hidden")
    said = browser.ask("document.querySelector('#reasons li').textContent")
    assert "by-member/0 and 99 others wait for the watermark of views/7: the function of step 'map-1'" in said
    assert "do it" in said
    assert browser.ask("document.querySelector('[data-stage=\"by-member\"]').className") == "stage held"
    error = browser.ask("document.querySelector('#errors li').textContent")
    assert "container 1" in error and "<b>raised</b> at pipeline.py:9" in error
    assert browser.complaints == []


def test_a_click_tells_of_a_stage_and_of_the_users_line(page, address, browser):
    page.look(in_trouble())
    browser.open(address)
    browser.until("document.querySelectorAll('.plan .strip').length === 2")
    browser.ask("document.querySelector('.plan a[href=\"#stage-views\"]').click()")
    browser.until("document.querySelectorAll('#stage-views .now tbody tr').length === 60")
    assert browser.ask("document.querySelector('#stage-views .now td').textContent") == "views/7"
    browser.ask("document.querySelector('.plan a[href=\"#operator-filter-1\"]').click()")
    browser.until("getComputedStyle(document.getElementById('operator-filter-1')).display === 'block'")
    assert '.filter(pl.col("member") != "")' in browser.ask("document.getElementById('operator-filter-1').textContent")
    assert browser.complaints == []


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(page, address, browser, width):
    page.look(in_trouble())
    browser.resize(width, 900)
    browser.open(address)
    browser.until("document.querySelectorAll('.strip').length >= 2")
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask("getComputedStyle(document.getElementById('stages')).display") == (
        "block" if width < 760 else "none"
    )
    # The plan is made smaller until it fits, or it scrolls, fades at its end, and says so.
    hint = "getComputedStyle(document.querySelector('main'), '::before').content"
    assert ("Scroll sideways" in browser.ask(hint)) == (width < 760)
    assert browser.ask("document.querySelector('main').classList.contains('more')") == (width < 760)
    cut = "((m) => m.scrollWidth > m.clientWidth)(document.querySelector('main'))"
    assert browser.ask(cut) == (width < 760)
    assert browser.complaints == []
