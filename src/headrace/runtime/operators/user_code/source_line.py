"""Find the line of the app's own code that raised an error, or that a thread is executing."""

from __future__ import annotations

import os
import sysconfig
from types import FrameType

from headrace.core.thread_stacks import thread_stacks


def users_line(error: BaseException) -> str:
    """``" at "`` and the line of the app's own code that raised; empty if none is known."""
    line = line_of(error)
    return "" if line is None else f" at {line}"


def line_of(error: BaseException) -> str | None:
    """The line of the app's own code that raised, or that called what raised: ``file:number``."""
    trace = error.__traceback__
    while trace is not None:
        if not _is_ours(trace.tb_frame):
            return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return None


def line_now(thread: int, *, called: bool = True) -> str | None:
    """The line of the app's own code at which a thread is: ``file:number``; None if it is in none.

    Of the calls that Headrace has made it is the innermost that isn't in an installed package or in Python itself. If
    all are, and Headrace has ``called`` the app's own code, that is installed, too: then it is the outermost.
    """
    frame = thread_stacks().get(thread)
    own: str | None = None
    outermost: str | None = None
    while frame is not None and not _is_ours(frame):
        outermost = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if own is None and not _is_installed(frame.f_code.co_filename):
            own = outermost
        frame = frame.f_back
    return None if frame is None else own or (outermost if called else None)


def in_debugger(thread: int) -> bool:
    """Return whether a debugger holds a thread, which may then stand still for any time."""
    frame = thread_stacks().get(thread)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if isinstance(name, str) and name.partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False


_DEBUGGERS = frozenset({"bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy"})


_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})


def _is_installed(file: str) -> bool:
    return file.startswith((*_INSTALLED, "<frozen "))


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return isinstance(name, str) and name.startswith("headrace.")
