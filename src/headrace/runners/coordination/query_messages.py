"""The messages for queries of tables, between clients, the coordinator and containers.

A client gets the ``TableList``, chooses the tasks to ask, sends ``Ask`` and blocks for ``Answers``. A container sends
``Listening`` and blocks until there is a ``Question`` for it; its next ``Listening`` carries the answer. So a container
needs no port of its own, and without queries it only sends a request now and then.

Keys and bounds are bytes, as ``stores.ordered_keys`` encodes typed values. Rows are Arrow, as in streams, so every type
survives. In JSON both are base64.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headrace.runners.coordination.error_report import ErrorReport
from headrace.runners.coordination.messages import Message, Nested

KEYS_MAX = 1000
TASKS_MAX = 128
ROWS_MAX = 10_001
LIMIT_MAX = ROWS_MAX - 1
"""The rows of one page. A query asks for one more, to know whether another page follows."""

LIMIT_MS_MAX = 30_000
LIMIT_MS = 5_000

# -- the tables --------------------------------------------------------------------------------------------


class TableFacts(Nested, frozen=True, kw_only=True):
    """A table, or a store of a low-level task: its columns with their types in durable form, and its tasks.

    ``owned_by`` names columns of the key. Their hash modulo the number of tasks gives the task of a row; with None, any
    task may have it.
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
    """The tables of an app, including those of stages that run elsewhere.

    ``others`` describes by id the steps whose state can't be queried.
    """

    app: str = ""
    tables: tuple[TableFacts, ...] = ()
    others: dict[str, str] = msgspec.field(default_factory=dict)


# -- between the client and the coordinator ----------------------------------------------------------------


class Look(Nested, frozen=True, kw_only=True):
    """A look into running containers instead of a query of a table.

    The first question with an ``id`` starts the look, and later ones ask for its progress: the ``rows`` of the answer
    are JSON (``runners/looks``). ``peek``: some rows that ``step`` receives in these tasks. ``profile``: the activity
    of their containers' threads for ``seconds``.
    """

    id: str
    kind: Literal["peek", "profile"]
    step: str = ""
    seconds: float = 0.0


class Ask(Message, frozen=True, kw_only=True):
    """A query for the rows of ``keys``, or without any for the rows with ``low <= key < high``.

    An empty ``high`` means no bound. Each task returns at most ``rows`` rows within ``limit_ms``. With ``at_ms``, a
    table of versions returns its rows as of that event time.
    """

    table: str
    tasks: list[str]
    keys: tuple[bytes, ...] = ()
    low: bytes = b""
    high: bytes = b""
    rows: int = 100
    limit_ms: int = LIMIT_MS
    at_ms: int | None = None
    look: Look | None = None


class TaskAnswer(Nested, frozen=True, kw_only=True):
    """One task's rows (Arrow) as of the commit ``version`` (None: it has no commit yet), or its error.

    ``more``: rows after the key ``last`` were left out, because the answer had no room for them.
    """

    task: str
    version: int | None = None
    rows: bytes = b""
    more: bool = False
    last: bytes = b""
    error: ErrorReport | None = None


class Answers(Message, frozen=True, kw_only=True):
    """The answers to an ``Ask``, in the order of its tasks."""

    answers: list[TaskAnswer]


# -- between the coordinator and a container ---------------------------------------------------------------


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
    look: Look | None = None


class Answer(Nested, frozen=True, kw_only=True):
    """The answer to the question of that number."""

    number: int
    answers: list[TaskAnswer]


class Listening(Message, frozen=True, kw_only=True):
    """A container's answer, if there was a question, and its request for the next one."""

    container: int
    incarnation: str
    answer: Answer | None = None


class Questions(Message, frozen=True, kw_only=True):
    """The next question. It is None if there was none for some time; the container then asks again."""

    question: Question | None = None
