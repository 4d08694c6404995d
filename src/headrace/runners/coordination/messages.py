"""What containers, the coordinator and commands say to each other: JSON, camelCase, with a format version.

A conversation: Register -> Assignment; then Heartbeat -> Orders, over and over; GenerationRequest -> TaskGrant
when a task rolls back in place; Finished -> Orders at the end, or Failure -> Orders. Whoever isn't the current
incarnation of its container is refused, and has to stop. Times are milliseconds.
"""

from __future__ import annotations

import traceback
from functools import cache
from typing import Literal, TypeVar

import msgspec

from headrace.core import errors
from headrace.core.errors import Fault, HeadraceError, ProtocolError
from headrace.core.recent_warnings import RecentWarnings

FORMAT = 1
"""Version of all messages together; a newer one is refused, fields that are merely unknown are ignored."""

TaskState = Literal["starting", "restoring", "running", "blocked", "finished"]
ContainerState = Literal["waiting", "running", "lost", "failed", "finished"]
AppState = Literal["starting", "running", "draining", "finished", "failed"]


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of everything that is sent as a whole."""

    version: int = FORMAT


class Nested(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what messages contain."""


# -- errors on the wire ----------------------------------------------------------------------------------


class ErrorReport(Nested, frozen=True, kw_only=True):
    """An error as others may show it: whose fault, whether a retry helps, what to do."""

    type: str
    message: str
    hint: str | None = None
    fault: Fault = "headrace"
    retry: bool = False
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException, *, with_traceback: bool = True) -> ErrorReport:
        """The report of ``error``; what isn't from our tree counts as a fault of ours that a restart may heal."""
        text = "".join(traceback.format_exception(error)) if with_traceback else ""
        name = type(error).__name__
        if isinstance(error, HeadraceError):
            return cls(
                type=name,
                message=error.message,
                hint=error.hint,
                fault=error.fault,
                retry=error.retry,
                traceback=text,
            )
        return cls(type=name, message=str(error) or name, retry=True, traceback=text)

    def as_error(self) -> HeadraceError:
        """The error as the class that it was there, if we know it."""
        kind = getattr(errors, self.type, None)
        if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
            return HeadraceError(f"{self.type}: {self.message}\n{self.traceback}", hint=self.hint)
        return kind(self.message, hint=self.hint)

    @property
    def fatal(self) -> bool:
        """Running the same again would fail the same: the app has to end."""
        return not self.retry and self.fault in {"user", "data"}


class Refusal(Message, frozen=True, kw_only=True):
    """The body of every answer that isn't a 200."""

    error: ErrorReport


# -- from the container ----------------------------------------------------------------------------------


class Register(Message, frozen=True, kw_only=True):
    """A container's process has started. ``incarnation`` is a uuid made anew in each process."""

    container: int
    attempt: int
    host: str
    pid: int
    incarnation: str


class InputStatus(Nested, frozen=True, kw_only=True):
    """One input partition of a task. ``missing`` says in words which producers have not reported."""

    position: int | None = None
    lag: int | None = None
    watermark: int | None = None
    ended: bool = False
    idle: bool = False
    missing: str = ""


class OutputStatus(Nested, frozen=True, kw_only=True):
    """One output of a task. ``waiting`` counts committed versions that the target doesn't have yet."""

    delivery: str
    waiting: int = 0
    waiting_bytes: int = 0
    failures: int = 0
    error: str | None = None


class CheckpointStatus(Nested, frozen=True, kw_only=True):
    """The last commit of a task (its ``version`` may be far above 1: it follows the clock)."""

    version: int
    age_ms: int
    duration_ms: float


class WarningStatus(Nested, frozen=True, kw_only=True):
    """A warning: when it last came (milliseconds since the epoch), and how many times it has."""

    message: str
    at_ms: int
    times: int = 1


def warning_statuses(warnings: RecentWarnings) -> list[WarningStatus]:
    """The latest warnings of a task or a container, the oldest first."""
    return [WarningStatus(message=one.message, at_ms=one.at_ms, times=one.times) for one in warnings.latest()]


class TaskStatus(Nested, frozen=True, kw_only=True):
    """How one task is doing. Counts are since its process started; inputs are keyed by the SSP's text.

    ``waits_for`` is filled when the next version is overdue: by input partition, the upstream tasks that have not
    closed it; ``overdue_ms`` is how long ago the last commit was. ``early_bytes`` wait for their version, as many of
    them on disk as ``early_disk_bytes``. ``side_inputs_percent`` is set while all else waits for the side inputs.
    ``idle``: all its inputs are silent for longer than they may be, so its watermark holds nobody up.
    """

    name: str
    state: TaskState
    generation: int = 0
    watermark: int | None = None
    idle: bool = False
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    lag: int | None = None
    inputs: dict[str, InputStatus] = {}
    outputs: dict[str, OutputStatus] = {}
    counters: dict[str, int] = {}
    checkpoint: CheckpointStatus | None = None
    waits_for: dict[str, list[str]] = {}
    overdue_ms: int = 0
    early_bytes: int = 0
    early_disk_bytes: int = 0
    blocked_by: str | None = None
    uptime_ms: int = 0
    side_inputs_percent: int | None = None
    warnings: list[WarningStatus] = []


