"""Retries of failed calls, for ``map_async(retry=)`` and remote tables."""

from headrace.api.call_settings import retry
from headrace.core.retry import Retry

__all__ = [
    "Retry",
    "retry",
]
