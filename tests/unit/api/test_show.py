"""``show``: a flow is printed while it runs."""

from __future__ import annotations

import json

import polars as pl

import headrace as hr


def test_messages_are_printed_as_they_are_processed(capsys):
    app = hr.App("shown")
    views = app.input("views", {"member": pl.String, "ms": pl.Int64})
    views.filter(pl.col("ms") > 100).show("slow")
    views.select("member").show()
    with app.test() as t:
        t.feed("views", [{"member": "ann", "ms": 200}, {"member": "bob", "ms": 5}])
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line for line in lines if line.startswith("slow ")) == ['slow {"member":"ann","ms":200}']
    assert [json.loads(line) for line in lines if line.startswith("{")] == [{"member": "ann"}, {"member": "bob"}]


def test_the_plan_says_that_it_is_printed(tmp_path):
    app = hr.App("shown", home=tmp_path)
    app.input("views", {"member": str}, create=1).show("slow")
    assert "Shown()" in str(app.plan())
