"""The whole error tree, in one place.

Every error answers three questions: whose fault is it (``fault``), may the same
call be tried again (``retry``), and what should the reader do next (``hint``).
The message says what is wrong and where; the hint says the remedy.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from typing_extensions import override

Fault = Literal["user", "data", "environment", "headrace"]


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose."""

    fault: ClassVar[Fault] = "headrace"
    retry: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @override
    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


# -- the user's app or command is wrong; running it again changes nothing ---------------------------


class DeclarationError(HeadraceError):
    """The app says something impossible: an unknown column, a duplicate id, a window of zero length."""

    fault = "user"


class PlanError(DeclarationError):
    """The app is well formed, but can't be planned: partition counts that disagree, a cycle, no input."""


class UsageError(HeadraceError):
    """A command or call was given arguments that make no sense."""

    fault = "user"


class UserFunctionError(HeadraceError):
    """A function of the app raised; the message carries stream, partition, offset and the user's line."""

    fault = "user"


# -- the data is wrong -------------------------------------------------------------------------------


class DataError(HeadraceError):
    """A message can't be read or doesn't fit the declared schema. Its input's ``on_error`` policy decides."""

    fault = "data"


class FrameError(DataError):
    """Bytes that should be a frame are not: too short, an unknown kind, an unreadable control body."""


class CorruptLogError(DataError):
    """Acknowledged bytes of a durable file fail their checksum. Never skipped, never repaired in silence."""


# -- the surroundings are wrong ----------------------------------------------------------------------


class InfrastructureError(HeadraceError):
    """Something outside the app is missing or full: Java, Spark slots, disk, a server."""

    fault = "environment"


class StreamNotFoundError(InfrastructureError):
    """A stream that should be there isn't. ``StreamExistsError`` is the opposite."""


class StreamExistsError(InfrastructureError):
    """A stream can't be created because one of that name is there with another shape."""


class StreamSealedError(InfrastructureError):
    """An append to a stream that was sealed: it has an end, and the end has been written."""


class TrimmedOffsetError(InfrastructureError):
    """A read below the oldest kept offset. Never answered by jumping to the oldest in silence."""


class StorageError(InfrastructureError):
    """A write didn't reach the disk (full, read-only, gone). Nothing was acknowledged.

    Raised with a hint to mend the disk; whoever knows what happens next adds it by ``then``.
    """

    retry = True

    def then(self, what: str) -> Self:
        """The same error, its hint followed by what happens, or is to be done, when the disk is mended."""
        self.hint = f"{self.hint or 'see to the disk'}; {what}"
        return self


class IndeterminateWriteError(InfrastructureError):
    """A write may or may not have happened. ``StorageError`` means that it did not."""


class UnavailableError(InfrastructureError):
    """A server or process isn't answering now; the same call may work later."""

    retry = True


# -- the protocol --------------------------------------------------------------------------------------


class FencedError(HeadraceError):
    """A newer generation of this task is alive: this one has to stop, and has changed nothing."""

    fault = "environment"


class ProtocolError(HeadraceError):
    """A rule of the exactly-once protocol is broken: a gap, a frame of an unannounced generation."""
