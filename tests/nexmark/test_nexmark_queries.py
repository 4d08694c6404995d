"""The queries of Nexmark give what Polars computes from all data at once: in any order, and across restarts."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from nexmark_files import FOLDER, QUERIES, load

import headrace as hr

EVENTS = 20_000
RATE = 400
"""50 s of event time: five windows of ten seconds."""
DISORDER_MS = 900
STATEFUL = ("q3", "q4", "q5", "q6", "q7", "q8", "q11")
READS = {
    **dict.fromkeys(("q0", "q1", "q2", "q5", "q7", "q11"), ("bids",)),
    **dict.fromkeys(("q3", "q8"), ("persons", "auctions")),
    **dict.fromkeys(("q4", "q6"), ("auctions", "bids")),
}
PARTITIONS = 2
BATCHES = 6
ANSWERS = load("answers")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = load("generator")
    folder = tmp_path_factory.mktemp("nexmark")
    generator.write(generator.Settings(EVENTS, 5, RATE, DISORDER_MS), folder, files=PARTITIONS)
    return folder


def declared(query: str, data: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> hr.App:
    monkeypatch.setenv("NEXMARK_DATA", str(data))
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    app: hr.App = load(query).app
    return app


@pytest.mark.parametrize("query", QUERIES)
def test_files_give_the_right_answer(query: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared(query, data, tmp_path, monkeypatch).run(local=True, progress=False)
    found = hr.streams.read_stream(query, home=tmp_path)
    assert found.height
    assert ANSWERS.difference(found, ANSWERS.answer(query, data)) is None


def fed(query: str, app: hr.App, data: Path, kills: dict[int, bool]) -> tuple[pl.DataFrame, int]:
    """What the query commits when its inputs arrive in pieces, and how many messages were late.

    ``kills`` are the pieces after which it is killed, each with whether a checkpoint is taken just before.
    """
    inputs = {
        (kind, partition): pl.read_parquet(data / f"{kind}-{partition:03}.parquet")
        for kind in READS[query]
        for partition in range(PARTITIONS)
    }
    with app.test(partitions=PARTITIONS) as t:
        for number in range(BATCHES):
            for (kind, partition), rows in inputs.items():
                columns = list(t.plan.graph.streams[kind].schema.columns)
                size = -(-rows.height // BATCHES)
                t.feed(kind, rows.slice(number * size, size).select(columns), partition=partition)
            if number in kills:
                t.restart(checkpoint=kills[number])
        t.end()
        assert t.ended
        return t.read(query, committed=True), t.counter("late")


@pytest.mark.parametrize("query", STATEFUL)
def test_kills_in_the_middle_change_nothing(
    query: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = declared(query, data, tmp_path, monkeypatch)
    found, late = fed(query, app, data, kills={1: True, 3: False})
    assert ANSWERS.difference(found, ANSWERS.answer(query, data)) is None
    assert late == 0


def test_a_result_of_q7_is_a_bid(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = fed("q7", declared("q7", data, tmp_path, monkeypatch), data, kills={})
    bids = pl.read_parquet(data / "bids-*.parquet")
    assert found.join(bids, on=["auction", "bidder", "price", "ts"], how="semi").height == found.height == 5


def test_averages_of_q4_are_grouped_on_the_way(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = fed("q4", declared("q4", data, tmp_path, monkeypatch), data, kills={})
    grouped = found.sort("category", "pane_index").group_by("category").agg("pane", "auctions")
    assert grouped.height == 5
    for panes, auctions in grouped.select("pane", "auctions").iter_rows():
        assert panes == ["early"] * 4 + ["on_time"]
        assert auctions == sorted(set(auctions))


def test_the_answers_say_what_is_wrong(data: Path) -> None:
    right = ANSWERS.answer("q11", data)
    wrong = right.with_columns(bids=pl.col("bids") + (pl.col("bidder") == 1000))
    assert ANSWERS.difference(right.reverse(), right) is None
    assert "missing" in ANSWERS.difference(wrong, right)
    assert "rows, not" in ANSWERS.difference(right.head(3), right)
    assert "rows, not" in ANSWERS.difference(pl.concat([right, right]), right)
    assert "columns" in ANSWERS.difference(right.cast({"bids": pl.Int32}), right)


def test_as_a_user_runs_them(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(hr.__file__).parents[1])}

    def run(*words: str) -> str:
        ran = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    written = run(str(FOLDER / "generator.py"), "--events", "30000", "--files", "2")
    assert written == "wrote 600 persons, 1800 auctions and 27600 bids to nexmark-data\n"
    run("-m", "headrace.operate.cli.main", "run", str(FOLDER / "q2.py"), "--local", "--quiet")
    assert run(str(FOLDER / "answers.py"), "q2").startswith("q2: right, ")


def test_each_query_is_short_and_uses_what_is_public() -> None:
    for query in QUERIES:
        text = (FOLDER / f"{query}.py").read_text(encoding="utf-8")
        imports = {line for line in text.splitlines() if line.startswith(("import ", "from "))}
        assert imports == {"import os", "from pathlib import Path", "import polars as pl", "import headrace as hr"}
        assert len(text.splitlines()) <= 70, query
        assert 'if __name__ == "__main__":\n    app.run()\n' in text
    assert {path.stem for path in FOLDER.glob("q*.py")} == set(QUERIES)
