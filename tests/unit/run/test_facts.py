from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import DataError, PlanError
from headrace.run.planning import gather_facts
from headrace.systems.log.system import LogSystem


def declared(home: Path) -> hr.App:
    app = hr.App("facts", home=str(home))
    views = app.input("views", schema={"member": pl.String})
    views.send_to(app.output("copies"))
    return app


def test_each_stream_has_an_entry(tmp_path: Path) -> None:
    admin = LogSystem(tmp_path / "streams").admin()
    admin.create("views", 3, {"member": pl.String()})
    facts = gather_facts(declared(tmp_path).graph())
    assert set(facts) == {"views", "copies"}
    views = facts["views"]
    assert views is not None
    assert (views.partitions, views.columns) == (3, {"member": pl.String()})
    assert facts["copies"] is None


def test_nothing_is_made(tmp_path: Path) -> None:
    gather_facts(declared(tmp_path).graph())
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_a_system_names_the_stream_and_the_line(tmp_path: Path) -> None:
    LogSystem(tmp_path / "streams").admin().create("views", 1)
    (tmp_path / "streams" / "views" / "stream.json").write_text("{")
    with pytest.raises(DataError, match=r"source stream 'views' \(.*test_facts.py:\d+\): .*not JSON"):
        gather_facts(declared(tmp_path).graph())


def test_an_input_with_a_misspelt_name_is_not_to_be_created(tmp_path: Path) -> None:
    LogSystem(tmp_path / "streams").admin().create("view", 1)
    with pytest.raises(PlanError) as caught:
        gather_facts(declared(tmp_path).graph())
    assert re.match(r"source 'views' doesn't exist\n  at .*test_facts.py:\d+: ", caught.value.message)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("did you mean 'view'? Otherwise create it: headrace stream create views ")
