"""Decide when the tasks of an idle app stop committing.

Leaving out a commit is always safe, because any commit may be late, for example in a frozen process. The question is
only who waits for it: readers wait for sent frames, targets for the outbox, downstream tasks for the version of an idle
task when another task has something new, and the coordinator for a cut. So tasks rest together or not at all. They rest
only if all tasks of the app are in one container, none reads from a system that must be polled (``RunLoop`` checks
both), nothing has happened in any task since its last commit, and all have committed the highest version with news.
Polled systems need commits, too: dealers rely on them, and Kafka's tools show a commit only when the next one follows.

``Doings`` tracks one task; all tasks share one ``Rest``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.checkpoint.protocol import Phase

if TYPE_CHECKING:
    from headrace.runtime.chain import Chain
    from headrace.runtime.host.task_host import TaskHost

REST_MS = 60_000.0
"""How often a resting task is visited, though nothing is due: the run loop notices when the wall clock jumps."""


class Rest:
    """Whether all tasks of a container rest."""

    def __init__(self) -> None:
        self.on = False


class Doings:
    """The activity of one task since its last commit."""

    def __init__(self) -> None:
        self.said = -1
        """The highest version of a commit that said anything new."""
        self._stirred = True
        self._rows = (0, 0)
        self._sealed = (0, 0)
        self._generation = -1
        self._news = False

    def stir(self) -> None:
        """Note that something has happened which a commit must or may have to record."""
        self._stirred = True

    def by_clock(self, chain: Chain, clock_ms: int) -> None:
        """Note that operators are about to do work that is due by the clock."""
        due_ms = chain.due_ms()
        if due_ms is not None and due_ms <= clock_ms:
            self.stir()

    def sealed(self, host: TaskHost) -> None:
        """Note that a commit record with everything so far is being written."""
        self._news = self.has_news(host)
        self._stirred, self._sealed = False, _rows(host)

    def committed(self, host: TaskHost) -> None:
        """Note that the commit counts."""
        if self._news:
            self.said = host.machine.version
        self._rows, self._generation = self._sealed, host.generation

    def has_news(self, host: TaskHost) -> bool:
        """Whether a commit would record news. The first one of each generation does, because others wait for it."""
        started = self._generation != host.generation
        return self._stirred or started or self._rows != _rows(host) or host.publishing.doubtful


def _rows(host: TaskHost) -> tuple[int, int]:
    return host.metrics.rows_in, host.metrics.rows_out


def _ordered(host: TaskHost) -> bool:
    """Whether the task has an order whose execution includes a commit."""
    return host.keeper.state is not None or host.restart_at is not None or host.catching_up.silent


def settled(host: TaskHost) -> bool:
    """Whether nothing has happened since the task's last commit, nothing is in progress, and nothing was ordered."""
    if host.finished:
        return True
    return (
        host.machine.phase is Phase.RUNNING
        and not host.doings.has_news(host)
        and not _ordered(host)
        and not host.owes
        and not host.attempt.settling
        and not host.task.chain.holding
        and not host.attempt.chooser
        and not host.inputs.hungry
        and host.receiver.buffer.empty
        and host.publishing.idle
    )


def can_rest(hosts: Collection[TaskHost]) -> bool:
    """Return whether all are settled at the highest version with news; never with at-least-once, which needs more."""
    open_ = [host for host in hosts if not host.finished]
    if not all(host.machine.config.exactly_once and settled(host) for host in open_):
        return False
    said = max((host.doings.said for host in hosts), default=-1)
    return all(host.machine.version >= said for host in open_)
