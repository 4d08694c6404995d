"""Commands that wait say for what and how long, and Ctrl-C ends them with 130 and without a traceback."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path

import polars as pl
import pytest
from running_shop import Shop

import headrace as hr
from headrace.operate.cli.main import main


class Keyboard(io.StringIO):
    """A terminal where somebody presses Ctrl-C as soon as a command says this word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._word in text:
            signal.raise_signal(signal.SIGINT)
        return written


def interrupted(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal := Keyboard("waiting"))
        code = main(words)
    return code, terminal.getvalue()


def test_a_wait_says_what_for_and_how_long_and_ctrl_c_ends_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(home)
    try:
        with shop.running():
            code, told = interrupted(monkeypatch, "peek", "shop", "by-article")
            assert (code, told) == (130, "waiting for messages of step 'by-article', for ten seconds at most\n")
            code, told = interrupted(monkeypatch, "startpoint", "set", "shop", "sales", "--oldest", "--apply")
            assert code == 130
            assert told.startswith("waiting until the tasks have applied it, for 30 seconds at most\n")
            assert told.endswith("interrupted; the startpoint stays set, and the tasks go on with it\n")
            code, told = interrupted(monkeypatch, "savepoint", "create", "shop", "before", "--timeout", "20")
            assert code == 130
            assert "tasks to commit version" in told
            assert " seconds at most\n" in told
            code, told = interrupted(monkeypatch, "drain", "shop")
            assert code == 130
            assert "drains; waiting until it has ended, for 5m at most\n" in told
            assert told.endswith("interrupted; shop goes on draining: headrace status shop shows how far it is\n")
        capsys.readouterr()
        assert main(["savepoint", "list", "shop"]) == 0
        assert "no savepoints of shop" in capsys.readouterr().err
    finally:
        shop.close()


def test_a_stream_that_was_not_read_to_its_end_is_not_taken_for_whole(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hr.streams.create_stream("views", 1, {"n": pl.Int64}, home=home)
    with hr.streams.StreamWriter("views", home=home) as writer:
        writer.write(pl.DataFrame({"n": [1, 2]}))

    class Output(io.BytesIO):
        def write(self, data: object) -> int:
            signal.raise_signal(signal.SIGINT)
            return super().write(data)  # type: ignore[arg-type]

    for follow, code, told in ((), 130, "interrupted before the end of log.views\n"), (("--follow",), 0, ""):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", io.TextIOWrapper(output := Output()))
            assert main(["stream", "read", "views", *follow]) == code
            assert output.getvalue() == b'{"n":1}\n{"n":2}\n'
        assert capfd.readouterr().err == told
