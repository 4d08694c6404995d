"""The system of a whole app: where inputs and outputs are that name none, and where its own streams are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.api.specs import Graph, Role
from headrace.core.errors import DeclarationError

VIEW = {"member": str, "url": str}
URL = "kafka://host:9092"


def built(app: hr.App, **said: Any) -> Graph:
    views = app.input("views", VIEW, **said)
    raw = app.output("unreadable", **said)
    app.input("more", VIEW, on_error="dead_letter", dead_letter=raw, **said).partition_by("member").send_to(
        app.output("again", **said)
    )
    views.filter("url = '/cart'").send_to(app.output("carts", **said))
    return app.graph()


@pytest.mark.parametrize("system", [URL, hr.io.kafka(brokers="host:9092")])
def test_inputs_and_outputs_are_as_if_each_named_it(system: Any) -> None:
    found = built(hr.App("shop", system=system)).streams
    said = built(hr.App("shop"), system=hr.io.kafka(brokers="host:9092")).streams
    assert {id_: (spec.stream, spec.system) for id_, spec in found.items()} == {
        id_: (spec.stream, spec.system) for id_, spec in said.items()
    }
    kinds = {(spec.role, spec.system.kind) for spec in found.values()}
    assert kinds == {(Role.SOURCE, "kafka"), (Role.SINK, "kafka"), (Role.INTERMEDIATE, "log")}
    assert {spec.system.options["topic"] for spec in found.values() if spec.system.kind == "kafka"} == {
        "views",
        "more",
        "carts",
        "again",
        "unreadable",
    }


def test_inputs_and_outputs_have_the_options_that_concern_them() -> None:
    brokers = "host:9092"
    app = hr.App("shop", system=hr.io.kafka(brokers=brokers, start="upcoming", lost="skip", transactions=False))
    app.input("views", VIEW).send_to("copies")
    streams = app.graph().streams
    said = hr.App("shop")
    views = said.input("views", VIEW, system=hr.io.kafka(brokers=brokers, start="upcoming", lost="skip"))
    views.send_to(said.output("copies", system=hr.io.kafka(brokers=brokers, transactions=False)))
    assert {id_: spec.system for id_, spec in streams.items()} == {
        id_: spec.system for id_, spec in said.graph().streams.items()
    }
    assert streams["copies"].system.may_repeat


def test_a_name_alone_is_an_output_in_the_system_of_the_app() -> None:
    app = hr.App("shop", system=URL)
    app.input("views", VIEW).send_to("copies")
    copies = app.graph().streams["copies"]
    app = hr.App("shop", system=URL)
    app.input("views", VIEW).send_to(app.output("copies"))
    assert (copies.stream, copies.system) == (
        app.graph().streams["copies"].stream,
        app.graph().streams["copies"].system,
    )
    assert copies.system.options["output"] == {}, "a system of outputs"


def test_an_input_or_output_may_name_another() -> None:
    app = hr.App("shop", system=URL)
    app.input("views", VIEW, system=hr.io.files("views/*.jsonl")).send_to(app.output("out", system="log:///data/x"))
    streams = app.graph().streams
    assert (streams["views"].system.kind, str(streams["out"].stream)) == ("files", "log-x.out")


def test_streams_from_python_take_urls_too(tmp_path: Path) -> None:
    place = f"log://{tmp_path}/shared"
    hr.streams.create_stream("views", 1, VIEW, system=place)
    with hr.streams.StreamWriter("views", system=place) as writer:
        writer.write([{"member": "ann", "url": "/"}])
    assert hr.streams.read_stream("views", system=place).rows() == [("ann", "/")]
    assert (tmp_path / "shared").is_dir()


def test_a_system_of_frames_keeps_the_streams_of_the_app_too() -> None:
    app = hr.App("shop", system="kafka-log://host:9092")
    assert {spec.system.name for spec in built(app).streams.values()} == {"kafka"}
    assert app.settings.internal_system().kind == "kafka-log"


def test_its_own_streams_may_be_elsewhere() -> None:
    app = hr.App("shop", system=URL, internal=hr.io.kafka_log("host:9092"))
    kinds = {(spec.role, spec.system.kind) for spec in built(app).streams.values()}
    assert kinds == {(Role.SOURCE, "kafka"), (Role.SINK, "kafka"), (Role.INTERMEDIATE, "kafka-log")}
    app = hr.App("shop", internal="kafka-log://host:9092")
    assert {spec.system.kind for spec in built(app).streams.values()} == {"kafka-log"}


def test_tests_and_previews_run_as_without_it(tmp_path: Path) -> None:
    app = hr.App("shop", system=URL, home=tmp_path)
    by_member = app.input("views", VIEW).partition_by("member")
    by_member.filter("url = '/cart'").send_to("carts")
    rows = [{"member": "ann", "url": "/cart"}, {"member": "bob", "url": "/"}]
    with app.test() as t:
        t.feed("views", rows)
        assert t.read("carts").rows() == [("ann", "/cart")]
    assert by_member.head(sample={"views": rows}).rows() == [("ann", "/cart"), ("bob", "/")]


@pytest.mark.parametrize("place", [hr.io.kafka("out", brokers="host:9092"), hr.io.kinesis("out")])
def test_the_key_of_records_is_said_where_a_flow_goes(place: Any) -> None:
    found = []
    keyed = type(place)(replace(place.options, key="url")) if hasattr(place, "options") else replace(place, key="url")
    for system, key in ((place, "url"), (keyed, None), (keyed, "url")):
        app = hr.App("shop")
        app.input("views", VIEW).send_to(app.output("out", system=system), key=key)
        graph = app.graph()
        found.append((graph.streams["out"].system, graph.nodes["send_to-1"].operator))
    assert found[0] == found[1] == found[2]
    app = hr.App("shop")
    views, out = app.input("views", VIEW), app.output("out", system=place)
    views.send_to(out, key="url")
    views.send_to(out)
    for wrong in ("member", ("member", "url")):
        with pytest.raises(DeclarationError, match="has one column as its key, which is 'url'"):
            views.send_to(out, key=wrong)


def test_a_format_is_of_one_stream() -> None:
    app = hr.App("shop", system=URL)
    app.input("members", {"id": int, "deleted": bool}, format="debezium").send_to(app.output("out", format="changelog"))
    lines = app.input("lines", format="text")
    assert lines.schema == hr.Schema.of({"value": pl.String})
    lines.send_to("plain")
    formats = {id_: spec.system.options["format"] for id_, spec in app.graph().streams.items()}
    assert formats == {
        "members": hr.io.debezium().options(),
        "out": hr.io.changelog().options(),
        "lines": {"name": "text"},
        "plain": {"name": "json"},
    }
    shards = hr.App("shop").input(
        "s", VIEW, system=hr.io.kinesis("s"), format=hr.io.avro(registry=hr.io.registry("http://localhost:8081"))
    )
    assert shards.draft.streams["s"].system.options["format"]["name"] == "avro"


WRONG: list[tuple[Any, str, str]] = [
    (hr.io.kafka("orders", brokers="host:9092"), "this topic 'orders' is a place for one", "name no stream in it"),
    (hr.io.files("out/"), "this Files is a place for one", "one input or output"),
    (hr.io.sql("sqlite:///a.db", "t"), "this Sql is a place for one", "one input or output"),
    ("kinesis://views", "this Kinesis is a place for one", "one input or output"),
    ("host:9092", "system='host:9092' isn't the URL of a system", "kafka://host:9092"),
    ("kafkaa://host:9092", "system='kafkaa://' isn't the URL of a system", "kafka://host:9092"),
    ("kafka://", "system='kafka://' isn't the URL of a system", "kafka://host:9092"),
    ("kafka://host", "'host' has no port", "host:9092"),
    ("debezium://x", "hr.io.debezium has no URLs", "hr.io.debezium(...)"),
    (7, "system= takes a system, not int", "hr.io"),
]


@pytest.mark.parametrize(("system", "message", "hint"), WRONG)
def test_what_is_no_system_of_an_app_is_refused(system: Any, message: str, hint: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        hr.App("shop", system=system)
    assert message in caught.value.message
    assert hint in str(caught.value.hint)
    assert caught.value.message.count(str(caught.value.message.rpartition("  at ")[2])) == 1, "one place"


def test_a_password_in_a_url_isnt_repeated() -> None:
    app = hr.App("shop")
    with pytest.raises(DeclarationError, match="as if it contained credentials") as caught:
        app.output(
            "out",
            system="kafka://ann:s3cret@host:9092",
        )
    assert "s3cret" not in caught.value.message.partition("\n")[0]
    assert "hr.secret_env" in str(caught.value.hint)


def test_only_records_have_a_format() -> None:
    app = hr.App("shop")
    with pytest.raises(DeclarationError, match="format= is for records of a broker"):
        app.input("views", VIEW, format="json")
    with pytest.raises(DeclarationError, match="format='xml' is not one of the choices"):
        app.output("out", system=URL, format="xml")  # type: ignore[arg-type]
