from __future__ import annotations

import ast
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

import headrace
from headrace.core.log import CLEAR_LINE, LEVELS, LogSettings, Throttle, current_settings, logger, logging_to

SOURCE = Path(headrace.__file__).parent
RESERVED = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "time", "level", "logger", "traceback"}

log = logger("headrace.test")


class Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


@pytest.fixture
def lines() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    root = logging.getLogger("headrace")
    before = (root.level, root.propagate, list(root.handlers))
    yield
    assert (root.level, root.propagate, list(root.handlers)) == before


def test_a_line_says_when_how_bad_where_what_and_about_what(lines: io.StringIO) -> None:
    with logging_to(LogSettings("info"), lines, {"container": 3}):
        log.info("the task reads on", task="views/0", version=7, took_ms=0.4, snapshot=None, first=True)
    when, level, name, rest = lines.getvalue().split(" ", 3)
    assert (len(when), when[10], when[-1]) == (24, "T", "Z")
    assert (level, name) == ("INFO", "headrace.test:")
    assert rest == "the task reads on container=3 task=views/0 version=7 took_ms=0.4 first=True\n"


def test_values_that_could_be_taken_for_more_than_one_are_quoted(lines: io.StringIO) -> None:
    with logging_to(LogSettings("info"), lines):
        log.info("x", folder="/a b", empty="", error='say "x"\nhint', equals="a=b", greek="λ")
    fields = lines.getvalue().split(" x ", 1)[1]
    assert fields == 'folder="/a b" empty="" error="say \\"x\\"\\nhint" equals="a=b" greek="λ"\n'


def test_a_message_of_several_lines_is_indented_so_that_no_line_looks_like_another_record(lines: io.StringIO) -> None:
    with logging_to(LogSettings("info"), lines):
        log.info("first\n2026-01-01T00:00:00.000Z ERROR forged")
    assert lines.getvalue().splitlines()[1].startswith("  2026")


def test_a_message_can_not_move_the_cursor_of_a_terminal(lines: io.StringIO) -> None:
    with logging_to(LogSettings("info"), lines):
        log.info("a\r\x1b[Kb", c="\x1b[2J")
    assert lines.getvalue().endswith(': a\\x0d\\x1b[Kb c="\\u001b[2J"\n')


def test_json_has_the_same_facts_with_their_types(lines: io.StringIO) -> None:
    with logging_to(LogSettings("debug", "json"), lines, {"container": 3}):
        log.debug("a\nb", task="views/0", version=7)
    (line,) = lines.getvalue().splitlines()
    data = json.loads(line)
    assert data.pop("time").endswith("Z")
    assert data == {
        "level": "debug",
        "logger": "headrace.test",
        "message": "a\nb",
        "container": 3,
        "task": "views/0",
        "version": 7,
    }


@pytest.mark.parametrize("kind", ["text", "json"])
def test_an_exception_brings_its_traceback(lines: io.StringIO, kind: str) -> None:
    with logging_to(LogSettings("info", "json" if kind == "json" else "text"), lines):
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("headrace.test").exception("failed")
    assert "ValueError: broken" in lines.getvalue()
    assert (len(lines.getvalue().splitlines()) == 1) == (kind == "json")


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_lets_through_what_is_at_least_as_bad(lines: io.StringIO, level: str) -> None:
    (chosen,) = (each for each in LEVELS if each == level)
    with logging_to(LogSettings(chosen), lines):
        log.debug("debug")
        log.info("info")
        log.warning("warning")
        log.error("error")
    assert [line.split()[-1] for line in lines.getvalue().splitlines()] == list(LEVELS[LEVELS.index(chosen) : -1])


@pytest.mark.parametrize("kind", ["text", "json"])
def test_no_password_of_a_url_is_written(lines: io.StringIO, kind: str) -> None:
    with logging_to(LogSettings("info", "json" if kind == "json" else "text"), lines):
        log.info("can't reach postgres://ann:s3cret@db:5432/shop", url="postgres://h/x?token=s3cret&limit=5")
    assert "s3cret" not in lines.getvalue()
    assert "postgres://ann:***@db:5432/shop" in lines.getvalue()
    assert "token=***&limit=5" in lines.getvalue()


