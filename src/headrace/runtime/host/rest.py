"""When the tasks of an app that has nothing to do stop committing.

A commit may come late at any time, as that of a process that stands still does. So it is always safe to leave one out,
and the question is only who waits for it: readers wait for what was sent, targets for what is in an outbox, downstream
tasks for the version of a task that has nothing to say when another one has, the coordinator for a cut. So the tasks
rest together, or not at all: only if all tasks of the app are in one container, none reads from a system that has to be
polled (``RunLoop`` sees to both), nothing has happened in any of them since its last commit, and all have committed the
highest version that says anything. Polled systems wait for commits, too: dealers go by them, and Kafka shows people
each one when the next comes.

``Doings`` is what one task knows of that; ``Rest`` is shared by all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.checkpoint.protocol import Phase

if TYPE_CHECKING:
    from headrace.runtime.chain import Chain
    from headrace.runtime.host.task_host import TaskHost

REST_MS = 10_000.0
"""A task that rests is visited so often: the clock on the wall may have jumped."""


class Rest:
    """Whether all tasks of a container rest."""

    def __init__(self) -> None:
        self.on = False


class Doings:
    """What one task has done since its last commit."""

    def __init__(self) -> None:
        self.said = -1
        """The highest version of a commit that said anything new."""
        self._stirred = True
        self._rows = (0, 0)
        self._sealed = (0, 0)
        self._generation = -1
        self._news = False

    def stir(self) -> None:
        """Something has happened that a commit has to say, or may have to."""
        self._stirred = True

    def by_clock(self, chain: Chain, clock_ms: int) -> None:
        """Operators are about to do what is due by the clock."""
        due_ms = chain.due_ms()
        if due_ms is not None and due_ms <= clock_ms:
            self.stir()

    def sealed(self, host: TaskHost) -> None:
        """What has happened is in the commit record that is being written."""
        self._news = self.has_news(host)
        self._stirred, self._sealed = False, _rows(host)

    def committed(self, host: TaskHost) -> None:
        """The commit counts."""
        if self._news:
            self.said = host.machine.version
        self._rows, self._generation = self._sealed, host.generation

    def has_news(self, host: TaskHost) -> bool:
        """A commit would say something. The first one of each generation does: others wait for it."""
        started = self._generation != host.generation
        return self._stirred or started or self._rows != _rows(host) or host.publishing.doubtful


def _rows(host: TaskHost) -> tuple[int, int]:
    return host.metrics.rows_in, host.metrics.rows_out


def _ordered(host: TaskHost) -> bool:
    """It was told to do something that a commit is part of."""
    return host.keeper.state is not None or host.restart_at is not None or host.catching_up.silent


def settled(host: TaskHost) -> bool:
    """Nothing has happened since the task's last commit, nothing is under way, and nothing was ordered."""
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
        and not host.receiver.buffer.memory_bytes
        and not host.receiver.buffer.disk_bytes
        and host.publishing.idle
    )


def can_rest(hosts: Collection[TaskHost]) -> bool:
    """Each is settled, and has committed what any of them has said. With at-least-once some wait for later commits."""
    open_ = [host for host in hosts if not host.finished]
    if not all(host.machine.config.exactly_once and settled(host) for host in open_):
        return False
    said = max((host.doings.said for host in hosts), default=-1)
    return all(host.machine.version >= said for host in open_)
