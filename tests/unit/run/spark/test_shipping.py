"""What is sent to containers: functions in steps and in expressions. What can't be sent is named by its step."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace as hr
from headrace.plan.planner import plan
from headrace.run.spark.container_main import ContainerPayload
from headrace.run.spark.shipping import ship
from headrace.systems.base import StreamInfo

_READ = """
import sys
from headrace.run.spark.container_main import unpacked
import polars as pl
graph = unpacked(open(sys.argv[1], "rb").read()).plan.graph
(predicate,) = (n.operator.predicate for n in graph.nodes.values() if hasattr(n.operator, "predicate"))
print(pl.DataFrame({"ms": [1, 2, 3]}).filter(predicate)["ms"].to_list())
"""


def payload(app: hr.App) -> ContainerPayload:
    return ContainerPayload(plan(app.graph(), {"views": StreamInfo("views", 1)}), "http://localhost", "token", ())


def viewed(app: hr.App) -> hr.Stream:
    return app.input("views", {"ms": pl.Int64})


def test_functions_in_expressions_arrive(tmp_path: Path) -> None:
    bound = 1
    app = hr.App("shipping")
    slow = pl.col("ms").map_elements(lambda ms: len(str(ms) * ms) > bound, return_dtype=pl.Boolean)
    viewed(app).filter(slow).send_to(app.output("out"))
    before = sys.modules.get("cloudpickle")
    (tmp_path / "payload").write_bytes(ship(payload(app)))
    assert sys.modules.get("cloudpickle") is before
    command = [sys.executable, "-W", "ignore", "-c", _READ, str(tmp_path / "payload")]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[2, 3]"


def test_a_remote_table_whose_function_can_not_be_sent_is_named() -> None:
    app = hr.App("shipping")
    read = hr.tables.remote(locked(0))
    table = app.table("members", key="ms", schema={"ms": pl.Int64, "n": pl.Int64}, remote=read)
    viewed(app).join(table).send_to(app.output("out"))
    with pytest.raises(
        hr.errors.DeclarationError, match=r"the table 'members' can't be sent to containers: TypeError.*lock"
    ):
        ship(payload(app))


def locked(value: Any) -> Any:
    lock = threading.Lock()
    return lambda row: row if lock else value


@pytest.mark.parametrize("kind", ["step", "expression"])
def test_what_can_not_be_sent_is_named(kind: str) -> None:
    app = hr.App("shipping")
    views = viewed(app)
    if kind == "step":
        views.filter(pl.col("ms") > 1).map(locked(1), {"ms": pl.Int64}).send_to(app.output("out"))
    else:
        views.filter(pl.col("ms").map_elements(locked(1), return_dtype=pl.Boolean)).send_to(app.output("out"))
    with pytest.raises(hr.errors.DeclarationError) as info:
        ship(payload(app))
    step = "map-1" if kind == "step" else "filter-1"
    what = f"the step '{step}' can't be sent to containers: TypeError: cannot pickle '_thread.lock' object\n"
    assert info.value.message.startswith(what)
    assert __file__ in info.value.message
    assert "create it inside the function" in (info.value.hint or "")
