"""``headrace dashboard``: the address of an app's page, the page with all apps, and what can be wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from running_shop import Shop

from headrace.life.metadata import existing_metadata
from headrace.operate.cli.status import _deployed
from headrace.operate.page.live import Overview, overview_of


def opened(url: str, path: str = "") -> str:
    """What a browser gets that opens the address."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    text = browser.open(url, timeout=10).read().decode()
    return browser.open(url.partition("?")[0] + path, timeout=10).read().decode() if path else text


@pytest.fixture
def shop(tmp_path):
    shop = Shop(tmp_path)
    yield shop
    shop.close()


def test_a_running_app_has_a_page_and_is_on_the_page_with_all(cli, shop, tmp_path):
    with shop.running():
        url = cli("dashboard", "shop", "--home", str(tmp_path)).out.strip()
        assert cli("dashboard", "shop", "--home", str(tmp_path), "--json").json() == {"url": url}
        page = opened(url)
        assert "<title>shop</title>" in page and "stage prices-in" in page
        assert "follow" in opened(url, "/live.js")
        with existing_metadata(tmp_path) as store:
            (found,) = _deployed(store)
        assert (found.url, found.status.state) == (url, "running")
    ended = cli("dashboard", "shop", "--home", str(tmp_path))
    assert ended.code == 1
    assert "app 'shop' isn't running any more (drained)" in ended.err
    with existing_metadata(tmp_path) as store:
        (shown,) = overview_of("here", _deployed(store), 0)["apps"]
    assert "url" not in shown and shown["state"] == "finished"


def test_an_app_that_never_ran_is_an_error(cli, tmp_path):
    found = cli("dashboard", "nothing", "--home", str(tmp_path))
    assert found.code != 0
    assert "nothing" in found.err and "hint" in found.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--stage", "x"), "--stage applies only to the page of one app"),
        (("shop", "--port", "7000"), "--port applies only to the page with all"),
    ],
)
def test_options_that_have_no_meaning_are_refused(cli, given, said):
    found = cli("dashboard", *given)
    assert found.code == 2 and said in found.err


def test_a_port_that_is_taken_is_named(cli, shop, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, shop.running():
        port = taken.getsockname()[1]
        found = cli("dashboard", "--home", str(tmp_path), "--port", str(port))
    assert found.code != 0
    assert f"127.0.0.1:{port}" in found.err


def test_the_page_with_all_apps_is_served_until_a_signal(shop, tmp_path):
    with shop.running():
        command = [sys.executable, "-m", "headrace.operate.cli.main", "dashboard", "--home", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert "<h1>Apps</h1>" in opened(url)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0


def test_the_page_with_all_apps_tells_how_each_is(shop, tmp_path):
    with shop.running(), existing_metadata(tmp_path) as store:
        overview = Overview("here", lambda: _deployed(store))
        listening = overview.feed.listen()
        data = json.loads(next(iter(listening)).decode().partition("data: ")[2])
        (app,) = data["view"]["apps"]
        assert (app["name"], app["state"]) == ("shop", "running")
        assert app["url"].startswith("http://127.0.0.1:")
        assert Path(data["view"]["place"]).name == "here"


def test_startpoints_of_a_stopped_app_show_on_the_page_with_all_and_over_http(cli, shop, tmp_path):
    with shop.running():
        pass
    home = str(tmp_path)
    assert cli("startpoint", "set", "shop", "prices-in", "--oldest", "--note", "OPS-7", "--home", home).code == 0
    command = [sys.executable, "-m", "headrace.operate.cli.main", "dashboard", "--home", home, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        said = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        request = urllib.request.Request(said["api"] + "/startpoints")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=10)
        request.add_header("Authorization", f"Bearer {said['token']}")
        (app,) = json.loads(urllib.request.urlopen(request, timeout=10).read())["apps"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert app["app"] == "shop"
    assert {(one["state"], one["note"], "@" in one["by"]) for one in app["startpoints"]} == {("pending", "OPS-7", True)}
    with existing_metadata(tmp_path) as store:
        (shown,) = overview_of("here", _deployed(store), 0)["apps"]
    assert shown["startpoints"][0].startswith("oldest for log.prices-in[0] (pending), set by ")
