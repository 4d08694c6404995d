"""The messages about startpoints, for commands and for other people's tools: JSON like all others.

``docs/openapi.json`` describes them, and is generated from these classes.
"""

from __future__ import annotations

from typing import Literal

from headrace.metadata.startpoints import StartpointState
from headrace.runners.coordination.messages import Message, Nested
from headrace.systems.startpoint import Outcome, Startpoint


class StartpointTarget(Message, frozen=True, kw_only=True):
    """What startpoints are for: an input by its id, one partition or all, one task or all that read it."""

    input: str
    partition: int | None = None
    task: str | None = None


class SetStartpoint(StartpointTarget, frozen=True, kw_only=True):
    """Write startpoints. The coordinator gives each an id and its time.

    ``dry_run``: resolve them and change nothing. ``apply``: restart the tasks concerned now, and not only at the next
    start. ``by`` says who sets them, as ``user@host``, and ``note`` why, in one line; lists show both.
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

    ``from_offset`` is where the task would read on: its committed position, or without one the input's default. None:
    that isn't known before it starts. ``to_offset`` is None if the startpoint is resolved only at the start.
    ``messages`` and ``bytes`` lie in between, where they are known. If the startpoint has an end, that is
    ``until_offset``, the direction is ``again``, and they lie between ``to_offset`` and there. The times say when the
    messages at ``from_offset`` and ``to_offset`` arrived (None: unknown, or nothing is there yet).
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
    """What a request to set startpoints has done, or would do.

    ``replaced`` are the startpoints that waited for the same, ``restarted`` the tasks that apply theirs now.
    """

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
    """The startpoints of each app that has any, running or stopped; only those that aren't done with."""

    apps: tuple[StartpointList, ...]


class Applied(Message, frozen=True, kw_only=True):
    """The tasks that restart now, and those that would have to but run elsewhere, if at all."""

    restarted: tuple[str, ...]
    elsewhere: tuple[str, ...] = ()


class OutcomeReport(Message, frozen=True, kw_only=True):
    """What happened to orders of a task that this container runs."""

    container: int
    incarnation: str
    task: str
    outcomes: tuple[Outcome, ...]
