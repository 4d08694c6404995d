"""What an app says of a Kinesis stream, and what is wrong with it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.connectors.kinesis.api import Options
from headrace.systems.registry import SystemSpec

ORDERS = {"member": pl.String, "euros": pl.Float64}


def app() -> hr.App:
    return hr.App("shop", home="/data")


def declared(system: Any, schema: Any = ORDERS, **options: Any) -> SystemSpec:
    """The system of an input."""
    mine = app()
    mine.input("orders.v1", schema, system=system, **options).send_to(mine.output("out"))
    return mine.graph().streams["orders.v1"].system


def test_an_input_is_a_system_of_its_own_that_remembers_its_slots_at_home() -> None:
    assert declared(hr.io.kinesis("orders")) == SystemSpec(
        "kinesis-orders-v1",
        "kinesis",
        {
            "stream": "orders",
            "format": {"name": "json"},
            "start": "oldest",
            "memo": "/data/kinesis/shop/orders.v1.json",
        },
        slots=True,
    )


def test_all_that_an_input_may_say() -> None:
    system = hr.io.kinesis(
        "orders",
        region="eu-west-1",
        format="text",
        start=datetime(2026, 1, 31, 12, tzinfo=UTC),
        slots=8,
        record_columns={"arrived": "arrival_time"},
        lease_table="shop-orders",
        endpoint_url="http://localhost:4567",
        lost="skip",
        lease_ahead="continue",
        profile="shop prod",
        role="arn:aws:iam::123456789012:role/readers/orders",
        proxy="http://example.com:3128",
        connect_timeout="500ms",
        read_timeout=timedelta(seconds=30),
        records_per_call=500,
        poll_interval="1s",
        failover="1m",
    )
    spec = declared(system, None)
    assert spec.options == {
        "stream": "orders",
        "region": "eu-west-1",
        "endpoint_url": "http://localhost:4567",
        "format": {"name": "text"},
        "start": 1769860800000,
        "slots": 8,
        "record_columns": {"arrived": "arrival_time"},
        "lease_table": "shop-orders",
        "lost": "skip",
        "lease_ahead": "continue",
        "profile": "shop prod",
        "role": "arn:aws:iam::123456789012:role/readers/orders",
        "proxy": "http://example.com:3128",
        "connect_timeout_ms": 500,
        "read_timeout_ms": 30_000,
        "records_per_call": 500,
        "poll_interval_ms": 1000,
        "failover_ms": 60_000,
        "memo": "/data/kinesis/shop/orders.v1.json",
    }
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert Options.of("in", spec.options).read_timeout_ms == 30_000


def test_a_secret_is_given_by_its_place() -> None:
    spec = declared(hr.io.kinesis("orders", proxy=hr.secret_env("PROXY_URL")))
    assert spec.options["proxy"] == {"env": "PROXY_URL"}
    assert Options.of("in", spec.options).proxy == hr.secret_env("PROXY_URL")


def test_a_stream_may_be_several_inputs_and_an_output() -> None:
    mine = app()
    system = hr.io.kinesis("orders")
    mine.input("one", ORDERS, system=system).send_to(mine.output("out", system=hr.io.kinesis("sums", key="member")))
    mine.input("two", ORDERS, system=system).send_to(mine.output("other"))
    streams = mine.graph().streams
    assert streams["one"].system.options["memo"] != streams["two"].system.options["memo"]
    assert streams["out"].system.options == {"stream": "sums", "format": {"name": "json"}, "key": "member"}


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("oldest", "oldest"),
        ("upcoming", "upcoming"),
        ("2026-01-31T12:00:00Z", 1769860800000),
        ("2026-01-31T12:00:00", 1769860800000),
        ("1769860800000", 1769860800000),
        (datetime(2026, 1, 31, 12), 1769860800000),
        (datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))), 1769860800000),
    ],
)
def test_where_to_begin(start: Any, said: object) -> None:
    assert declared(hr.io.kinesis("orders", start=start)).options["start"] == said


def test_an_arn_names_the_region_too() -> None:
    assert (hr.io.kinesis(ARN).region, hr.io.kinesis(ARN, region="eu-west-1").stream) == ("eu-west-1", ARN)


# -- columns


def test_text_and_bytes_need_no_schema_and_json_does() -> None:
    assert app().input("a", system=hr.io.kinesis("a", format="text")).schema.columns == {"value": pl.String}
    assert app().input("a", system=hr.io.kinesis("a", format="bytes")).schema.columns == {"value": pl.Binary}
    with pytest.raises(hr.errors.DeclarationError, match="an input of JSON from a needs a schema"):
        app().input("a", system=hr.io.kinesis("a"))


def test_what_kinesis_says_of_a_record_is_added_to_the_schema() -> None:
    said: dict[str, Any] = {"key": "partition_key", "number": "sequence_number", "at": "arrival_time", "from": "shard"}
    stream = app().input("a", ORDERS, system=hr.io.kinesis("a", record_columns=said), event_time="at")
    assert stream.schema.columns == {
        "member": pl.String,
        "euros": pl.Float64,
        "key": pl.String,
        "number": pl.String,
        "at": pl.Datetime("ms"),
        "from": pl.String,
    }


def test_the_schema_may_have_it_already_with_a_type_that_holds_it() -> None:
    @dataclass
    class Order:
        member: str
        arrived: datetime

    system = hr.io.kinesis("a", record_columns={"arrived": "arrival_time"})
    schema = app().input("a", Order, system=system).schema
    assert schema.record is Order
    assert schema.columns == {"member": pl.String, "arrived": pl.Datetime("us")}


@dataclass
class Member:
    member: str


IN: list[tuple[Any, Any, str]] = [
    (
        hr.io.kinesis("a", format="text"),
        ORDERS,
        'format="text" have one column of type str; the schema has m',
    ),
    (
        hr.io.kinesis("a", record_columns={"at": "arrival_time"}),
        {"at": pl.Datetime("ms")},
        "no column from the record itself",
    ),
    (
        hr.io.kinesis("a", record_columns={"euros": "arrival_time"}),
        ORDERS,
        r"column 'euros' is the arrival_time of a record, which is of type datetime\[ms\], not f64",
    ),
    (hr.io.kinesis("a", record_columns={"at": "arrival_time"}), Member, "the dataclass Member has no field at"),
    (
        hr.io.kinesis("a", format="text", record_columns={"value": "shard"}),
        None,
        "a record of a has a column 'value'",
    ),
    (hr.io.kinesis("a", key="member"), ORDERS, "key= is for an output"),
]


@pytest.mark.parametrize(("system", "schema", "message"), IN)
def test_wrong_inputs(system: Any, schema: Any, message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        app().input("a", schema, system=system)
    assert caught.value.hint


def test_where_an_input_begins_is_said_in_one_place() -> None:
    with pytest.raises(hr.errors.DeclarationError, match=r"belongs in hr\.io\.kinesis"):
        app().input("a", ORDERS, system=hr.io.kinesis("a"), start="upcoming")


def test_no_task_reads_all_of_a_stream() -> None:
    with pytest.raises(hr.errors.DeclarationError, match="can't be read by every task: its shards are divided"):
        app().input("a", ORDERS, system=hr.io.kinesis("a"), broadcast=True)


OUT: list[tuple[Any, str]] = [
    (hr.io.kinesis("a", key="k", start="upcoming", slots=2), "start, slots of Kinesis stream a: only an input can"),
    (hr.io.kinesis("a", key="k", lease_table="abc"), "lease_table of Kinesis stream a"),
    (hr.io.kinesis("a", key="k", lost="skip"), "lost of Kinesis stream a"),
    (hr.io.kinesis("a", key="k", records_per_call=5, poll_interval="1s"), "records_per_call, poll_interval of Kinesis"),
    (hr.io.kinesis("a", key="k", record_columns={"s": "shard"}), "record_columns of Kinesis stream a"),
]


@pytest.mark.parametrize(("system", "message"), OUT)
def test_wrong_outputs(system: Any, message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message):
        app().output("a", system=system)


ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/a"


def test_avro_says_its_columns_itself() -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}
    system = hr.io.kinesis("a", format=hr.io.avro(schema), record_columns={"at": "arrival_time"})
    assert app().input("a", system=system).schema.columns == {"n": pl.Int64, "at": pl.Datetime("ms")}
    spec = declared(system, {"n": pl.Int64})
    assert spec.options["format"] == {"name": "avro", "schema": schema}
    with pytest.raises(hr.errors.DeclarationError, match="the Avro schema has no field 'm'"):
        app().input("a", {"m": pl.Int64}, system=system)
    with pytest.raises(hr.errors.DeclarationError, match="avro: schema=5 is not an Avro schema"):
        hr.io.avro(5)  # type: ignore[arg-type]
    with pytest.raises(hr.errors.DeclarationError, match="avro: the Avro schema isn't JSON"):
        hr.io.avro("{")


SECRET = "https://x:s3cret@example.com"
WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda make: make("a b"), "kinesis: 'a b' is not the name of a Kinesis stream"),
    (lambda make: make(None), "None is not the name"),
    (lambda make: make("arn:aws:kinesis:eu-west-1:1:stream/a"), "is not the name of a Kinesis stream"),
    (lambda make: make(ARN, region="eu-west-2"), "region='eu-west-2' is not the region of arn:aws:"),
    (lambda make: make("a", region="Ireland"), "region='Ireland' is not the name of a region"),
    (lambda make: make("a", region=3), "region=3 is not the name of a region"),
    (lambda make: make("a", format="xml"), "format='xml' is not one of the choices"),
    (lambda make: make("a", format="avro"), "Avro needs a schema to read with"),
    (lambda make: make("a", format={"type": "record"}), "format={'type': 'record'} is not a format of records"),
    (lambda make: make("a", start="yesterday"), "start='yesterday' is not a valid start"),
    (lambda make: make("a", start="latest"), "start='latest' is not a valid start"),
    (lambda make: make("a", start=7), "start=7 is not a valid start"),
    (lambda make: make("a", slots=0), "slots=0 is not a number of partitions"),
    (lambda make: make("a", slots=True), "slots=True is not a number of partitions"),
    (lambda make: make("a", record_columns=["shard"]), r"record_columns=\['shard'\] doesn't name columns"),
    (lambda make: make("a", record_columns={"": "shard"}), "record_columns={'': 'shard'} doesn't name columns"),
    (lambda make: make("a", record_columns={"at": "time"}), "'at' is to be 'time', which Kinesis doesn't say"),
    (lambda make: make("a", record_columns={"shard": "s"}), "'shard' is to be 's'"),
    (lambda make: make("a", key=["a", "b"]), "key= takes one column"),
    (lambda make: make("a", key=""), "key='' is not the name of a column"),
    (lambda make: make("a", lease_table="a/b"), "lease_table='a/b' is not the name of a lease table"),
    (lambda make: make("a", endpoint_url="memory://", lease_table="abc"), "lease_table= is for Amazon's streams"),
    (lambda make: make("a", profile=""), "profile='' is not the name of a profile"),
    (lambda make: make("a", profile="a]"), r"profile='a\]' is not the name of a profile"),
    (lambda make: make("a", role="reader"), "role='reader' is not the name of a role"),
    (lambda make: make("a", proxy="proxy:3128"), "proxy='proxy:3128' is not the URL of a proxy"),
    (lambda make: make("a", proxy=SECRET), "as if it contained credentials"),
    (lambda make: make("a", connect_timeout="1ms"), "connect_timeout='1ms' is out of range"),
    (lambda make: make("a", read_timeout="2m"), "read_timeout='2m' is out of range"),
    (lambda make: make("a", read_timeout=5), "read_timeout: 5 has no unit"),
    (lambda make: make("a", records_per_call=0), "records_per_call=0 is not a number of records"),
    (lambda make: make("a", records_per_call=10_001), "records_per_call=10001 is not a number of records"),
    (lambda make: make("a", records_per_call=True), "records_per_call=True is not a number of records"),
    (lambda make: make("a", poll_interval="100ms"), "poll_interval='100ms' is out of range"),
    (lambda make: make("a", failover="20s"), "failover= is about a lease table"),
    (lambda make: make("a", lease_table="abc", failover="10ms"), "failover='10ms' is out of range"),
    (lambda make: make("a", endpoint_url="memory://", profile="x"), "profile= is for Amazon's streams"),
    (lambda make: make("a", lost="ignore"), "lost='ignore' is not"),
    (lambda make: make("a", lease_ahead="repeat"), "lease_ahead= is about a lease table"),
    (lambda make: make("a", lease_table="abc", lease_ahead="skip"), "lease_ahead='skip' is not"),
    (lambda make: make("a", endpoint_url="localhost:4567"), "endpoint_url='localhost:4567' is not a URL"),
    (lambda make: make("a", endpoint_url=SECRET), "contains credentials"),
]


@pytest.mark.parametrize(("declare", "message"), WRONG)
def test_wrong_arguments(declare: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        declare(hr.io.kinesis)
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_a_hint_says_what_was_meant() -> None:
    with pytest.raises(hr.errors.DeclarationError) as caught:
        hr.io.kinesis("a", start="latest")
    assert caught.value.hint == 'did you mean "upcoming"?'
    with pytest.raises(hr.errors.DeclarationError) as caught:
        hr.io.kinesis("a", record_columns={"shard": "s"})  # type: ignore[dict-item]
    assert caught.value.hint == 'the column comes first: write record_columns={"arrived": "arrival_time"}'


def test_other_names_lead_to_it() -> None:
    with pytest.raises(AttributeError, match=r"hr\.io\.kinesis"):
        hr.io.KinesisSource  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"hr\.io\.kinesis"):
        hr.kinesis  # type: ignore[attr-defined]  # noqa: B018


def test_the_partition_key_of_an_output_is_a_column_and_named_with_the_stream() -> None:
    mine, wrong = hr.App("shop"), hr.errors.DeclarationError
    orders = mine.input("orders", ORDERS)
    with pytest.raises(wrong, match="the key 'membr' of the Kinesis stream 'sums' isn't a column"):
        orders.send_to(mine.output("one", system=hr.io.kinesis("sums", key="membr")))
    with pytest.raises(wrong, match="there is no column 'membr'"):
        orders.send_to(mine.output("two", system=hr.io.kinesis("sums")), key="membr")
    orders.send_to(mine.output("three", system=hr.io.kinesis("sums", key="member")))
