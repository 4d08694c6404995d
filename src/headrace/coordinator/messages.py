"""The messages between containers, the coordinator and commands: JSON in camelCase, with a format number.

A container sends Register and gets an Assignment; then it sends Heartbeats and gets Orders. To roll a task back, it
sends GenerationRequest and gets a TaskGrant. At the end it sends Finished or Failure. Times are in milliseconds.

For a query of tables, a client gets the ``TableList``, sends ``Ask`` and blocks for ``Answers``. A container sends
``Listening`` and blocks until there is a ``Question``; its next ``Listening`` carries the answer, so it needs no port.
Keys and bounds are bytes (``stores.encoding``), rows are Arrow; in JSON both are base64.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec

from headrace.core import errors
from headrace.core.errors import Fault, HeadraceError, ProtocolError
from headrace.core.files import UNREADABLE
from headrace.core.log import RecentWarning
from headrace.life.startpoints import StartpointState
from headrace.protocol.record import Cut
from headrace.systems.slot_reports import SlotReport
from headrace.systems.startpoints import Order, Outcome, Startpoint
from headrace.task.standby_status import StandbyStatus


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An error to show or raise elsewhere: what went wrong, whose fault it is, whether a retry helps, what to do."""

    type: str
    message: str
    hint: str | None = None
    fault: Fault = "headrace"
    retry: bool = False
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException, *, with_traceback: bool = True) -> ErrorReport:
        """Return the report of ``error``. Foreign errors count as Headrace's, and a restart may cure them."""
        text = "".join(traceback.format_exception(error)) if with_traceback else ""
        name = type(error).__name__
        if isinstance(error, HeadraceError):
            return cls(
                type=name, message=error.message, hint=error.hint, fault=error.fault, retry=error.retry, traceback=text
            )
        return cls(type=name, message=str(error) or name, retry=True, traceback=text)

    def as_error(self) -> HeadraceError:
        kind = getattr(errors, self.type, None)
        if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
            return HeadraceError(f"{self.type}: {self.message}\n{self.traceback}", hint=self.hint)
        return kind(self.message, hint=self.hint)

    @property
    def fatal(self) -> bool:
        return not self.retry and self.fault in {"user", "data"}


class QueriesStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Numbers of queries of tables since the start."""

    waiting: int = 0
    answered: int = 0
    timed_out: int = 0
    refused: int = 0


class PagesStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of live pages that watch the app now, and of those refused since the start because of the limit."""

    watching: int = 0
    refused: int = 0


class ExportStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Transmissions to OpenTelemetry's collector since the start. ``dropped`` traces found no room or weren't sent."""

    metrics_sent: int = 0
    metrics_failed: int = 0
    traces_sent: int = 0
    traces_failed: int = 0
    traces_dropped: int = 0


FORMAT = 1
"""The version of all messages together. Another one is refused; unknown fields are ignored."""
RESTARTS_KEPT = 100
TaskState = Literal["starting", "restoring", "running", "blocked", "finished"]
ContainerState = Literal["waiting", "running", "lost", "hung", "failed", "finished"]
What = Literal[
    "user code",
    "run loop",
    "restore",
    "side inputs",
    "readers",
    "target",
    "calls",
    "checkpoint",
    "watermark",
    "late",
    "data",
]
"""What may hold a task up. ``REASONS`` has the words for each."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How status, pages and checks report one kind of holdup.

    ``waiting`` comes before the place. ``alone`` is the sentence about a task with no other cause, ``other`` what such
    a task waits for of another one. ``passes``: it passes by itself. ``whole``: it holds up the whole container.
    """

    waiting: str
    alone: str
    other: str = ""
    remedy: str = ""
    passes: bool = False
    whole: bool = False


REASONS: Mapping[What, Wording] = {
    "user code": Wording("waiting for the end of", "{where} is running", "the run loop of", whole=True),
    "run loop": Wording("waiting for the end of", "{task} waits for the end of {where}", whole=True),
    "restore": Wording("not ready:", "{task} isn't ready: {where}", remedy="wait: it continues by itself", passes=True),
    "side inputs": Wording(
        "reading its side inputs:",
        "{task} reads its side inputs first: {where}",
        remedy="wait: it continues by itself",
        passes=True,
    ),
    "readers": Wording(
        "waiting for readers:",
        "{where}, and no task of this deployment reads it",
        "its reader",
        remedy="start the stage that reads it, or find out what holds that stage up",
    ),
    "target": Wording(
        "waiting for its target:",
        "{task} can't write to its target: {where}",
        remedy="make the target reachable again; committed rows are then published",
    ),
    "calls": Wording(
        "waiting for calls:",
        "{task} waits for calls of {where}",
        remedy="look at the service that is called; the step's concurrency and timeout may be too low",
    ),
    "checkpoint": Wording("waiting for a checkpoint of", "{where} isn't complete", "the commit of"),
    "watermark": Wording("waiting for a watermark of", "{task} waits for {where}", "the watermark of"),
    "late": Wording(
        "event time stands still:",
        "the event time of {task} stands still: {where}",
        remedy="check their event times: after a message whose time is too far ahead, all others are late",
    ),
    "data": Wording(
        "waiting for messages of",
        "{task} waits for messages of {where}",
        "messages from",
        remedy="wait: it continues when messages arrive, or when the input ends; if others wait for this input "
        "meanwhile, give it an idle_timeout",
        passes=True,
    ),
}

AppState = Literal["starting", "running", "draining", "finished", "stopped", "failed", "gone", "unreachable"]

OVER = frozenset({"finished", "stopped", "failed"})


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of messages."""

    version: int = FORMAT


