"""The systems of an app as they are recorded: exact bytes, nothing secret, and what may not change."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.core.errors import DataError, PlanError, UsageError
from headrace.life.apps import AppSystems, SnapshotsPlace
from headrace.systems.registry import SystemSpec, home_log

HOME = Path("/data/home")
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "shop",
    "sasl.password": hr.secret_env("KAFKA_PASSWORD"),
}
KAFKA = hr.io.kafka_log("a:9092", prefix="shop.", options=LOGIN).system("")
GOLDEN = (
    b'{"format":2,"own":"kafka","systems":{'
    b'"files-in":{"kind":"files"},'
    b'"kafka":{"kind":"kafka-log","at":"shop.","options":{"brokers":"a:9092","client":{"sasl.mechanism":"PLAIN",'
    b'"sasl.password":{"env":"KAFKA_PASSWORD"},"sasl.username":"shop","security.protocol":"sasl_ssl"},'
    b'"prefix":"shop."}},'
    b'"log":{"kind":"log","home":true},'
    b'"log-shared":{"kind":"log","at":"/data/shared","options":{"root":"/data/shared"}}},'
    b'"snapshots":{"url":"s3://bucket/shop","endpoint":"http://localhost:9000"}}'
)
STORE = SnapshotsPlace(url="s3://bucket/shop", endpoint="http://localhost:9000")


def systems(own: SystemSpec = KAFKA, *others: SystemSpec, snapshots: SnapshotsPlace | None = None) -> AppSystems:
    return AppSystems.of(own, others, str(HOME), snapshots)


def test_the_bytes() -> None:
    shared = hr.io.log("/data/shared")
    written = systems(
        KAFKA, home_log(HOME), shared, SystemSpec("files-in", "files", {"path": "in/*.csv"}), snapshots=STORE
    )
    assert written.encode() == GOLDEN
    read = AppSystems.decode(GOLDEN, "shop")
    assert read == written
    assert read.specs(HOME) == {"kafka": KAFKA, "log": home_log(HOME), "log-shared": shared}
    assert read.own_spec("shop", HOME) == KAFKA


def test_another_format_is_refused() -> None:
    with pytest.raises(DataError, match="systems that app 'shop' uses is of format 3; this version"):
        AppSystems.decode(GOLDEN.replace(b'"format":2', b'"format":3'), "shop")


def test_the_log_of_the_home_is_found_wherever_the_home_is() -> None:
    assert systems(home_log(HOME)).own_spec("shop", Path("/elsewhere")) == home_log("/elsewhere")


def test_a_relative_folder_is_found_from_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = systems(hr.io.log("shared")).own_spec("shop", HOME)
    assert spec.options["root"] == str(tmp_path / "shared")


@pytest.mark.parametrize(
    "spec",
    [
        SystemSpec("kafka", "kafka-log", {"brokers": "a:9092", "client": {"sasl.password": "s3cret"}}),
        SystemSpec("kafka", "kafka-log", {"brokers": "kafka://ann:s3cret@a:9092"}),
        SystemSpec("ours", "of-a-plug-in", {"key": "s3cret"}),
        SystemSpec("db", "sql", {"url": "postgresql://ann:s3cret@db/shop"}),
        SystemSpec("kafka", "kafka", {"brokers": "a:9092", "format": {"registry": {"token": "s3cret"}}}),
        SystemSpec("kafka", "kafka", {"brokers": "a:9092", "start": object()}),
    ],
)
def test_what_may_be_secret_is_not_recorded(spec: SystemSpec) -> None:
    found = systems(KAFKA if spec.name != "kafka" else spec, spec)
    assert b"s3cret" not in found.encode()
    assert found.spec(spec.name, HOME) is None


def test_own_streams_that_only_the_program_can_open() -> None:
    with pytest.raises(UsageError, match="app 'shop' keeps its own streams in 'm', of kind 'of-a-plug-in'"):
        systems(SystemSpec("m", "of-a-plug-in", {})).own_spec("shop", HOME)


def test_stages_that_are_deployed_apart_add_theirs() -> None:
    other = SystemSpec("topic", "kafka", {"brokers": "a:9092"})
    before, now = systems(KAFKA, other), systems()
    assert now.after(before, "shop", whole=False).specs(HOME) == {"kafka": KAFKA, "topic": other}
    assert now.after(before, "shop", whole=True) == now


def test_the_way_to_a_system_may_change() -> None:
    now = systems(hr.io.kafka_log("b:9092", prefix="shop.", replication=3).system(""))
    assert now.after(systems(), "shop", whole=True) == now


@pytest.mark.parametrize(
    "other",
    [
        home_log(HOME),
        hr.io.kafka_log("a:9092", prefix="other.").system(""),
        hr.io.kafka_log("a:9092", prefix="shop.", name="other").system(""),
        hr.io.log("/data/shared", "kafka"),
    ],
)
def test_own_streams_stay_where_they_are(other: SystemSpec) -> None:
    with pytest.raises(PlanError, match="app 'shop' has kept its own streams in 'kafka', of kind 'kafka-log'"):
        systems(other).after(systems(), "shop", whole=True)


@pytest.mark.parametrize(
    ("before", "now", "hint"),
    [
        (STORE, None, "write snapshots='s3://bucket/shop', or HEADRACE_SNAPSHOTS=s3://bucket/shop. To move"),
        (None, STORE, "leave out snapshots=, and don't set the variable HEADRACE_SNAPSHOTS. To move"),
        (STORE, SnapshotsPlace(url="s3://bucket/other"), "snapshots='s3://bucket/shop'"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_snapshots_stay_where_they_are(
    before: SnapshotsPlace | None, now: SnapshotsPlace | None, hint: str, whole: bool
) -> None:
    with pytest.raises(PlanError, match="app 'shop' has kept its snapshots in") as refused:
        systems(snapshots=now).after(systems(snapshots=before), "shop", whole=whole)
    assert hint in str(refused.value)


def test_the_way_to_the_snapshots_may_change() -> None:
    now = systems(snapshots=SnapshotsPlace(url=STORE.url, endpoint="http://127.0.0.1:9000", region="eu-west-1"))
    assert now.after(systems(snapshots=STORE), "shop", whole=True) == now


OIDC = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "shop",
    "sasl.oauthbearer.client.secret": hr.secret_env("KAFKA_SECRET"),
    "sasl.oauthbearer.token.endpoint.url": "https://localhost/token",
}


def test_the_address_of_tokens_is_no_secret() -> None:
    kafka = hr.io.kafka_log("a:9092", prefix="shop.", options=OIDC).system("")
    now = systems(kafka)
    assert now.own_spec("shop", HOME) == kafka
    assert now.after(systems(), "shop", whole=True) == now


UNTOLD = {"brokers": "kafka://ann:s3cret@a:9092"}


def test_only_what_both_records_tell_is_compared() -> None:
    now = systems(SystemSpec("kafka", "kafka-log", UNTOLD | {"prefix": "shop."}))
    assert b"s3cret" not in now.encode()
    assert now.after(systems(), "shop", whole=True) == now
    assert systems().after(now, "shop", whole=True) == systems()
    with pytest.raises(PlanError, match=r"kind 'kafka-log' \(shop\.\) until now, and now .* \(headrace\.\)"):
        systems(SystemSpec("kafka", "kafka-log", UNTOLD)).after(now, "shop", whole=True)
