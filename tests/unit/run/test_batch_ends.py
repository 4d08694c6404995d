"""Up to where a batch job reads: to an end that is there, or to where the user says."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.errors import HeadraceError, PlanError, UsageError
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.run.batch_ends import Until, ends_of
from headrace.run.planning import gather_facts

COLUMNS = {"n": pl.Int64}


def planned(home: Path) -> Plan:
    app = hr.App("copy", home=home)
    app.input("numbers", COLUMNS).send_to(app.output("copies"))
    graph = app.graph()
    return plan(graph, gather_facts(graph))


def written(home: Path, rows: int, *, seal: bool = False) -> None:
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        for n in range(rows):
            writer.write([{"n": n}])
        if seal:
            writer.seal()


def test_a_stream_that_goes_on_needs_an_end(tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 2, COLUMNS, home=tmp_path)
    written(tmp_path, 4)
    with pytest.raises(PlanError, match=r"input 'numbers' .* doesn't end, so neither would a batch job"):
        ends_of(planned(tmp_path), None)
    now = ends_of(planned(tmp_path), Until())
    written(tmp_path, 2)
    later = ends_of(planned(tmp_path), Until())
    assert sorted(now) == sorted(later)
    assert all(now[ssp] < later[ssp] for ssp in now)
    first = ends_of(planned(tmp_path), Until(0))
    assert all(first[ssp] < now[ssp] for ssp in now)
    assert ends_of(planned(tmp_path), Until(1 << 60)) == later
    assert ends_of(planned(tmp_path), None, frozenset({"numbers"})) == {}


def test_a_sealed_stream_has_one(tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 2, COLUMNS, home=tmp_path)
    written(tmp_path, 4, seal=True)
    assert ends_of(planned(tmp_path), None) == ends_of(planned(tmp_path), Until())


def test_an_end_is_now_or_a_time() -> None:
    assert Until.of("now") == Until()
    assert (Until.of("1970-01-01T00:00:01Z"), str(Until.of("1000"))) == (Until(1000), "1970-01-01 00:00:01Z")
    with pytest.raises(UsageError, match="until='soon' is neither 'now' nor a time"):
        Until.of("soon")


def test_an_end_is_an_offset_of_a_partition(tmp_path: Path) -> None:
    hr.streams.create_stream("numbers", 2, COLUMNS, home=tmp_path)
    written(tmp_path, 4)
    now = ends_of(planned(tmp_path), Until())
    written(tmp_path, 2)
    first, second = sorted(now)
    until = Until.of(f"numbers/0={now[first]}")
    assert str(until) == f"numbers/0={now[first]}"
    found = ends_of(planned(tmp_path), until)
    assert found[first] == now[first]
    assert found[second] > now[second], "a partition that nobody has named is read up to now"


@pytest.mark.parametrize(
    ("until", "says"),
    [
        ("numbers/0=", "'numbers/0=' is not the offset of a partition"),
        ("numbers/0=1,numbers/0=2", "names partition 0 of numbers twice"),
        ("letters/0=1", "until= names 'letters', which isn't an input"),
        ("numbers/2=1", "until= names partition 2 of input 'numbers'"),
        ("numbers/0=7", "log.numbers"),
        ("numbers/0=99999", "log.numbers"),
    ],
)
def test_an_offset_that_is_none_is_refused(tmp_path: Path, until: str, says: str) -> None:
    hr.streams.create_stream("numbers", 2, COLUMNS, home=tmp_path)
    written(tmp_path, 4)
    with pytest.raises(HeadraceError) as refused:
        ends_of(planned(tmp_path), Until.of(until))
    assert says in refused.value.message