class Nested(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of parts of messages."""


class _Sent(Message, frozen=True, kw_only=True):
    container: int
    incarnation: str


class Refusal(Message, frozen=True, kw_only=True):
    """The body of every response whose status isn't 200."""

    error: ErrorReport


# -- from the container ----------------------------------------------------------------------------------
class LastWords(Nested, frozen=True, kw_only=True):
    """What a dead container has left behind: the call of the app's own code that it was in, and how it ended."""

    task: str = ""
    step: str = ""
    place: str = ""
    how: str = ""
    by_itself: bool = False


class Register(Message, frozen=True, kw_only=True):
    """A container's process has started. ``left``: what other incarnations of it have left behind on this machine."""

    container: int
    attempt: int
    host: str
    pid: int
    incarnation: str
    left: dict[str, LastWords] = {}


class InputStatus(Nested, frozen=True, kw_only=True):
    """One input partition of a task. ``holds``: the task's watermark is that of this partition, the first such one."""

    position: int | None = None
    lag: int | None = None
    watermark: int | None = None
    ended: bool = False
    idle: bool = False
    holds: bool = False
    held_by: str = ""


class Holdup(Nested, frozen=True, kw_only=True):
    """What a task waits for, where, since when (milliseconds since the epoch), and what helps. The cause is in ``by``.

    ``still_ms``: how long a function has been called for one message, or the turn of a run loop has taken.
    """

    what: What
    where: str
    since_ms: int
    remedy: str
    by: list[str] = []
    still_ms: int = 0

    @property
    def words(self) -> Wording:
        return REASONS[self.what]


class OutputStatus(Nested, frozen=True, kw_only=True):
    """One output of a task. ``waiting`` is the number of committed versions that the target doesn't have yet."""

    delivery: str
    waiting: int = 0
    waiting_bytes: int = 0
    failures: int = 0
    error: str | None = None


class CheckpointStatus(Nested, frozen=True, kw_only=True):
    """The last commit of a task. Versions follow the clock, so they don't count from 1."""

    version: int
    age_ms: int
    duration_ms: float


class CommitParts(Nested, frozen=True, kw_only=True):
    """A commit of a task: when it began (ms since the epoch), and how much later each part began and ended."""

    version: int
    began_ms: float
    parts: dict[str, tuple[float, float]]


class SlotDirections(Nested, frozen=True, kw_only=True):
    """The shards for the slots of one generation of a task, by SSP as text. Later orders have a higher ``number``."""

    generation: int
    number: int
    slots: dict[str, dict[str, str]]


class CutStatus(Nested, frozen=True, kw_only=True):
    """What has happened to a cut in a task: see ``CutBook`` in ``books``."""

    id: str
    state: Literal["waiting", "kept", "missed", "apart"]


class Series(Nested, frozen=True, kw_only=True):
    """The value of a metric for some labels; of a histogram, ``buckets`` and their sum. ``bounds``: of a user's own."""

    name: str
    kind: Literal["counter", "gauge", "histogram"] = "counter"
    labels: dict[str, str] = {}
    value: float = 0.0
    buckets: list[int] = []
    bounds: list[float] = []
    help: str = ""


class TaskStatus(Nested, frozen=True, kw_only=True):
    """The status of a task. Counts start with its process; the keys of ``inputs`` are SSPs as text.

    ``waits_for`` is set when the next version is overdue, by ``overdue_ms`` since the last commit: by input partition,
    the upstream tasks that have not closed it. ``early_bytes`` wait for their version, ``early_stream_bytes`` of them
    in their streams. ``side_inputs_percent`` is set while side inputs are read. ``idle``: the task's watermark holds no
    other task back. ``caught_up`` is the version of a commit at which the task had read what was there when it started.
    ``slots`` are its inputs that are slots.
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
    early_stream_bytes: int = 0
    blocked_by: str | None = None
    holdups: list[Holdup] = []
    uptime_ms: int = 0
    side_inputs_percent: int | None = None
    caught_up: int | None = None
    cut: CutStatus | None = None
    slots: dict[str, SlotReport] = {}
    warnings: list[RecentWarning] = []
    commits: list[CommitParts] = []
    series: list[Series] = []


class LogLine(Nested, frozen=True, kw_only=True):
    """A log record of a container, at milliseconds since the epoch. ``number`` rises; a line may come twice."""

    number: int
    at_ms: int
    level: int
    logger: str
    message: str
    fields: dict[str, str] = {}


class Heartbeat(_Sent, frozen=True, kw_only=True):
    """A sign of life and the status of the container's tasks. ``wants_shutdown``: a task asks to drain the app.

    ``sent_ms`` is the sender's monotonic clock. ``logs`` are lines for the driver's log, without ``logs_dropped``.
    """

    sent_ms: float
    tasks: list[TaskStatus] = []
    cpu_ms: int = 0
    rss_bytes: int = 0
    wants_shutdown: bool = False
    logs: list[LogLine] = []
    logs_dropped: int = 0
    standbys: list[StandbyStatus] = []


class GenerationRequest(_Sent, frozen=True, kw_only=True):
    """A task is about to roll back, for which it needs a new generation."""

    task: str


class Finished(_Sent, frozen=True, kw_only=True):
    """These tasks have ended or were drained, with everything committed; they won't run again."""

    tasks: list[str]


class Failure(_Sent, frozen=True, kw_only=True):
    """The error that the container is about to die of."""

    error: ErrorReport


# -- from the coordinator --------------------------------------------------------------------------------
class TaskGrant(Message, frozen=True, kw_only=True):
    """The right to run a task as this generation, and the startpoints that it has to apply; see ``Grant``."""

    name: str
    generation: int
    orders: tuple[Order, ...] = ()
    silent: bool = False


class Orders(Message, frozen=True, kw_only=True):
    """``drain``: finish and commit what was read, and end. ``stop``: end at once, without a commit.

    ``pause_ms`` is how long a container waits before it starts its tasks, or, if it has failed, before it ends.
    ``restart``: these tasks start over in place after their next commit, unless their generation is a later one.
    ``slots`` are the dealers' orders, by task. Of the tasks in ``keep``, the container keeps standbys.
    """

    drain: bool = False
    stop: bool = False
    pause_ms: int = 0
    restart: dict[str, int] = {}
    cut: Cut | None = None
    slots: dict[str, SlotDirections] = {}
    keep: list[str] = []


class Assignment(Message, frozen=True, kw_only=True):
    """The tasks of a registered container; without any, it ends. ``superseded`` is the incarnation it replaces."""

    tasks: list[TaskGrant]
    heartbeat_ms: int
    traced: bool = False
    """Its heartbeats say what its tasks have committed."""
    orders: Orders = Orders()
    superseded: str | None = None


# -- the state of the app --------------------------------------------------------------------------------
class StageStatus(Nested, frozen=True, kw_only=True):
    """A stage. ``watermark`` is the lowest of its unfinished tasks that aren't idle; if all are idle, the highest."""

    name: str
    tasks: int
    finished: int
    watermark: int | None
    idle: int = 0
    rows_per_second: float
    lag: int | None


class ContainerStatus(Nested, frozen=True, kw_only=True):
    """A container. ``last_seen_ms`` is the time since its last message. ``warnings`` outlive its attempts.

    ``restarts`` doesn't count its first process. ``failures`` counts attempts that have failed in a row, and ``error``
    is what the last one died of, until a task commits again. ``lacks`` says why there is no slot for it.
    """

    id: int
    state: ContainerState
    host: str | None = None
    pid: int | None = None
    attempt: int | None = None
    last_seen_ms: int | None = None
    tasks: list[str] = []
    cpu_ms: int = 0
    rss_bytes: int = 0
    warnings: list[RecentWarning] = []
    failures: int = 0
    restarts: int = 0
    restarted_ago_ms: list[int] = []
    error: ErrorReport | None = None
    lacks: str = ""
    standbys: list[StandbyStatus] = []

    @property
    def away(self) -> str:
        if self.lacks:
            return f"waits for a slot: {self.lacks}"
        return f"is {self.state}" if self.state in ("lost", "hung", "failed") else ""


class HeldUp(Nested, frozen=True, kw_only=True):
    """A task that keeps ``tasks`` from completing their next version; for how long, and why if that is known."""

    by: str
    reason: str
    for_ms: int
    tasks: list[str]


class AppStatus(Message, frozen=True, kw_only=True):
    """Everything that ``headrace status`` shows, upstream stages first. ``drained``: inputs need not have ended.

    ``ended_at``: when the app ended, or when a driver that is gone or can't be reached was last alive.
    """

    app: str
    state: AppState
    drained: bool = False
    started_at: int
    ended_at: int | None = None
    guarantee: str
    stages: list[StageStatus]
    tasks: list[TaskStatus]
    containers: list[ContainerStatus]
    held_up: list[HeldUp] = []
    queries: QueriesStatus = QueriesStatus()
    pages: PagesStatus = PagesStatus()
    export: ExportStatus | None = None
    error: ErrorReport | None = None


_M = TypeVar("_M", bound=Message)
_BUILDING = threading.Lock()
"""Two threads that build decoders of one type at once end the process: msgspec 0.22 uses what is only half there."""


@cache
def _decoder(kind: type[_M]) -> msgspec.json.Decoder[_M]:
    with _BUILDING:
        return msgspec.json.Decoder(kind)


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message)


