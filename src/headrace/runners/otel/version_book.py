"""Which tasks have committed which version, from their heartbeats: a trace for each version. Bounded, and pure.

A version is over when nothing new of it was heard for a while: not all tasks commit all versions, and parts of a commit
come after it. Heartbeats repeat the latest commits of a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.runners.coordination.messages import CommitParts, TaskStatus

QUIET_MS = 2500.0
"""Containers report at least twice a second, and idle tasks need no report."""

ROOM = 20_000
"""How many commits of tasks wait at most, whichever versions they are of."""

MOST_TAKEN = 500
"""About so many commits are taken at once."""


@dataclass(frozen=True, slots=True)
class VersionTrace:
    """One version: its commits by task."""

    version: int
    commits: Mapping[str, CommitParts]


@dataclass(slots=True)
class _Open:
    commits: dict[str, CommitParts] = field(default_factory=dict)
    news_ms: float = 0.0


class VersionBook:
    """Versions that aren't sent yet. ``dropped`` is the number of those that found no room."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._open: dict[int, _Open] = {}
        self._held = 0
        self._over: dict[str, int] = {}
        """The latest version of each task that was taken or dropped. Repeated reports of it are ignored."""
        self.dropped = 0

    def hear(self, tasks: Iterable[TaskStatus], now_ms: float) -> None:
        """Take in what a heartbeat says of its tasks."""
        for task in tasks:
            for commit in task.commits:
                if commit.version > self._over.get(task.name, -1):
                    self._note(task.name, commit, now_ms)
        while self._held > self._room:
            self._remove(min(self._open))
            self.dropped += 1

    def take(self, now_ms: float, *, rest: bool = False) -> list[VersionTrace]:
        """Remove and return some versions that are over, the oldest first; with ``rest`` also those that may not be."""
        taken: list[VersionTrace] = []
        number = 0
        for version in sorted(self._open):
            if number >= MOST_TAKEN:
                break
            if rest or now_ms - self._open[version].news_ms >= QUIET_MS:
                taken.append(VersionTrace(version, self._remove(version)))
                number += len(taken[-1].commits)
        return taken

    def _note(self, task: str, commit: CommitParts, now_ms: float) -> None:
        found = self._open.setdefault(commit.version, _Open())
        before = found.commits.get(task)
        if before is not None and before.parts.keys() == commit.parts.keys():
            return
        self._held += before is None
        found.commits[task] = commit
        found.news_ms = now_ms

    def _remove(self, version: int) -> Mapping[str, CommitParts]:
        commits = self._open.pop(version).commits
        self._held -= len(commits)
        for task in commits:
            self._over[task] = max(version, self._over.get(task, -1))
        return commits
