"""What is said about tables of a running app: by whoever asks, by the coordinator, and by the containers.

An asker learns what there is (``TableList``), works out which tasks to ask, sends ``Ask`` and blocks for ``Answers``. A
container keeps a ``Listening`` open until there is a ``Question`` for it, and brings the answer with its next one: it
needs no port of its own, and an idle one costs a request now and then.

Keys and bounds are bytes as ``stores.ordered_keys`` makes them of typed values; rows are Arrow, as in streams, so that
every type comes back as it is. In JSON both are base64.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.runners.coordination.messages import ErrorReport, Message, Nested

KEYS_MAX = 1000
TASKS_MAX = 128
ROWS_MAX = 10_001
LIMIT_MAX = ROWS_MAX - 1
"""Rows of one page: one more is asked for, to know whether there is another page."""

LIMIT_MS_MAX = 30_000
LIMIT_MS = 5_000

# -- what there is -----------------------------------------------------------------------------------------


class TableFacts(Nested, frozen=True, kw_only=True):
    """A table, or a store of a low-level task: its columns with their types in the durable form, and who keeps it.

    ``owned_by`` names columns of the key whose hash modulo the tasks is the one that has a row; None: any may.
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
    """The tables of an app, also those of stages that run elsewhere.

    ``others`` are the steps that keep what can't be asked about: by id what each is.
    """

    app: str = ""
    tables: tuple[TableFacts, ...] = ()
    others: dict[str, str] = msgspec.field(default_factory=dict)


# -- between the asker and the coordinator -----------------------------------------------------------------


class Ask(Message, frozen=True, kw_only=True):
    """What these tasks hold of a table: of ``keys``, if there are any, else with ``low <= key < high``.

    An empty ``high`` is no bound. Each task is asked for ``rows`` at most, and has ``limit_ms`` to answer. ``at_ms``:
    of a table of versions what counted at that event time.
    """

    table: str
    tasks: list[str]
    keys: tuple[bytes, ...] = ()
    low: bytes = b""
    high: bytes = b""
    rows: int = 100
    limit_ms: int = LIMIT_MS
    at_ms: int | None = None


class TaskAnswer(Nested, frozen=True, kw_only=True):
    """One task's rows (Arrow) of the commit ``version`` (None: it has none yet), or why there are none.

    ``more``: the bounds of the answer left some out, which stand behind the key ``last``.
    """

    task: str
    version: int | None = None
    rows: bytes = b""
    more: bool = False
    last: bytes = b""
    error: ErrorReport | None = None


class Answers(Message, frozen=True, kw_only=True):
    """What came of an ``Ask``, in the order of its tasks."""

    answers: list[TaskAnswer]


# -- between the coordinator and a container ---------------------------------------------------------------


class Question(Nested, frozen=True, kw_only=True):
    """An ``Ask`` as it concerns one container; ``bytes_max`` bounds each task's answer."""

    number: int
    table: str
    tasks: list[str]
    keys: tuple[bytes, ...] = ()
    low: bytes = b""
    high: bytes = b""
    rows: int = 100
    bytes_max: int = 1 << 20
    at_ms: int | None = None


class Answer(Nested, frozen=True, kw_only=True):
    """The answer to the question of that number."""

    number: int
    answers: list[TaskAnswer]


class Listening(Message, frozen=True, kw_only=True):
    """A container has answered (if it has), and waits for the next question."""

    container: int
    incarnation: str
    answer: Answer | None = None


class Questions(Message, frozen=True, kw_only=True):
    """The next question; None when it took too long: ask again."""

    question: Question | None = None
