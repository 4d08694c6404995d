"""A Kinesis input beside inputs of the log: merged with one, and joined with a table that another one fills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from in_thread import running
from kinesis_program import ORDERS, REGION, START, end_time, put

import headrace as hr
from chaos.kinesis_server import KinesisServer
from servers.kinesis_streams import StreamOnServer

COUNTRIES = {f"member-{n}": ["DE", "FR"][n % 2] for n in range(7)}


@pytest.fixture
def orders(kinesis_local: KinesisServer) -> Iterator[StreamOnServer]:
    stream = StreamOnServer(kinesis_local, 3)
    yield stream
    stream.delete()
    stream.close()


def write(home: Path, stream: str, rows: pl.DataFrame) -> None:
    with hr.streams.StreamWriter(stream, home=home) as writer:
        writer.write(rows)


def test_orders_of_two_systems_meet_and_are_joined_with_a_table(
    orders: StreamOnServer, kinesis_local: KinesisServer, tmp_path: Path
) -> None:
    hr.streams.create_stream("returns", 2, ORDERS, home=tmp_path)
    hr.streams.create_stream("members", 1, {"member": pl.String, "country": pl.String}, home=tmp_path)
    write(tmp_path, "members", pl.DataFrame({"member": [*COUNTRIES], "country": [*COUNTRIES.values()]}))
    app = hr.App("mixed", home=tmp_path, checkpoint_interval="100ms")
    source = hr.io.kinesis(orders.name, region=REGION, endpoint_url=kinesis_local.endpoint)
    said = {"event_time": "ts", "lateness": "1s", "idle_timeout": "1s"}
    sold = app.input("orders", ORDERS, system=source, **said)
    back = app.input("returns", ORDERS, **said)
    known = app.input("members", {"member": pl.String, "country": pl.String})
    members = app.table("by-name", key="member", kind="global", side_inputs=[known])
    both = sold.merge(back).join(members).partition_by("country", id="by-country", partitions=2)
    both.send_to(app.output("copies"))
    totals = both.window(hr.tumbling("1h"), key="country", id="hourly").agg(n=hr.sum("n"), rows=hr.count())
    totals.send_to(app.output("totals"))
    with running(app, tmp_path) as run:
        put(orders.api, range(70))
        later = [START.replace(second=n) for n in range(7)]
        rows = {"member": [*COUNTRIES], "n": range(-7, 0), "ts": later}
        write(tmp_path, "returns", pl.DataFrame(rows, ORDERS | {"n": pl.Int64}))
        run.until(lambda: run.numbers() == list(range(-7, 70)))
        end_time(orders.api)
        write(
            tmp_path, "returns", pl.DataFrame({"member": ["nobody"], "n": [0], "ts": [START.replace(day=30)]}, ORDERS)
        )
        run.until(lambda: (found := run.committed("totals")) is not None and found.height == 2)
        found = run.committed("totals")
    assert run.errors == []
    assert found is not None
    expected = {
        country: (
            sum(n for n in range(70) if COUNTRIES[f"member-{n % 7}"] == country)
            + sum(n - 7 for n in range(7) if COUNTRIES[f"member-{n}"] == country),
            sum(11 for n in range(7) if COUNTRIES[f"member-{n}"] == country),
        )
        for country in ("DE", "FR")
    }
    assert {row["country"]: (row["n"], row["rows"]) for row in found.to_dicts()} == expected
