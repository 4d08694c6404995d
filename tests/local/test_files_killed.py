"""Killed while it reads files, an app goes on in the same row; whatever comes meanwhile is read once."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
from killed import Killed

ROWS = 40_000


def put(folder: Path, number: int) -> None:
    first = number * ROWS
    frame = pl.select(n=pl.int_range(first, first + ROWS), ts=pl.int_range(first, first + ROWS))
    draft = folder / ".draft"
    match number % 3:
        case 0:
            frame.write_csv(draft)
            draft.rename(folder / f"{number}.csv")
        case 1:
            draft.write_bytes(gzip.compress(frame.write_csv().encode()))
            draft.rename(folder / f"{number}.csv.gz")
        case _:
            frame.write_csv(draft)
            draft.rename(folder / f"0{number}.csv")  # sorts before those that were read


def copies(home: Path) -> list[int]:
    return sorted(n for path in (home / "copies").glob("*.jsonl") for n in pl.read_ndjson(path)["n"].to_list())


def test_each_row_of_each_file_counts_once(tmp_path: Path) -> None:
    program = Killed("files_program.py", tmp_path)
    inbox, made = tmp_path / "in", 0
    inbox.mkdir()

    def feed() -> None:
        nonlocal made
        for _ in range(3):
            put(inbox, made)
            made += 1

    feed()
    for later_s in (0.0, 0.01, 0.03):
        before = len(copies(tmp_path))
        program.kill_when(lambda before=before: len(copies(tmp_path)) > before, feed, later_s)
    program.end()
    assert copies(tmp_path) == list(range(made * ROWS))
    for name in ("x", "y"):  # one for each partition: now all windows close
        pl.DataFrame({"n": [0], "ts": [36_000_000]}).write_csv(inbox / f"{name}.csv")
    program.end()
    windows = pl.concat(pl.read_ndjson(path) for path in (tmp_path / "counts").glob("*.jsonl"))
    assert windows.select("digit", "window_start").is_unique().all()
    assert (windows["n"].sum(), windows["total"].sum()) == (made * ROWS, sum(range(made * ROWS)))
