"""Where a coordinator listens and where it is called, as the user says it and as a Spark session has it."""

from __future__ import annotations

import pytest

from headrace.coordinator.address import Endpoint, Wanted
from headrace.core.errors import UsageError
from headrace.run.spark.settings import driver_endpoint

PORT = 4711
CLUSTER = Endpoint(host="10.0.0.7", advertised_host="driver")


@pytest.mark.parametrize(
    ("listen", "advertise", "default", "bound", "called"),
    [
        (None, None, Endpoint(), ("127.0.0.1", 0), "127.0.0.1:4711"),
        (None, None, CLUSTER, ("10.0.0.7", 0), "driver:4711"),
        (":7090", None, Endpoint(), ("127.0.0.1", 7090), "127.0.0.1:4711"),
        (":7090", None, CLUSTER, ("10.0.0.7", 7090), "driver:4711"),
        ("node-7", None, CLUSTER, ("node-7", 0), "node-7:4711"),
        ("node-7:7090", None, Endpoint(), ("node-7", 7090), "node-7:4711"),
        ("0.0.0.0", None, CLUSTER, ("0.0.0.0", 0), "driver:4711"),
        ("0.0.0.0:7090", "gate", Endpoint(), ("0.0.0.0", 7090), "gate:4711"),
        ("0.0.0.0:7090", "gate:30090", CLUSTER, ("0.0.0.0", 7090), "gate:30090"),
        (None, "gate:30090", CLUSTER, ("10.0.0.7", 0), "gate:30090"),
        (None, ":30090", CLUSTER, ("10.0.0.7", 0), "driver:30090"),
        ("[fd00::7]:7090", None, CLUSTER, ("fd00::7", 7090), "[fd00::7]:4711"),
        ("fd00::7", None, CLUSTER, ("fd00::7", 0), "[fd00::7]:4711"),
        ("[::]", "fd00::7", Endpoint(), ("::", 0), "[fd00::7]:4711"),
    ],
)
def test_what_the_user_says_comes_before_the_default(
    listen: str | None, advertise: str | None, default: Endpoint, bound: tuple[str, int], called: str
) -> None:
    endpoint = Wanted.of(listen, advertise).instead_of(default)
    assert (endpoint.host, endpoint.port) == bound
    assert endpoint.url(PORT) == f"http://{called}"


@pytest.mark.parametrize(
    "wrong", ["", ":", ":0", "host:", "host:x", "host:65536", "host:-1", "a b", "http://host:80", "a:b:c"]
)
def test_what_is_no_address_is_refused(wrong: str) -> None:
    for said in ((wrong, None), (None, wrong)):
        with pytest.raises(UsageError, match="neither HOST nor HOST:PORT"):
            Wanted.of(*said)


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "[::]:7090", "0.0.0.0:7090"])
def test_nobody_can_call_every_address(wildcard: str) -> None:
    with pytest.raises(UsageError, match="can't call") as refused:
        Wanted.of(wildcard, None).instead_of(Endpoint())
    assert "--advertise" in refused.value.hint
    with pytest.raises(UsageError, match="can't call"):
        Wanted.of(None, wildcard).instead_of(CLUSTER)


@pytest.mark.parametrize(
    ("master", "conf", "bound", "called"),
    [
        ("local[2,1000000]", {"spark.driver.host": "node-7"}, "127.0.0.1", "127.0.0.1"),
        ("local-cluster[2,1,1024]", {"spark.driver.host": "127.0.0.1"}, "127.0.0.1", "127.0.0.1"),
        ("spark://host:7077", {"spark.driver.host": "node-7"}, "node-7", "node-7"),
        ("yarn", {"spark.driver.host": "node-7", "spark.driver.bindAddress": "0.0.0.0"}, "0.0.0.0", "node-7"),
        ("spark://host:7077", {"spark.driver.host": "[fd00::7]"}, "fd00::7", "[fd00::7]"),
    ],
)
def test_on_a_cluster_it_is_where_sparks_driver_is(master: str, conf: dict[str, str], bound: str, called: str) -> None:
    endpoint = driver_endpoint(master, conf.get)
    assert (endpoint.host, endpoint.url(PORT)) == (bound, f"http://{called}:4711")
