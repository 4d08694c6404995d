"""URLs of object stores: what is taken, and what is refused in words that help."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.core.errors import DeclarationError
from headrace.stores.snapshots import ObjectPlace, snapshots_of


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/b/", "gs://bucket/a", "az://container/a", "file:///a/b"])
def test_a_url_is_a_place(url: str):
    place = hr.io.object_store(url)
    assert place == ObjectPlace(url.rstrip("/"))
    assert hr.App("a", snapshots=url).settings.snapshots == hr.App("a", snapshots=place).settings.snapshots == place


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("bucket/a", "isn't the URL of an object store"),
        (7, "isn't the URL of an object store"),
        ("s3://", "isn't the URL"),
        ("s3:///a", "isn't the URL"),
        ("s3://bucket/a?region=x", "isn't the URL"),
        ("hdfs://a/b", "an object store that Headrace supports"),
        ("file://a/b", "absolute path"),
        ("file:///", "absolute path"),
        ("s3://bucket:secret@bucket/a", "contains credentials"),
    ],
)
def test_what_is_no_place_is_refused(url: object, said: str):
    with pytest.raises(DeclarationError, match=said) as caught:
        hr.App("a", snapshots=url)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endpoint": "localhost:1"}, "isn't an http:// or https:// URL"),
        ({"endpoint": "http://localhost:secret@localhost:1"}, "contains credentials"),
        ({"bandwidth": "50"}, "isn't a number of bytes per second"),
        ({"bandwidth": "0MB/s"}, "isn't a number of bytes per second"),
    ],
)
def test_options_are_checked(options: dict[str, str], said: str):
    with pytest.raises(DeclarationError, match=said):
        hr.io.object_store("s3://bucket", **options)
    with pytest.raises(DeclarationError, match="only to stores like S3"):
        hr.io.object_store("gs://bucket", region="x")


def test_bandwidth_is_in_bytes_per_second():
    for text, rate in (("50MB/s", 50e6), ("1.5 GB/s", 1.5e9), ("200kB/s", 200e3)):
        assert hr.io.object_store("s3://bucket", bandwidth=text).bytes_per_s == rate


def test_the_environment_may_say_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HEADRACE_SNAPSHOTS", raising=False)
    assert hr.App("a").settings.snapshots is snapshots_of() is None
    monkeypatch.setenv("HEADRACE_SNAPSHOTS", "s3://bucket/a")
    assert hr.App("a").settings.snapshots == ObjectPlace("s3://bucket/a")
    assert hr.App("a", snapshots="gs://other").settings.snapshots == ObjectPlace("gs://other")