def decode(kind: type[_M], data: bytes) -> _M:
    """Return the message in ``data``. Raises ``ProtocolError`` if it isn't of that kind, or of an unknown format."""
    hint = "run the same version of Headrace in the driver, the containers and the commands"
    name = kind.__name__
    try:
        message: _M = _decoder(kind).decode(data)
    except UNREADABLE as error:
        raise ProtocolError(f"not a message of type {name}: {error}: {data[:200]!r}", hint=hint) from error
    if message.version != FORMAT:
        found = f"a message of type {name} has format {message.version}"
        raise ProtocolError(f"{found}; this version of Headrace reads {FORMAT}", hint=hint)
    return message


KEYS_MAX = 1000
TASKS_MAX = 128
ROWS_MAX = 10_001
LIMIT_MAX = ROWS_MAX - 1
"""The rows of one page. A query asks for one more, to know whether another page follows."""
LIMIT_MS_MAX = 30_000
LIMIT_MS = 5_000


class TableFacts(Nested, frozen=True, kw_only=True):
    """A table, or a store of a low-level task: its columns with their types in durable form, and its tasks.

    The hash of the key columns ``owned_by`` modulo the number of tasks gives the task of a row; None: any task.
    """

    id: str
    kind: str
    stage: str
    key: dict[str, Any]
    values: dict[str, Any]
    tasks: list[str]
    owned_by: list[str] | None = None
    ttl_ms: int | None = None
    storage: str = "disk"
    versions_ms: int | None = None


