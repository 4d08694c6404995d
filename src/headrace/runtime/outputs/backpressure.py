"""How far a stage is ahead of its readers, and when that is too far.

Readers publish their positions through the system (``Admin.report_position``), so this works across containers and
across deployments. A stage is blocked while any partition of an intermediate stream that it writes has
more than the allowed distance unread. A stream without a reader counts as read up to its oldest offset.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.plan.model import StreamPlan
from headrace.runtime.connections import Connections
from headrace.runtime.timing import Every

CHECK_MS = 10
CHECK_MS_A_PARTITION = 0.05
"""A look at thousands of partitions takes milliseconds, so it is taken more rarely."""


class Backpressure:
    """Watches the intermediate streams that one stage writes, for all its tasks in a container."""

    def __init__(
        self, app: str, limit: int, streams: Sequence[StreamPlan], connections: Connections, now_ms: float
    ) -> None:
        """``streams`` are those that the stage writes; ``limit`` is how many bytes of a partition may be unread."""
        self._limit = limit
        self._group = app
        self._streams = streams
        self._connections = connections
        interval = max(CHECK_MS, CHECK_MS_A_PARTITION * sum(stream.partitions for stream in streams))
        self._every = Every(interval, now_ms - interval)
        self.blocked_by: str | None = None

    def check(self, now_ms: float) -> bool:
        """Whether the stage has to wait; looks at most every ``CHECK_MS``, or longer for many partitions."""
        if self._streams and self._every.due(now_ms):
            self.blocked_by = self._look()
        return self.blocked_by is not None

    def _look(self) -> str | None:
        for stream in self._streams:
            admin = self._connections.admin(stream.spec.system)
            name = stream.spec.stream.name
            for partition, ahead in enumerate(admin.unread(name, self._group)):
                if ahead > self._limit:
                    return f"{stream.spec.stream}[{partition}] is {ahead} bytes ahead of its reader"
        return None
