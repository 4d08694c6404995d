"""When a window emits results before and after its end: for ``window(early=, late=)``."""

from headrace.api.shapes import Trigger
from headrace.api.triggers import after, all_of, any_of, at_close, every, repeated, since_first, since_last

__all__ = [
    "Trigger",
    "after",
    "all_of",
    "any_of",
    "at_close",
    "every",
    "repeated",
    "since_first",
    "since_last",
]
