"""What ``headrace stream verify`` finds, and what ``repair`` does about it."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

import headrace as hr
from conftest import Cli


def make(home: Path, stream: str = "numbers") -> Path:
    hr.streams.create_stream(stream, 2, {"n": pl.Int64}, home=home)
    with hr.streams.StreamWriter(stream, key="n", home=home) as writer:
        for start in range(0, 300, 100):
            writer.write(pl.select(n=pl.int_range(start, start + 100)))
    return home / "streams" / stream / "p00000.log"


def damage(file: Path, data: bytes = b"damage") -> None:
    with file.open("r+b") as opened:
        opened.seek(40)
        opened.write(data)


def test_sound_streams_are_said_to_be_sound(cli: Cli, home: Path) -> None:
    make(home)
    make(home, "others")
    found = cli("stream", "verify", "--json")
    assert found.code == 0
    assert [(one["stream"], one["damaged"]) for one in found.json()] == [("numbers", False), ("others", False)]
    assert all(partition["records"] > 0 for one in found.json() for partition in one["partitions"])
    assert "numbers           2        6  no" in cli("stream", "verify", "numbers").out
    assert cli("stream", "repair", "numbers").out == "log.numbers isn't damaged\n"


def test_damage_is_shown_with_its_place_and_fails_the_command(cli: Cli, home: Path) -> None:
    damage(make(home))
    found = cli("stream", "verify")
    assert found.code == 1
    assert "partition 0, bytes 32 to " in found.out
    assert "headrace stream repair NAME" in found.out


def test_a_repair_must_be_confirmed(cli: Cli, home: Path) -> None:
    file = make(home)
    damage(file)
    before = file.read_bytes()
    asked = cli("stream", "repair", "numbers")
    assert asked.code == 2
    assert "would make readers skip" in asked.err
    assert "--yes" in asked.err
    assert file.read_bytes() == before


def test_after_a_repair_everything_else_can_be_read_and_what_was_there_is_kept(cli: Cli, home: Path) -> None:
    whole = make(home)
    rows = {json.loads(line)["n"] for line in cli("stream", "read", "numbers").out.splitlines()}
    damage(whole)
    assert cli("stream", "read", "numbers").code == 1
    done = cli("stream", "repair", "numbers", "--yes")
    assert done.code == 0
    (copy,) = whole.parent.glob("p00000.damaged-*")
    assert b"damage" in copy.read_bytes()
    assert str(copy) in done.out
    left = {json.loads(line)["n"] for line in cli("stream", "read", "numbers").out.splitlines()}
    assert left < rows
    assert len(left) > len(rows) / 2
    assert cli("stream", "verify", "numbers").code == 0


def test_a_damaged_seal_is_written_again(cli: Cli, home: Path) -> None:
    file = make(home)
    assert cli("stream", "seal", "numbers").code == 0
    seal = file.parent / "seal.json"
    before = seal.read_text()
    seal.write_text(before.replace("[", "[ 4711, "))
    assert "3 ends for 2 partitions" in cli("stream", "verify", "numbers").out
    assert cli("stream", "repair", "numbers", "--yes").code == 0
    assert seal.read_text() == before


def test_a_home_without_streams_has_nothing_to_verify(cli: Cli, home: Path) -> None:
    found = cli("stream", "verify")
    assert (found.code, found.out) == (0, "")
    assert "has no streams" in found.err


def test_a_stream_that_is_not_there_is_named(cli: Cli, home: Path) -> None:
    make(home)
    asked = cli("stream", "verify", "number")
    assert asked.code == 1
    assert "did you mean numbers?" in asked.err
