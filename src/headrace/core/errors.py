"""All errors that Headrace raises on purpose.

Every error answers three questions: whose fault it is (``fault``), whether the same call may succeed later
(``retry``), and what to do now (``hint``). The message says what is wrong and where.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from typing_extensions import override

Fault = Literal["user", "data", "environment", "headrace"]


class HeadraceError(Exception):
    """Base class of all errors that Headrace raises on purpose."""

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
    """The app declares something impossible: an unknown column, a duplicate id, a window of zero length."""

    fault = "user"


class PlanError(DeclarationError):
    """The app is well formed but can't be planned: partition counts disagree, or there is a cycle or no input."""


class UsageError(HeadraceError):
    """A command or a function was called with arguments that make no sense."""

    fault = "user"


class UnsupportedPositionError(UsageError):
    """A position of a kind that the system of the stream doesn't know, such as a time where records have none."""


class DeploymentError(HeadraceError):
    """Two versions of an app contradict each other, or what one of them has left can't be continued by the other."""

    fault = "user"


class UserFunctionError(HeadraceError):
    """A function of the app raised. The message names stream, partition and offset, and the line that raised."""

    fault = "user"


# -- the data is wrong -------------------------------------------------------------------------------


class DataError(HeadraceError):
    """A message can't be read or doesn't fit the declared schema. Raised if the input's ``on_error`` is ``fail``."""

    fault = "data"


class FrameError(DataError):
    """Bytes that should be a frame are none: they are too short, or of an unknown kind, or the body is unreadable."""


class CorruptLogError(DataError):
    """Acknowledged bytes of a durable file fail their checksum. They are never skipped or repaired silently."""


# -- something outside the app is wrong --------------------------------------------------------------


class InfrastructureError(HeadraceError):
    """Something outside the app is missing, full or not answering: Java, Spark slots, a disk, a server."""

    fault = "environment"


class StreamNotFoundError(InfrastructureError):
    """A stream that should exist doesn't."""


class StreamExistsError(InfrastructureError):
    """A stream can't be created: one of that name exists with other partitions or columns."""


class StreamSealedError(InfrastructureError):
    """A write to a sealed stream. A sealed stream has ended and takes no more records."""


class TrimmedOffsetError(InfrastructureError):
    """A read before the oldest record that is kept. Headrace never skips ahead to that one by itself."""


class StorageError(InfrastructureError):
    """A write didn't reach the disk (full, read-only, gone). Nothing was acknowledged.

    The hint says how to fix the disk. Callers that know what happens next add it with ``then``.
    """

    retry = True

    def then(self, what: str) -> Self:
        """Add to the hint what happens, or what to do, once the disk is fixed; return the error."""
        self.hint = f"{self.hint or 'check the disk'}; {what}"
        return self


class StateLockedError(InfrastructureError):
    """Another process has a state folder open: a container that was replaced, but is still alive."""


class StateCorruptError(InfrastructureError):
    """A state folder can't be read. Its contents can be rebuilt from snapshot and changelog."""

    retry = True


class IndeterminateWriteError(InfrastructureError):
    """A write may or may not have happened. (After a ``StorageError`` it has not.)"""


class LeaseHeldError(InfrastructureError):
    """Another application that is alive holds leases of the lease table that the app is to use."""


class UnavailableError(InfrastructureError):
    """A server or process doesn't answer now. The same call may succeed later."""

    retry = True


class ThrottledError(UnavailableError):
    """A service refuses a call because there were too many: the same call may succeed a little later."""


# -- the protocol --------------------------------------------------------------------------------------


class FencedError(HeadraceError):
    """A newer generation of the task has taken over. The older one has to stop; it has changed nothing since."""

    fault = "environment"


class ProtocolError(HeadraceError):
    """A rule of the exactly-once protocol is broken: a gap between frames, a frame of an unannounced generation."""
