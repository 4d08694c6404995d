"""PySpark's converters of NumPy's values for calls into the JVM, asked about such values only.

Py4J asks them about each argument, a text too. To find out whether NumPy is installed, they import PySpark's tools for
tests, and these import pandas: half a second in each driver, before Spark starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import types

_KINDS = {"NumpyScalarConverter": "generic", "NumpyArrayConverter": "ndarray"}
"""The classes of PySpark, and what each converts."""


def ask_only_about_numpy() -> None:
    """Have them answer without an import for what isn't of NumPy. Idempotent."""
    for name, kind in _KINDS.items():
        converter = getattr(types, name, None)
        if converter is not None and not hasattr(converter.can_convert, "asked"):
            converter.can_convert = _about(kind, converter.can_convert)


def _about(kind: str, asked: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def can_convert(self: Any, value: Any) -> bool:
        numpy = sys.modules.get("numpy")  # without which there can't be such a value
        return numpy is not None and isinstance(value, getattr(numpy, kind)) and asked(self, value)

    can_convert.asked = asked  # type: ignore[attr-defined]
    return can_convert
