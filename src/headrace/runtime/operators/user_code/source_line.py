"""Where in the app's own code an error was raised."""

from __future__ import annotations


def users_line(error: BaseException) -> str:
    """``" at "`` and the line of the app's own code that raised; empty if none is known."""
    line = line_of(error)
    return "" if line is None else f" at {line}"


def line_of(error: BaseException) -> str | None:
    """The line of the app's own code that raised, or that called what raised: ``file:number``."""
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith("headrace."):
            return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return None
