"""The page of judged cases counts what is there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from judged_cases import cases

PAGE = Path(__file__).parents[2] / "docs" / "sql-judged.md"
ENGINES = {"flink": "Flink", "risingwave": "RisingWave", "arroyo": "Arroyo"}


def table(head: str) -> dict[str, list[str]]:
    lines = PAGE.read_text().partition(head)[2].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_each_case_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(case.id for case in cases()).items() if times > 1] == []


def test_the_page_has_the_counts_of_each_engine() -> None:
    verdicts = Counter((case.engine, case.verdict) for case in cases())
    wanted = {
        name: [str(verdicts[engine, verdict]) for verdict in ("same", "differs", "refused")]
        for engine, name in ENGINES.items()
    }
    assert table("| engine | same | differs | refused |") == wanted


def test_the_page_has_what_is_missing_by_how_many_cases() -> None:
    missing = Counter(case.reason.partition(" |")[0] for case in cases() if case.verdict == "refused")
    found = {what: int(number) for what, (number, *_) in table("| missing | cases | instead |").items()}
    assert found == missing
