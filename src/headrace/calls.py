"""Retries of failed calls, for ``map_async(retry=)`` and remote tables."""

from headrace.api.remote import retry
from headrace.core.calls import Retry

__all__ = ["Retry", "retry"]
