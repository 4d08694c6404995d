"""Errors as parts of messages: what another process shows or raises."""

from __future__ import annotations

import traceback

import msgspec

from headrace.core import errors
from headrace.core.errors import Fault, HeadraceError


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
                type=name,
                message=error.message,
                hint=error.hint,
                fault=error.fault,
                retry=error.retry,
                traceback=text,
            )
        return cls(type=name, message=str(error) or name, retry=True, traceback=text)

    def as_error(self) -> HeadraceError:
        """Return the error, of its original class if that is one of ours."""
        kind = getattr(errors, self.type, None)
        if not (isinstance(kind, type) and issubclass(kind, HeadraceError)):
            return HeadraceError(f"{self.type}: {self.message}\n{self.traceback}", hint=self.hint)
        return kind(self.message, hint=self.hint)

    @property
    def fatal(self) -> bool:
        """Whether a restart would fail in the same way, so that the app has to end."""
        return not self.retry and self.fault in {"user", "data"}