class TableList(Message, frozen=True, kw_only=True):
    """The tables of an app, also of stages that run elsewhere, and ``others``: steps whose state can't be queried."""

    app: str = ""
    tables: tuple[TableFacts, ...] = ()
    others: dict[str, str] = msgspec.field(default_factory=dict)


class ContainerLook(Nested, frozen=True, kw_only=True):
    """A look into running containers. ``peek``: rows that ``step`` receives. ``profile``: the threads for ``seconds``.

    The first question with an ``id`` starts it, later ones ask for its progress: JSON in the ``rows`` of the answer.
    """

    id: str
    kind: Literal["peek", "profile"]
    step: str = ""
    seconds: float = 0.0


class Ask(Message, frozen=True, kw_only=True):
    """A query for the rows of ``keys``, or without any for the rows with ``low <= key < high`` (empty: no bound).

    Each task returns at most ``rows`` rows within ``limit_ms``; a table of versions those as of event time ``at_ms``.
    """

    table: str
    tasks: list[str]
    keys: tuple[bytes, ...] = ()
    low: bytes = b""
    high: bytes = b""
    rows: int = 100
    limit_ms: int = LIMIT_MS
    at_ms: int | None = None
    look: ContainerLook | None = None


class TaskAnswer(Nested, frozen=True, kw_only=True):
    """One task's rows (Arrow) as of the commit ``version``, or its error. ``more``: rows after ``last`` had no room."""

    task: str
    version: int | None = None
    rows: bytes = b""
    more: bool = False
    last: bytes = b""
    error: ErrorReport | None = None


