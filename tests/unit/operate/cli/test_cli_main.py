from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import headrace
from headrace import streams
from headrace.core.errors import DataError, HeadraceError, PlanError, StorageError, UsageError, UserFunctionError
from headrace.operate.cli import main as cli_main
from headrace.operate.cli.console import Exit, exit_of
from headrace.operate.words import format_bytes

Cli = Callable[..., Any]


@pytest.mark.parametrize("words", [("version",), ("--version",)])
def test_version(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli(*words).out == f"headrace {headrace.__version__}\n"


def test_version_as_json(cli: Cli) -> None:
    assert cli("version", "--json").json() == {"version": headrace.__version__}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("strem",), "error: No such command 'strem'"),
        (("stream", "rread"), "error: No such command 'rread'"),
        (("stream", "read"), "error: Missing argument 'NAME'"),
        (("stream", "read", "x", "--folow"), "error: No such option: --folow"),
        (("run",), "error: Missing argument 'PIPELINE'"),
    ],
)
def test_wrong_usage(cli: Cli, words: tuple[str, ...], message: str) -> None:
    wrong = cli(*words)
    assert wrong.code == 2
    assert wrong.out == ""
    assert wrong.err.startswith(message)
    assert "hint: see headrace" in wrong.err


@pytest.mark.parametrize("words", [(), ("stream",)])
def test_the_bare_name_shows_the_help(cli: Cli, words: tuple[str, ...]) -> None:
    bare = cli(*words)
    assert bare.code == 2
    assert bare.err.startswith("Usage: headrace")


VERBS = [
    *(("plan",), ("run",), ("status",), ("drain",), ("doctor",), ("metrics",), ("version",)),
    *(("stream", verb) for verb in ("create", "list", "describe", "write", "read", "seal", "trim")),
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_help_and_json(cli: Cli, verb: tuple[str, ...]) -> None:
    shown = cli(*verb, "--help")
    assert shown.code == 0
    assert "--json" in shown.out
    for line in cli(*verb[:-1], "--help").out.splitlines():
        assert "..." not in line.split("COMMAND")[0], f"cut short: {line}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), Exit.USAGE),
        (PlanError("x"), Exit.USAGE),
        (UserFunctionError("x"), Exit.FAILED),
        (DataError("x"), Exit.FAILED),
        (StorageError("x"), Exit.FAILED),
        (HeadraceError("x"), Exit.FAILED),
    ],
)
def test_exit_codes_say_whose_fault_it_was(error: HeadraceError, code: int) -> None:
    assert exit_of(error) == code


def test_a_traceback_only_on_request(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in cli("stream", "read", "x").err
    assert "Traceback (most recent call last)" in cli("stream", "read", "x", "--traceback").err
    assert "Traceback (most recent call last)" in cli("--traceback", "stream", "read", "x").err
    monkeypatch.setenv("HEADRACE_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in cli("stream", "read", "x").err
    monkeypatch.setenv("HEADRACE_TRACEBACK", "0")
    assert "Traceback" not in cli("stream", "read", "x").err


def test_an_error_is_plain_where_no_terminal_is(cli: Cli) -> None:
    assert "\x1b" not in cli("stream", "read", "x").err


def heavy_after(script: str, *names: str) -> str:
    """Which of these packages a program has imported."""
    script += f"; import sys; print(sorted({set(names)!r} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return done.stderr.strip()


HEAVY = ("numpy", "polars", "pyarrow", "pyspark", "rich")  # typer imports pydantic by itself where it is installed


@pytest.mark.parametrize("words", [["--help"], ["stream", "--help"], ["savepoint", "--help"]], ids=" ".join)
def test_the_help_imports_nothing_that_takes_long(words: list[str]) -> None:
    assert heavy_after(f"from headrace.operate.cli.main import main; main({words!r})", *HEAVY) == "[]"


def test_commands_that_only_look_import_little(tmp_path: Path) -> None:
    """People call them again and again."""
    streams.create_stream("orders", 2, {"id": pl.Int64}, home=tmp_path)
    for words, heavy in (("status",), {*HEAVY} - {"rich"}), (("stream", "list"), {*HEAVY} - {"polars", "rich"}):
        call = [*words, "--home", str(tmp_path)]
        assert (
            heavy_after(f"from headrace.operate.cli.main import main; main({call!r})", *heavy).splitlines()[-1] == "[]"
        )


def test_the_package_imports_what_is_used() -> None:
    assert heavy_after("import headrace", *HEAVY) == "[]"
    assert heavy_after("from headrace import *; import headrace as hr; assert hr.App is App", "polars") == "['polars']"
    assert set(headrace.__all__) <= set(dir(headrace))


def test_an_app_imports_nothing_that_may_not_be_needed() -> None:
    """Each container and each command would wait for it. pyarrow imports pandas when it makes its first value."""
    assert heavy_after("import headrace; headrace.App", "boto3", "deltalake", "pandas", "pyspark") == "[]"


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> int:
        raise KeyError("a defect")

    monkeypatch.setattr(cli_main, "_commands", lambda named: broken)
    with pytest.raises(KeyError):
        cli_main.main(["version"])


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_234_567, "1.2 MB"), (5 * 10**15, "5000.0 TB")]
)
def test_sizes(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(("words", "offered"), [("headrace dr", ["drain"]), ("headrace stream se", ["seal"])])
def test_a_shell_completes_commands(capfd, monkeypatch, words, offered):
    monkeypatch.setenv("_HEADRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit) as ending:
        cli_main.main([])
    assert (ending.value.code, capfd.readouterr().out.split()) == (0, offered)


def test_the_package_can_be_run():
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout.startswith("headrace ")
