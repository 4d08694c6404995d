"""Peers that do the same work over the same files, each in a process and an environment of its own.

The process starts before anything is timed, and does one job after the other, so what it has loaded and compiled is
warm, as in Spark's session. What it writes is compared with what Polars makes of the files it has read. A peer that
would take minutes reads the first part of each file. ``make bench-peers`` installs what can be installed.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType

import polars as pl

from bench.data import check_rows, first_views, joined, kept_views, running_counts, sessions, windowed_counts
from bench.measure import WrongResultError
from bench.structured import written
from bench.turns import Contestant
from headrace.core.errors import InfrastructureError

HERE = Path(__file__).parent / "peers"
INSTALLED = Path(sys.prefix) / "peers"
SAYS = "bench: "
"""How the lines of a peer begin that are meant for this process; libraries print others."""


class Peer:
    """One peer. ``lacks`` says why it can't do a job, ``shares`` how many times fewer messages it gets for one."""

    def __init__(
        self,
        name: str,
        script: str,
        arguments: tuple[str, ...] = (),
        lacks: Mapping[str, str] = MappingProxyType({}),
        **shares: int,
    ) -> None:
        self.name = name
        self.version = ""
        self._command = [str(INSTALLED / name / "bin" / "python"), "-u", str(HERE / script), *arguments]
        self._lacks = lacks
        self._shares = shares
        self._process: subprocess.Popen[str] | None = None

    @property
    def settings(self) -> str:
        """Its version and settings, as its script explains them; empty if it hasn't run."""
        text = ast.get_docstring(ast.parse(Path(self._command[2]).read_text(encoding="utf-8"))) or ""
        explained = " ".join(text.partition("\n\n")[2].split())
        return f"{self.version}. {explained}" if self.version else ""

    def filter(self, views: Path, messages: int) -> Contestant:
        """Take part in (a)."""
        return self._contestant("filter", views, messages, kept_views, self._check_kept)

    def count(self, views: Path, messages: int) -> Contestant:
        """Take part in (b)."""
        return self._contestant("count", views, messages, windowed_counts, self._check_rows("(b)"))

    def running(self, views: Path, messages: int) -> Contestant:
        """Take part in the running count."""
        return self._contestant("running", views, messages, running_counts, self._check_rows("the running count"))

    def sessions(self, views: Path, messages: int) -> Contestant:
        """Take part in the sessions."""
        return self._contestant("sessions", views, messages, sessions, self._check_sessions)

    def join(self, both: Path, messages: int) -> Contestant:
        """Take part in the join."""
        return self._contestant("join", both, messages, joined, self._check_rows("the join"))

    def close(self) -> None:
        """End its process, and those that it has started."""
        if self._process is not None:
            with self._process as process:
                os.killpg(process.pid, signal.SIGKILL)
            self._process = None

    def _contestant(
        self,
        work: str,
        views: Path,
        messages: int,
        answer: Callable[[Path], pl.DataFrame],
        check: Callable[[pl.DataFrame, pl.DataFrame], None],
    ) -> Contestant:
        share = self._shares.get(work, 1)
        source = first_views(views, views.with_name(f"{views.name}-by-{share}"), share)
        right = pl.DataFrame() if work in self._lacks else answer(source)
        return Contestant(
            self.name,
            partial(self._run, work, source),
            lambda out: check(pl.read_parquet(written(out)), right),
            messages // share,
        )

    def _run(self, work: str, source: Path, out: Path) -> None:
        if why := self._lacks.get(work):
            raise InfrastructureError(why)
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(f"{work} {source} {out}\n")
        process.stdin.flush()
        if (said := self._heard(process)) != "done":
            raise InfrastructureError(f"{work}: {said}")

    def _start(self) -> subprocess.Popen[str]:
        if not Path(self._command[0]).is_file():
            raise InfrastructureError("not installed: run `make bench-peers`")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self.version = self._heard(self._process).removeprefix("ready ")
        return self._process

    def _heard(self, process: subprocess.Popen[str]) -> str:
        for line in process.stdout or ():
            if line.startswith(SAYS):
                return line.removeprefix(SAYS).strip()
        raise InfrastructureError(f"its process has ended with {process.wait()}")

    def _check_kept(self, found: pl.DataFrame, right: pl.DataFrame) -> None:
        sums = found.select(pl.len().alias("rows"), pl.col("member").str.len_bytes().sum(), pl.col("s").sum())
        if not sums.equals(right):
            raise WrongResultError(f"(a) by {self.name}: {sums.rows()}, not {right.rows()}")

    def _check_rows(self, what: str) -> Callable[[pl.DataFrame, pl.DataFrame], None]:
        return partial(check_rows, f"{what} by {self.name}")

    def _check_sessions(self, found: pl.DataFrame, right: pl.DataFrame) -> None:
        bounds = pl.col("start", "end").cast(pl.Datetime("ms"))  # Flink writes timestamps of nanoseconds
        check_rows(f"sessions by {self.name}", found.with_columns(bounds), right)


@contextmanager
def peers() -> Iterator[tuple[Peer, ...]]:
    """Give all peers, and end their processes."""
    jars = str(INSTALLED / "flink" / "jars")
    all_ = (
        Peer("bytewax", "on_bytewax.py", lacks={"join": "it has no interval join"}, count=5, running=4, sessions=10),
        Peer("flink", "on_flink.py", (jars,), running=10),
    )
    with ExitStack() as stack:
        for one in all_:
            stack.callback(one.close)
        yield all_
