"""Triggers for ``window(early=, late=)``: when a window emits results before and after its end."""

from headrace.api.specs import Trigger
from headrace.api.windows import after, all_of, any_of, at_close, every, repeated, since_first, since_last

__all__ = ["Trigger", "after", "all_of", "any_of", "at_close", "every", "repeated", "since_first", "since_last"]