def test_on_a_terminal_a_line_replaces_the_progress_line(lines: io.StringIO) -> None:
    terminal = Terminal()
    with logging_to(LogSettings("info"), terminal):
        log.info("x")
    assert terminal.getvalue().startswith(CLEAR_LINE + "20")
    with logging_to(LogSettings("info"), lines):
        log.info("x")
    assert lines.getvalue().startswith("20")


def test_a_closed_stream_stops_no_program(lines: io.StringIO) -> None:
    lines.close()
    with logging_to(LogSettings("info"), lines):
        log.info("nowhere to go")


# -- for applications ------------------------------------------------------------------------------------


def test_fields_are_attributes_of_the_record(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("away", task="views/0", nothing=None)
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["task"], record.funcName) == (
        "away",
        "views/0",
        "test_fields_are_attributes_of_the_record",
    )
    assert not hasattr(record, "nothing")


def test_containers_get_the_log_settings_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    top = logging.getLogger()
    monkeypatch.setattr(top, "handlers", [])
    assert current_settings() == LogSettings(others="warning")
    with logging_to(LogSettings("debug", "json"), io.StringIO()):
        assert current_settings() == LogSettings("debug", "json", others="debug")
    monkeypatch.setattr(top, "handlers", [logging.StreamHandler(io.StringIO())])
    monkeypatch.setattr(top, "level", logging.INFO)
    logging.getLogger("headrace").manager._clear_cache()  # type: ignore[attr-defined]
    assert current_settings() == LogSettings("info", others="info")


PROGRAM = """
import polars as pl
import headrace as hr
from headrace.core.log import logger
hr.streams.create_stream("numbers", 1, {"n": pl.Int64})
with hr.streams.StreamWriter("numbers") as writer:
    writer.write([{"n": 1}])
    writer.seal()
app = hr.App("doubles")
app.input("numbers", schema={"n": pl.Int64}).select(pl.col("n") * 2).send_to(app.output("doubles"))
app.run(local=True, progress=False)
logger("headrace.test").warning("a warning")
"""


def _run(program: str, home: Path) -> str:
    environment = {"PYTHONPATH": str(SOURCE.parent), "HEADRACE_HOME": str(home)}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return ran.stdout + ran.stderr


def test_a_script_prints_nothing_unless_it_asks_for_it(tmp_path: Path) -> None:
    assert _run(PROGRAM, tmp_path / "quiet") == ""
    asked = "import logging\nlogging.basicConfig(level='INFO')\n"
    printed = _run(asked + PROGRAM, tmp_path / "asked")
    assert "INFO:headrace.task.host.task_host:the task has its state and reads on" in printed
    assert printed.count("a warning") == 1


# -- what repeats ----------------------------------------------------------------------------------------


def test_what_repeats_is_logged_at_powers_of_ten(lines: io.StringIO) -> None:
    throttle = Throttle(log)
    with logging_to(LogSettings("debug"), lines):
        written = [n for n in range(1, 1500) if throttle.warning("again")]
        assert written == [1, 10, 100, 1000]
        assert throttle.info("many at once", by=250)
        assert not throttle.info("many at once", by=250)
        assert throttle.info("many at once", by=500)
        assert not throttle.warning("none", by=0)
    ends = [line.split(": ", 1)[1] for line in lines.getvalue().splitlines()]
    assert ends[0] == "again"
    assert ends[1:4] == ["again times=10", "again times=100", "again times=1000"]
    assert ends[4:] == ["many at once times=250", "many at once times=1000"]


def test_what_lasts_long_is_logged_every_minute(lines: io.StringIO) -> None:
    now = 0.0
    throttle = Throttle(log, lambda: now)
    with logging_to(LogSettings("info"), lines):
        for second in range(1, 200):
            now = float(second)
            throttle.warning("again")
    assert [line.rpartition("times=")[2] for line in lines.getvalue().splitlines()[1:]] == ["10", "70", "100", "160"]


# -- the house ------------------------------------------------------------------------------------------


def test_no_field_has_a_name_that_a_record_has_already() -> None:
    calls = [
        (file, call)
        for file in sorted(SOURCE.rglob("*.py"))
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("debug", "info", "warning", "error", "add")
        and ast.unparse(call.func.value).endswith(("_log", "_throttle", "_warnings", "warnings"))
    ]
    assert len(calls) > 40
    wrong = [
        f"{file.name}:{call.lineno} {word.arg}"
        for file, call in calls
        for word in call.keywords
        if word.arg in RESERVED
    ]
    assert wrong == []
