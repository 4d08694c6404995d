"""``headrace sql``: the streams of a home, asked in SQL."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import headrace as hr
from headrace.operate.cli.sql import Session
from headrace.rows.changes import CHANGE, KIND
from headrace.streams.writer import StreamWriter

CLICKS = {"url": str, "member": str, "at": "datetime"}
ROWS = [
    {"url": "/a", "member": "ann", "at": "2026-01-31T12:00:01"},
    {"url": "/b", "member": "bob", "at": "2026-01-31T12:00:11"},
    {"url": "/a", "member": "ann", "at": "2026-01-31T12:00:02"},
]
TABLES = (
    "CREATE TABLE clicks (url STRING, member STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '5' SECOND);\n"
)
WINDOWS = (
    "SELECT url, window_start, count(*) AS n FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(at), INTERVAL '10' SECOND)) "
    "GROUP BY url, window_start, window_end"
)
Cli = Callable[..., Any]
Ask = Callable[..., list[dict[str, object]]]


@pytest.fixture
def ask(cli: Cli, home: Path, tmp_path: Path) -> Ask:
    """The rows of a statement over two partitions of clicks."""
    lines = tmp_path / "clicks.jsonl"
    lines.write_text("".join(f'{{"url":"{r["url"]}","member":"{r["member"]}","at":"{r["at"]}"}}\n' for r in ROWS))
    schema = "url:str,member:str,at:datetime[us]"
    assert cli("stream", "write", "clicks", lines, "--create", "--partitions", 2, "--schema", schema).code == 0

    def asked(text: str, *options: object) -> list[dict[str, object]]:
        outcome = cli("sql", "--json", *options, "--execute", text)
        assert outcome.code == 0, outcome.err
        return cast("list[dict[str, object]]", outcome.lines())

    return asked


def test_a_home_shows_its_tables_and_their_columns(ask: Ask, home: Path) -> None:
    assert ask("SHOW TABLES") == [{"name": "clicks", "kind": "stream", "columns": "url, member, at"}]
    assert ask(f"{TABLES} CREATE VIEW v AS SELECT url FROM clicks; show tables") == [
        {"name": "clicks", "kind": "declared table", "columns": None},
        {"name": "v", "kind": "declared view", "columns": None},
    ]
    assert ask("DESCRIBE clicks") == [
        {"column": "url", "type": "STRING", "event time": False},
        {"column": "member", "type": "STRING", "event time": False},
        {"column": "at", "type": "TIMESTAMP", "event time": False},
    ]
    assert ask(f"{TABLES} DESC clicks")[2] == {"column": "at", "type": "TIMESTAMP", "event time": True}


def test_a_query_has_the_rows_of_now(ask: Ask, home: Path) -> None:
    before = sorted(path for path in home.rglob("*"))
    assert ask("SELECT member, count(*) AS n FROM clicks GROUP BY member") == [
        {"member": "ann", "n": 2},
        {"member": "bob", "n": 1},
    ]
    assert len(ask("SELECT member, count(*) AS n FROM clicks GROUP BY member", "--changes")) == 2
    assert sorted(ask(TABLES + WINDOWS), key=str) == [
        {"url": "/a", "window_start": "2026-01-31T12:00:00.000000", "n": 2},
        {"url": "/b", "window_start": "2026-01-31T12:00:10.000000", "n": 1},
    ]
    assert sorted(path for path in home.rglob("*")) == before


def test_rows_that_have_an_end_can_be_sorted(ask: Ask) -> None:
    assert ask("SELECT url, at FROM clicks ORDER BY at DESC LIMIT 1") == [
        {"url": "/b", "at": "2026-01-31T12:00:11.000000"}
    ]
    assert ask("SELECT url FROM clicks ORDER BY url") == [{"url": "/a"}, {"url": "/a"}, {"url": "/b"}]
    assert len(ask("SELECT url FROM clicks LIMIT 2")) == 2
    nulls = "SELECT nullif(url, '/a') AS u FROM clicks ORDER BY u"
    assert ask(nulls)[0] == ask(f"SELECT * FROM ({nulls} LIMIT 1)")[0] == {"u": None}, "as in an app: nulls come first"
    assert ask("SELECT url FROM clicks ORDER BY at LIMIT 1") == [{"url": "/a"}]


def test_only_the_last_rows_are_asked(ask: Ask, home: Path) -> None:
    with StreamWriter("clicks", home=home) as writer:
        for number in range(50):
            writer.write([{"url": f"/{number}", "member": "eve", "at": None}])
    last = ask("SELECT url FROM clicks WHERE member = 'eve' ORDER BY url", "--rows", 2)
    assert last == [{"url": "/46"}, {"url": "/47"}, {"url": "/48"}, {"url": "/49"}], "two partitions take turns"
    assert len(ask("SELECT url FROM clicks", "--ago", "1h")) == 53


def test_a_result_of_some_rows_says_so(ask: Ask, cli: Cli) -> None:
    assert "note" not in cli("sql", "-e", "SELECT url FROM clicks", "--rows", 3).err
    cut = cli("sql", "-e", "SELECT url FROM clicks", "--rows", 1)
    assert cut.err == "note: this asks the last 1 rows of each partition of clicks, which has more: --rows N\n"


def test_a_file_gives_its_tables_and_views_and_writes_nothing(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "busy.sql"
    file.write_text(f"{TABLES} CREATE VIEW busy AS {WINDOWS}; INSERT INTO found SELECT url FROM busy;")
    assert ask("SELECT n FROM busy WHERE url = '/a'", file) == [{"n": 2}]
    assert [row["name"] for row in ask("SHOW TABLES", file)] == ["busy", "clicks"]


def test_what_an_app_wrote_is_a_table(ask: Ask, home: Path) -> None:
    app = hr.App("totals", home=home)
    clicks = app.input("clicks", {"url": str, "member": str})
    clicks.partition_by("member").group_by("member").agg(n=hr.count()).send_to("totals")
    with StreamWriter("clicks", home=home) as writer:
        writer.seal()
    app.run(local=True, progress=False)
    assert ask("SELECT member, n FROM totals WHERE n > 1") == [{"member": "ann", "n": 2}]


def test_changes_of_rows_that_came_before_the_last_ones_add_up_too(ask: Ask, cli: Cli, home: Path) -> None:
    hr.streams.create_stream("counts", 1, schema={"k": str, "n": int, CHANGE: KIND}, home=home)
    with StreamWriter("counts", home=home) as writer:
        for n in range(5):
            kinds = ["insert"] if n == 0 else ["update_before", "update_after"]
            writer.write([{"k": "a", "n": n - (kind == "update_before"), CHANGE: kind} for kind in kinds])
    assert ask("SELECT * FROM counts", "--rows", 2) == [{"k": "a", "n": 4}]
    assert "1 row goes that came before" in cli("sql", "--rows", 2, "-e", "SELECT * FROM counts").err
    assert ask("SELECT * FROM counts") == [{"k": "a", "n": 4}]


def test_nulls_are_where_the_order_has_them(ask: Ask, home: Path) -> None:
    with StreamWriter("clicks", home=home) as writer:
        writer.write([{"url": "/c", "member": None, "at": None}])
    for order, place in (("", 0), ("DESC", 3), ("NULLS LAST", 3), ("DESC NULLS FIRST", 0)):
        assert ask(f"SELECT member FROM clicks ORDER BY member {order}")[place] == {"member": None}


def test_explain_shows_the_plan(ask: Ask, cli: Cli) -> None:
    outcome = cli("sql", "--execute", f"{TABLES} EXPLAIN {WINDOWS}")
    assert "tumbling 10s by url" in outcome.out
    (found,) = ask("explain insert into x select url from clicks")
    assert "into x" in str(found["plan"])


def test_a_pipe_is_a_script(ask: Ask, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT url FROM clicks LIMIT 1;\n-- the columns\nDESCRIBE clicks;"))
    assert len(cli("sql", "--json").lines()) == 4
    monkeypatch.setattr("sys.stdin", io.StringIO("-- nothing\n"))
    assert "no statement" in cli("sql").err


@pytest.mark.parametrize(
    ("text", "error", "hint"),
    [
        ("SELECT url FROM clicks;\nSELECT\n  ulr FROM clicks", "no column ulr (line 3, column 3: ulr)", "mean url?"),
        ("SELECT url FROM click", "no table click (line 1, column 17: click)", "did you mean clicks?"),
        ("INSERT INTO x SELECT url FROM clicks", "where nothing is written (line 1, column 13: x)", "headrace run"),
        ("SHOW FUNCTIONS", "no statement SHOW", "SHOW TABLES"),
        ("DROP TABLE clicks", "no statement DROP", "SHOW TABLES"),
        ("CREATE VIEW v AS SELECT url FROM clicks; CREATE VIEW v AS SELECT 1", "v is there already", "OR REPLACE"),
        ("CREATE VIEW v AS SELECT ulr FROM clicks", "no column ulr", "did you mean url?"),
        ("SELECT url FROM clicks ORDER BY at", "can't be sorted", "LIMIT"),
        ("EXPLAIN SHOW TABLES", "EXPLAIN takes a SELECT", ""),
        (WINDOWS, "the table has no event time", "WATERMARK FOR"),
    ],
)  # fmt: skip
def test_errors_say_where_and_what_to_do(ask: Ask, cli: Cli, text: str, error: str, hint: str) -> None:
    outcome = cli("sql", "--execute", text)
    assert outcome.code == 2
    assert error in outcome.err
    assert hint in outcome.err


def test_a_view_can_be_replaced_and_a_bad_one_leaves_the_old(ask: Ask, home: Path) -> None:
    asked = Session(home, 10, None, changes=False, as_json=True)
    asked.run("CREATE VIEW v AS SELECT url FROM clicks", "prompt")
    with pytest.raises(hr.errors.HeadraceError, match="no column ulr"):
        asked.run("CREATE OR REPLACE VIEW v AS SELECT ulr FROM clicks", "prompt")
    asked.run("SELECT url FROM v", "prompt")
    asked.run("CREATE OR REPLACE VIEW v AS SELECT member FROM clicks; SELECT member FROM v", "prompt")
