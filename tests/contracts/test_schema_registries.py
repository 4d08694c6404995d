"""What formats need of a schema registry: of the tests' own server, and of a real one, if there is one.

``HEADRACE_TEST_REGISTRY`` is the address of a real one, with all rules at their defaults: for example Apicurio's, with
its path ``/apis/ccompat/v7``.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.connectors.formats.registry import Reference, Registered, RegistryClient, RegistrySettings
from headrace.core.errors import DataError, InfrastructureError
from headrace.rows.formats import FormatSpec, open_format
from servers.schema_registry import schema_registry

sys.path.append(str(Path(__file__).parents[1] / "unit" / "serdes" / "formats"))
from protobuf_files import classes, file, message

REAL = os.environ.get("HEADRACE_TEST_REGISTRY")


@pytest.fixture(params=["own", "real"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "real":
        if REAL is None:
            pytest.skip("HEADRACE_TEST_REGISTRY names no registry")
        yield REAL
        return
    with schema_registry() as registry:
        yield registry.url


@pytest.fixture
def subject() -> str:
    """One that no other test has used; with characters that an address has to spell."""
    return f"orders/{uuid.uuid4().hex[:8]} é-value"


def avro(**fields: Any) -> dict[str, Any]:
    listed = [{"name": name, **(one if isinstance(one, dict) else {"type": one})} for name, one in fields.items()]
    return {"type": "record", "name": f"R{uuid.uuid4().hex[:8]}", "fields": listed}


def client(url: str) -> RegistryClient:
    return RegistryClient(RegistrySettings(url))


def test_a_schema_has_one_id(url: str, subject: str) -> None:
    asking, schema = client(url), Registered(json.dumps(avro(n="long")))
    assert asking.lookup(subject, schema) is None
    id = asking.register(subject, schema)
    assert asking.register(subject, schema) == id
    assert asking.lookup(subject, schema) == (id, 1)
    other = Registered(schema.text.replace("long", "int"))
    assert asking.lookup(subject, other) is None
    found = asking.by_id(id)
    assert found is not None
    assert (json.loads(found.text), found.type, found.references) == (json.loads(schema.text), "AVRO", ())
    assert asking.by_id(2**31 - 1) is None


@pytest.mark.parametrize(
    ("type", "text"),
    [
        ("JSON", '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'),
        ("PROTOBUF", 'syntax = "proto3"; message Order { int64 n = 1; }'),
    ],
)
def test_a_schema_has_a_type(url: str, subject: str, type: str, text: str) -> None:
    id = client(url).register(subject, Registered(text, type))
    found = client(url).by_id(id)
    assert found is not None
    assert found.type == type


def test_a_schema_refers_to_others(url: str, subject: str) -> None:
    place = avro(street="string")
    asking = client(url)
    asking.register(f"{subject}-place", Registered(json.dumps(place)))
    references = (Reference(place["name"], f"{subject}-place", 1),)
    schema = Registered(json.dumps(avro(at=place["name"])), references=references)
    found = asking.by_id(asking.register(subject, schema))
    assert found is not None
    assert found.references == references
    assert json.loads(asking.by_version(f"{subject}-place", 1).text) == place
    with pytest.raises(DataError, match=f"no version 9 of subject '{subject}-place'"):
        asking.by_version(f"{subject}-place", 9)


def test_a_change_that_readers_cannot_follow_is_refused(url: str, subject: str) -> None:
    asking, schema = client(url), avro(n="long")
    asking.register(subject, Registered(json.dumps(schema)))
    _set_rule(url, subject)
    schema["fields"] = [{"name": "n", "type": "string"}]
    with pytest.raises(DataError, match="it breaks the subject's compatibility rule"):
        asking.register(subject, Registered(json.dumps(schema)))
    with pytest.raises(DataError, match="refuses the schema"):
        asking.register(subject, Registered("{"))


def _set_rule(url: str, subject: str) -> None:
    """A registry of Confluent has this rule by itself, others when they are told."""
    if url == REAL:
        quoted = urllib.parse.quote(subject, safe="")
        body = b'{"compatibility": "BACKWARD"}'
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{url}/config/{quoted}", body, headers, method="PUT")
        urllib.request.urlopen(request, timeout=10).close()


def both_ways(spec: FormatSpec, rows: pl.DataFrame) -> pl.DataFrame:
    """What is read of what was written: by another format, as in another process."""
    payloads = open_format(spec).encode(rows)
    decoded = open_format(FormatSpec(**spec.options())).decoder(dict(rows.schema)).decode(payloads)
    assert not decoded.bad
    return decoded.frame


def test_avro_both_ways(url: str, subject: str) -> None:
    registry, schema = hr.io.registry(url), avro(n="long", note=["null", "string"])
    rows = pl.DataFrame({"n": [1, 2], "note": ["a", None]})
    with pytest.raises(InfrastructureError, match="isn't registered under subject"):
        open_format(hr.io.avro(schema, registry=registry, subject=subject)).encode(rows)
    spec = hr.io.avro(schema, registry=registry, subject=subject, register=True)
    assert both_ways(spec, rows).equals(rows)
    _set_rule(url, subject)
    more = {**schema, "fields": [*schema["fields"], {"name": "more", "type": "int", "default": 7}]}
    newer = hr.io.avro(more, registry=registry, subject=subject, register=True)
    assert both_ways(newer, rows.with_columns(more=pl.lit(5, pl.Int32)))["more"].to_list() == [5, 5]
    # Records of the older schema, read by the newer one.
    old = open_format(spec).encode(rows)
    read = open_format(newer).decoder({"n": pl.Int64(), "more": pl.Int32()}).decode(old)
    assert read.frame.rows() == [(1, 7), (2, 7)]


def test_json_both_ways(url: str, subject: str) -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "title": subject}
    schema |= {"properties": {"n": {"type": "integer"}}}
    rows = pl.DataFrame({"n": [1, 2]})
    assert both_ways(
        hr.io.json_schema(schema, registry=hr.io.registry(url), subject=subject, register=True), rows
    ).equals(rows)


def test_protobuf_both_ways(url: str, subject: str) -> None:
    name = f"shop{uuid.uuid4().hex[:8]}"
    money = file(f"{name}-money.proto", package=name)
    message(money, "Money", cents="int64")
    sale = file(f"{name}-sale.proto", package=name, imports=(money.name, "google/protobuf/timestamp.proto"))
    message(sale, "Sale", price=f".{name}.Money", at=".google.protobuf.Timestamp")
    rows = pl.DataFrame({"price": [{"cents": 5}]})
    spec = hr.io.protobuf(
        classes(money, sale)[f"{name}.Sale"], registry=hr.io.registry(url), subject=subject, register=True
    )
    assert both_ways(spec, rows).equals(rows)
