"""All errors that Headrace raises on purpose, also those about packages that are missing.

Every error answers three questions: whose fault it is (``fault``), whether the same call may succeed later (``retry``),
and what to do now (``hint``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    """A command or a function was called with wrong arguments."""

    fault = "user"


class UnsupportedPositionError(UsageError):
    """The stream's system doesn't support this kind of position, such as a time where records have none."""


class DeploymentError(HeadraceError):
    """Two versions of an app contradict each other, or one can't continue with the state that the other has left."""

    fault = "user"


class UserFunctionError(HeadraceError):
    """A function of the app raised. The message names stream, partition and offset, and the line that raised."""

    fault = "user"


# -- the data is wrong -------------------------------------------------------------------------------
class DataError(HeadraceError):
    """A message can't be read or doesn't fit the declared schema. Raised if the input's ``on_error`` is ``fail``."""

    fault = "data"


class FrameError(DataError):
    """Bytes that should be a frame aren't one: they are too short, of an unknown kind, or have an unreadable body."""


class CorruptLogError(DataError):
    """Acknowledged bytes of a file don't match their checksum. Headrace never skips or repairs them silently."""


# -- something outside the app is wrong --------------------------------------------------------------
class InfrastructureError(HeadraceError):
    """Something outside the app is missing, full or not answering: Java, Spark slots, a disk, a server."""

    fault = "environment"


class StreamNotFoundError(InfrastructureError):
    """A stream that should exist doesn't."""


class StreamExistsError(InfrastructureError):
    """A stream can't be created, because one of that name exists with other partitions or columns."""


class StreamSealedError(InfrastructureError):
    """A program wrote to a sealed stream. A sealed stream has ended and takes no more records."""


class TrimmedOffsetError(InfrastructureError):
    """The records to be read were deleted. Headrace never skips ahead to the oldest remaining one by itself."""


class StorageError(InfrastructureError):
    """A write didn't reach the disk, which is full, read-only or gone. Nothing was acknowledged."""

    retry = True

    def then(self, what: str) -> Self:
        """Add to the hint what happens, or what to do, once the disk is fixed; return the error."""
        self.hint = f"{self.hint or 'check the disk'}; {what}"
        return self


class StateLockedError(InfrastructureError):
    """Another process has a state folder open: a container that was replaced, but is still alive."""


class StateCorruptError(InfrastructureError):
    """A state folder can't be read. Headrace can rebuild it from a snapshot and the changelog."""

    retry = True


class IndeterminateWriteError(InfrastructureError):
    """A write may or may not have happened. (After a ``StorageError``, it hasn't.)"""


class LeaseHeldError(InfrastructureError):
    """Another live application holds leases of the lease table that the app uses."""


class UnavailableError(InfrastructureError):
    """A server or process doesn't answer at the moment. The same call may succeed later."""

    retry = True


class ThrottledError(UnavailableError):
    """A service refused a call because there were too many. The same call may succeed a little later."""


# -- the protocol --------------------------------------------------------------------------------------
class FencedError(HeadraceError):
    """A newer generation of the task has taken over. The older one must stop; it has changed nothing since then."""

    fault = "environment"


class ProtocolError(HeadraceError):
    """A rule of the exactly-once protocol was broken, for example by a gap between frames or an unknown generation."""


@contextmanager
def needing(package: str, what: str, extra: str, where: str = "wherever drivers and containers run") -> Iterator[None]:
    """Raise ``InfrastructureError`` if the block can't import a package that ``what`` needs. ``extra`` installs it."""
    try:
        yield
    except ImportError as error:
        raise InfrastructureError(
            f"{what} needs {package}, which can't be imported here: {error}",
            hint=f'install it {where}: pip install "headrace[{extra}]"',
        ) from error
