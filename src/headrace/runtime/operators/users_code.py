"""Where in the app's own code something was raised."""

from __future__ import annotations


def users_line(error: Exception) -> str:
    """The line of the app's own code that raised, or that called what raised; nothing if none is known."""
    trace = error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith("headrace."):
            return f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return ""
