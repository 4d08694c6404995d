"""files, log, memory: which system a descriptor means."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.core.secrets import SecretUrl
from headrace.systems.registry import SystemSpec


def test_files_are_a_system_for_each_stream() -> None:
    spec = hr.io.files(Path("data/x.csv"), format="csv", partitions=2).system("views.v1")
    assert spec == SystemSpec("files-views-v1", "files", {"path": "data/x.csv", "format": "csv", "partitions": 2})


def test_a_log_and_a_memory_are_one_for_all() -> None:
    assert hr.io.log("/data/shared.v2/") == SystemSpec("log-shared-v2", "log", {"root": "/data/shared.v2/"})
    assert hr.io.log("/x", name="theirs").name == "theirs"
    assert hr.io.memory("scratch") == SystemSpec("scratch", "memory", {"name": "scratch"})


def test_a_table_is_a_system_for_each_stream_and_hides_its_password() -> None:
    url = "postgresql://me:s3cret@db/results"
    spec = hr.io.sql(url, "reports.views", key="member").system("views.v1")
    assert (spec.name, spec.kind) == ("sql-views-v1", "sql")
    assert spec.options == {
        "url": SecretUrl(url),
        "table": "reports.views",
        "key": ("member",),
        "create": True,
        "new_columns": "refuse",
    }
    assert hr.io.sql(url, "t", key=["a", "b"]).key == ("a", "b")
    assert "s3cret" not in repr(spec) + repr(hr.io.sql(url, "t"))
    with pytest.raises(
        hr.errors.DeclarationError, match=r"the table 't' of postgresql://me:\*\*\*@db/results can't be an input"
    ):
        hr.App("a").input("x", {"n": pl.Int64}, system=hr.io.sql(url, "t"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hr.io.files("x", format="xml"), "files: unknown format 'xml'"),
        (lambda: hr.io.files("x", partitions=0), "files: partitions=0 is not a number of partitions"),
        (lambda: hr.io.log("/x", name="a.b"), "log: system name 'a.b' has a dot in it"),
        (lambda: hr.io.sql("mysql://me:s3cret@db/x", "t"), r"sql: mysql://me:\*\*\*@db/x doesn't name a known kind"),
        (lambda: hr.io.sql("sqlite:///x.db", "a..b"), r"sql: 'a..b' is not the name of a table"),
        (lambda: hr.io.memory("a b"), "memory: system name 'a b' is not a usable id"),
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(hr.errors.DeclarationError, match=message) as caught:
        make()
    assert caught.value.hint