class Answers(Message, frozen=True, kw_only=True):
    """The answers to an ``Ask``, in the order of its tasks."""

    answers: list[TaskAnswer]


class Question(Nested, frozen=True, kw_only=True):
    """The part of an ``Ask`` that concerns one container. ``bytes_max`` bounds each task's answer."""

    number: int
    table: str
    tasks: list[str]
    keys: tuple[bytes, ...] = ()
    low: bytes = b""
    high: bytes = b""
    rows: int = 100
    bytes_max: int = 1 << 20
    at_ms: int | None = None
    look: ContainerLook | None = None


class Answer(Nested, frozen=True, kw_only=True):
    """The answer to the question of that number."""

    number: int
    answers: list[TaskAnswer]


class Listening(_Sent, frozen=True, kw_only=True):
    """A container's answer, if there was a question, and its request for the next one."""

    answer: Answer | None = None


class Questions(Message, frozen=True, kw_only=True):
    """The next question. It is None if there was none for some time; the container then asks again."""

    question: Question | None = None


class StartpointTarget(Message, frozen=True, kw_only=True):
    """What startpoints are for: an input by its id, one partition or all, one task or all that read it."""

    input: str
    partition: int | None = None
    task: str | None = None


class SetStartpoint(StartpointTarget, frozen=True, kw_only=True):
    """Write startpoints. ``by`` says who sets them, as ``user@host``, and ``note`` why, in one line.

    ``dry_run``: resolve them and change nothing. ``apply``: restart the tasks concerned now.
    """

    startpoint: Startpoint
    by: str = ""
    note: str = ""
    apply: bool = False
    dry_run: bool = False


class ApplyStartpoints(Message, frozen=True, kw_only=True):
    """Fan out what is written, and restart the tasks concerned in place."""


class Move(Nested, frozen=True, kw_only=True):
    """What a startpoint means for one partition in one task.

    ``from_offset`` is where the task would read on (None: that isn't known before it starts), ``to_offset`` None if the
    startpoint is resolved only at the start. ``messages`` and ``bytes`` lie in between, where they are known, or up to
    ``until_offset``: then the direction is ``again``. The times are those of the messages at both offsets.
    """

    input: str
    stream: str
    partition: int
    task: str
    direction: Literal["back", "ahead", "same", "again", "unknown"]
    from_offset: int | None = None
    to_offset: int | None = None
    until_offset: int | None = None
    committed: bool = False
    messages: int | None = None
    bytes: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None


class SetAnswer(Message, frozen=True, kw_only=True):
    """What setting startpoints does: ``replaced`` waited for the same, the ``restarted`` tasks apply theirs now."""

    moves: tuple[Move, ...]
    written: tuple[StartpointState, ...] = ()
    replaced: tuple[StartpointState, ...] = ()
    restarted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class StartpointList(Message, frozen=True, kw_only=True):
    """Startpoints of an app. A list of all begins with those that are done with, the oldest first."""

    app: str
    startpoints: tuple[StartpointState, ...]


class AllStartpoints(Message, frozen=True, kw_only=True):
    """The startpoints that aren't done with of each app that has any, running or stopped."""

    apps: tuple[StartpointList, ...]


class Applied(Message, frozen=True, kw_only=True):
    """The tasks that restart now, and those that would have to but run elsewhere, if at all."""

    restarted: tuple[str, ...]
    elsewhere: tuple[str, ...] = ()


class OutcomeReport(_Sent, frozen=True, kw_only=True):
    """What happened to orders of a task that this container runs."""

    task: str
    outcomes: tuple[Outcome, ...]
