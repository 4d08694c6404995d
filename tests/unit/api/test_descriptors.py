"""files, log, memory: which system a descriptor means."""

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.systems.registry import SystemSpec


def test_files_are_a_system_for_each_stream() -> None:
    spec = hr.files(Path("data/x.csv"), format="csv", partitions=2).system("views.v1")
    assert spec == SystemSpec("files-views-v1", "files", {"path": "data/x.csv", "format": "csv", "partitions": 2})


def test_a_log_and_a_memory_are_one_for_all() -> None:
    assert hr.log("/data/shared.v2/").system("a") == SystemSpec("log-shared-v2", "log", {"root": "/data/shared.v2/"})
    assert hr.log("/x", name="theirs").system("b").name == "theirs"
    assert hr.memory("scratch").system("c") == SystemSpec("scratch", "memory", {"name": "scratch"})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hr.files("x", format="xml"), "files: unknown format 'xml'"),
        (lambda: hr.files("x", partitions=0), "files: partitions=0 is not a number of partitions"),
        (lambda: hr.log("/x", name="a.b"), "log: system name 'a.b' has a dot in it"),
        (lambda: hr.memory("a b"), "memory: system name 'a b' is not a usable id"),
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(hr.DeclarationError, match=message) as caught:
        make()
    assert caught.value.hint
