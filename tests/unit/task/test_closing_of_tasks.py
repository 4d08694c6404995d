"""What becomes of everything else when the user's ``close`` raises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from driven_app import DrivenApp

import headrace as hr
from headrace.core.errors import UserFunctionError
from headrace.task.container import Container

ROW = {"n": pl.Int64}
closed: list[tuple[str, int]] = []


class Failing(hr.tasks.Task):
    """Fails on 0, and whenever it closes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = -1

    def init(self, context: hr.tasks.TaskContext) -> None:
        self.number = context.partition

    def process(self, message: dict[str, Any], out: hr.tasks.Out) -> None:
        if not message["n"]:
            raise ValueError("the first trouble")
        out.send("out", message)

    def close(self) -> None:
        closed.append((self.name, self.number))
        raise KeyError("the second trouble")


def failing(home: Path) -> hr.App:
    app = hr.App("failing", home=str(home))
    hr.streams.create_stream("numbers", 2, ROW, home=home)
    flow = app.input("numbers", ROW)
    for name in ("a", "b"):
        flow = app.task(Failing(name), {"numbers": flow}, {"out": ROW}, id=name)["out"]
    flow.send_to(app.output("out", partitions=2))
    closed.clear()
    return app


def test_what_went_wrong_first_is_told_and_everything_is_closed(tmp_path: Path) -> None:
    app = failing(tmp_path)
    with hr.streams.StreamWriter("numbers", home=tmp_path) as writer:
        writer.write(pl.DataFrame({"n": [0]}))
    with DrivenApp(app) as driven:
        tasks = [task.name for stage in driven.plan.stages for task in stage.tasks]
        container = Container(driven.plan, tasks, driven.next_generation, driven.clock)
        with pytest.raises(UserFunctionError, match="the first trouble") as caught:
            container.run()
        container.close()
    assert "closing failed, too: close of the task Failing" in caught.value.message
    assert sorted(closed) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_a_close_that_raises_fails_the_run_and_leaves_the_state_free(tmp_path: Path) -> None:
    app = failing(tmp_path)
    with DrivenApp(app) as driven:
        container = driven.start()
        driven.living.clear()
        with pytest.raises(UserFunctionError, match=r"close of the task Failing.*\n?.*the second trouble"):
            container.hosts[0].close()
        for host in container.hosts[1:]:
            with pytest.raises(UserFunctionError):
                host.close()
        container.close()
        assert sorted(closed) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
        again = driven.start()
        driven.living.clear()
        assert [list(host.state.warnings) for host in again.hosts] == [[], []]  # nobody holds the folders
        for host in again.hosts:
            with pytest.raises(UserFunctionError):
                host.close()
        again.close()