class Heartbeat(Message, frozen=True, kw_only=True):
    """A sign of life. ``sent_ms`` is the sender's monotonic clock: heartbeats are ordered by it, rates come from it.

    ``wants_shutdown``: a task of the container asks that the app be drained.
    """

    container: int
    incarnation: str
    sent_ms: float
    tasks: list[TaskStatus] = []
    cpu_ms: int = 0
    rss_bytes: int = 0
    wants_shutdown: bool = False


class GenerationRequest(Message, frozen=True, kw_only=True):
    """A task is going to roll back in place, and needs a new generation for it."""

    container: int
    incarnation: str
    task: str


class Finished(Message, frozen=True, kw_only=True):
    """These tasks are over (ended or drained, all of it committed); nothing of them will run again."""

    container: int
    incarnation: str
    tasks: list[str]


class Failure(Message, frozen=True, kw_only=True):
    """The container is about to die of this."""

    container: int
    incarnation: str
    error: ErrorReport


# -- from the coordinator --------------------------------------------------------------------------------


class TaskGrant(Message, frozen=True, kw_only=True):
    """The right to run a task as this generation."""

    name: str
    generation: int


class Orders(Message, frozen=True, kw_only=True):
    """``drain``: read no new input, finish and commit what is there, end. ``stop``: end at once, commit nothing.

    ``pause_ms`` is for a container that failed: how long it waits before it makes room for its next attempt.
    """

    drain: bool = False
    stop: bool = False
    pause_ms: int = 0


class Assignment(Message, frozen=True, kw_only=True):
    """What a registered container is to run; without tasks it ends at once. ``superseded``: whom it replaces."""

    tasks: list[TaskGrant]
    heartbeat_ms: int
    orders: Orders = Orders()
    superseded: str | None = None


# -- the state of the app --------------------------------------------------------------------------------


class StageStatus(Nested, frozen=True, kw_only=True):
    """A stage: the least watermark of its living tasks; ``lag`` is None when one of them doesn't know its own.

    ``idle`` counts those that are idle: of their watermarks none counts, or, when all are, the foremost.
    """

    name: str
    tasks: int
    finished: int
    watermark: int | None
    idle: int = 0
    rows_per_second: float
    lag: int | None


class ContainerStatus(Nested, frozen=True, kw_only=True):
    """A container. ``last_seen_ms``: how long ago it was heard of."""

    id: int
    state: ContainerState
    host: str | None = None
    pid: int | None = None
    attempt: int | None = None
    last_seen_ms: int | None = None
    tasks: list[str] = []
    cpu_ms: int = 0
    rss_bytes: int = 0
    warnings: list[WarningStatus] = []
    error: ErrorReport | None = None


class QueriesStatus(Nested, frozen=True, kw_only=True):
    """Questions about tables since the start: how many wait now, and what became of the others."""

    waiting: int = 0
    answered: int = 0
    timed_out: int = 0
    refused: int = 0


class HeldUp(Nested, frozen=True, kw_only=True):
    """A task that keeps ``tasks`` from completing their next version, why as far as is known, and for how long."""

    by: str
    reason: str
    for_ms: int
    tasks: list[str]


class AppStatus(Message, frozen=True, kw_only=True):
    """Everything that ``headrace status`` and the dashboard show. Stages come upstream first.

    ``drained``: it was asked to finish what is there and end, so its inputs may go on.
    """

    app: str
    state: AppState
    drained: bool = False
    started_at: int
    guarantee: str
    stages: list[StageStatus]
    tasks: list[TaskStatus]
    containers: list[ContainerStatus]
    held_up: list[HeldUp] = []
    queries: QueriesStatus = QueriesStatus()
    error: ErrorReport | None = None


_M = TypeVar("_M", bound=Message)
_ENCODER = msgspec.json.Encoder()


@cache
def _decoder(kind: type[_M]) -> msgspec.json.Decoder[_M]:
    return msgspec.json.Decoder(kind)


def encode(message: Message) -> bytes:
    """The message as JSON."""
    return _ENCODER.encode(message)


def decode(kind: type[_M], data: bytes) -> _M:
    """The message of that kind in ``data``; raises ``ProtocolError`` when it is none, or of an unknown format."""
    try:
        message: _M = _decoder(kind).decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolError(
            f"this is no {kind.__name__} message: {error}: {data[:200]!r}",
            hint="run the same version of Headrace in the driver, the containers and the commands",
        ) from error
    if message.version != FORMAT:
        raise ProtocolError(
            f"a {kind.__name__} message of format {message.version}; this Headrace knows {FORMAT}",
            hint="run the same version of Headrace in the driver, the containers and the commands",
        )
    return message
