"""docs/command-line.md names the keys that each verb prints with ``--json``, and no others."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from running_shop import Shop

PAGE = Path(__file__).resolve().parents[4] / "docs" / "command-line.md"
PIPELINE = """
import headrace as hr
app = hr.App("copies")
app.input("numbers", {"n": int}).send_to(app.output("copies"))
"""
GROUPS = {"stream", "checkpoint", "table", "savepoint", "startpoint"}
OF_ROWS = {"stream read", "table get", "table scan"}
"""These print a line for each row, with its columns."""
NOT_RUN = {"backfill", "peek"}
"""One needs Spark, the other ten seconds. Their keys are checked by their own tests."""
LINE = re.compile(r"^\| `headrace ([a-z-]+(?: [a-z-]+)?)` \| (an object|an array|lines) \| (.+) \|$", flags=re.M)

Look = Callable[[str], None]


def test_each_verb_prints_the_keys_that_the_page_names(cli, home, monkeypatch, clean_modules):
    monkeypatch.setattr(
        "headrace.run.spark.launch.find_java", lambda _: SimpleNamespace(version=17, source="PATH", path="/java")
    )
    found: dict[str, tuple[str, list[str]]] = {}

    def look(command: str) -> None:
        words = command.split()
        outcome = cli(*words, "--json")
        assert outcome.code == 0, (command, outcome.err)
        name = " ".join(words[: 2 if words[0] in GROUPS or "--against" in words else 1])
        found[name.replace("plan pipeline.py", "plan --against")] = keys_of(name, outcome)

    look_at_streams(look)
    look_at_a_shop(look, home, cli)
    text = PAGE.read_text(encoding="utf-8")
    named = {name: (form, re.findall("`([^`]+)`", keys)) for name, form, keys in LINE.findall(text)}
    assert sorted(named) == sorted(found | dict.fromkeys(NOT_RUN))
    assert {name: said for name, said in named.items() if name not in NOT_RUN} == found


def keys_of(name: str, outcome: Any) -> tuple[str, list[str]]:
    if name in OF_ROWS:
        return "lines", sorted(key for key in outcome.lines()[0] if key.startswith("@"))
    data = outcome.json()
    if isinstance(data, list):
        return "an array", sorted({key for one in data for key in one})
    return "an object", sorted(data)


def look_at_streams(look: Look) -> None:
    Path("pipeline.py").write_text(PIPELINE)
    Path("rows.jsonl").write_text('{"n": 1}\n')
    look("version")
    look("new page-views")
    look("stream create numbers --partitions 1 --schema n:int")
    look("stream write numbers rows.jsonl")
    look("stream add-column numbers note:str")
    look("stream list")
    look("plan pipeline.py")
    look("doctor pipeline.py")
    look("stream verify numbers")
    look("stream repair numbers")
    look("stream read numbers")
    look("stream seal numbers")
    look("run pipeline.py --local --quiet")
    look("plan pipeline.py --against copies")
    look("stream describe numbers")
    look("stream trim numbers --before upcoming --yes")


def look_at_a_shop(look: Look, home: Path, cli: Callable[..., Any]) -> None:
    shop = Shop(home)
    try:
        shop.price(lamp="1.50")
        with shop.running():
            shop.until(lambda: cli("table", "get", "shop", "prices", "lamp").code == 0)
            for verb in ("status", "check", "metrics", "offsets", "dashboard"):
                look(f"{verb} shop")
            look("table list shop")
            look("table get shop prices lamp")
            look("table scan shop prices")
            look("checkpoint list shop")
            look("checkpoint show shop")
            look("startpoint address shop")
            look("savepoint create shop monday")
            look("drain shop")
        look("savepoint list")
        look("savepoint show shop monday")
        look("savepoint export shop monday out")
        look("savepoint delete shop monday")
        look("savepoint import shop monday out")
        look("savepoint restore shop monday")
        look("savepoint timelines shop")
        look("savepoint undo shop")
        look("startpoint set shop sales --oldest")
        look("startpoint list shop")
        look("startpoint delete shop sales")
    finally:
        shop.close()
