"""``headrace check`` and ``/metrics`` on an app that runs."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from running_shop import Shop

from headrace.core.metrics import BY_NAME
from headrace.operate.cli.main import main
from running_apps import find


def asked(shop, method, path, token):
    parts = urlsplit(find(shop.home, "shop").url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    connection.request(method, path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def scrape(shop):
    _, text = asked(shop, "GET", "/metrics", find(shop.home, "shop").token)
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert BY_NAME[name].kind == family.type
    return found


COUNTED = (
    "headrace_task_messages_in_total",
    "headrace_checkpoints_total",
    "headrace_checkpoint_duration_seconds_count",
    "headrace_latency_seconds_count",
    "headrace_task_time_seconds_total",
    "headrace_state_bytes",
)


def test_an_app_that_runs_shows_its_metrics_and_is_well(tmp_path, capsys):
    shop = Shop(tmp_path / "home")
    try:
        shop.price(apple="1.00", pear="2.00")
        with shop.running():
            shop.until_committed("prices", 2)
            # A task's status is older than what it has committed.
            shop.until(lambda: (found := scrape(shop)).get(COUNTED[0], 0) >= 2 and all(found.get(n) for n in COUNTED))
            found = scrape(shop)
            assert found["headrace_input_messages_total"] == found["headrace_task_messages_in_total"]
            assert main(["check", "shop", "--home", str(shop.home), "--max-checkpoint-age", "1h", "--json"]) == 0
            assert json.loads(capsys.readouterr().out) == {"verdict": "ok", "text": "OK: shop is well"}
            assert main(["check", "shop", "--home", str(shop.home), "--max-checkpoint-age", "0s"]) in (0, 2)
    finally:
        shop.close()


@pytest.mark.parametrize("option", ["--max-lag", "--max-checkpoint-age", "--max-restarts"])
def test_an_option_that_makes_no_sense_is_unknown(tmp_path, capsys, option):
    assert main(["check", "shop", "--home", str(tmp_path), option, "soon"]) == 3
    assert option in capsys.readouterr().out


def test_the_token_for_metrics_reads_and_stops_nothing_and_is_the_same_in_the_next_run(tmp_path, capsys):
    shop = Shop(tmp_path / "home")
    try:
        tokens = set()
        for _ in range(2):
            with shop.running():
                assert main(["metrics", "shop", "--home", str(shop.home), "--json"]) == 0
                said = json.loads(capsys.readouterr().out)
                tokens.add(said["token"])
                assert said["url"] == f"{find(shop.home, 'shop').url}/metrics"
                assert asked(shop, "GET", "/metrics", said["token"])[0] == 200
                assert asked(shop, "GET", "/status", said["token"])[0] == 200
                refused, why = asked(shop, "POST", "/drain", said["token"])
                assert (refused, "may only read" in why) == (403, True)
                assert asked(shop, "GET", "/metrics", "x" + said["token"])[0] == 401
                assert shop.status().state == "running"
        assert len(tokens) == 1
        assert main(["metrics", "shop", "--home", str(shop.home)]) == 1
    finally:
        shop.close()


def test_a_token_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_METRICS_TOKEN", "our-own")
    shop = Shop(tmp_path / "home")
    try:
        with shop.running():
            assert asked(shop, "GET", "/metrics", "our-own")[0] == 200
            assert asked(shop, "POST", "/drain", "our-own")[0] == 403
    finally:
        shop.close()
