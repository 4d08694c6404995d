"""A peer is a process of its own: it does jobs, tells what has failed, and its results are checked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from bench import data, peer
from bench.measure import WrongResultError
from bench.peer import Peer
from headrace.core.errors import InfrastructureError

PEERS = Path(peer.__file__).parent / "peers"
SCRIPT = '''"""A peer in Python.

It counts by hand.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from jobs import do_jobs


def run(work, source, target):
    if work != "running":
        raise ValueError(f"no {work}")
    seen, rows = {}, []
    for file in sorted(Path(source).glob("*.parquet")):
        for one in pq.read_table(file).to_pylist():
            if one["url"] != "/health":
                seen[one["member"]] = n = seen.get(one["member"], 0) + 1
                rows.append({"member": one["member"], "n": n})
    Path(target, "rows").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), Path(target, "rows", "0.parquet"))


do_jobs("Peer 1", run)
'''


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    """A peer whose script is the one above, in this environment."""
    (tmp_path / "peers" / "python" / "bin").mkdir(parents=True)
    program = tmp_path / "peers" / "python" / "bin" / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={PEERS} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    (tmp_path / "by_hand.py").write_text(SCRIPT)
    monkeypatch.setattr(peer, "INSTALLED", tmp_path / "peers")
    monkeypatch.setattr(peer, "HERE", tmp_path)
    one = Peer("python", "by_hand.py", lacks={"join": "it joins nothing"}, running=4)
    yield one
    one.close()


def test_a_peer_does_jobs_with_its_share_of_the_messages(python: Peer, tmp_path: Path) -> None:
    views = data.page_views(tmp_path / "views", 2000, 10, 2)
    running = python.running(views, 2000)
    assert running.messages == 500
    for turn in ("one", "two"):  # one process does both
        (out := tmp_path / turn).mkdir()
        running.work(out)
        running.check(out)
    assert python.settings == "Peer 1. It counts by hand."
    rows = tmp_path / "two" / "rows" / "0.parquet"
    pl.read_parquet(rows).with_columns(pl.col("n") + 1).write_parquet(rows)
    with pytest.raises(WrongResultError):
        running.check(tmp_path / "two")


def test_a_peer_that_can_not_do_a_job_says_so(python: Peer, tmp_path: Path) -> None:
    both = data.views_and_orders(tmp_path / "both", 2000, 10, 2)
    with pytest.raises(InfrastructureError, match="it joins nothing"):
        python.join(both, 2000).work(tmp_path)
    assert not python.settings  # it wasn't started for this


def test_a_peer_tells_what_has_failed(python: Peer, tmp_path: Path) -> None:
    views = data.page_views(tmp_path / "views", 2000, 10, 2)
    with pytest.raises(InfrastructureError, match="no filter"):
        python.filter(views, 2000).work(tmp_path)
    running = python.running(views, 2000)
    running.work(tmp_path)  # its process has not ended
    running.check(tmp_path)
