"""What Py4J asks PySpark about each argument of a call."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from py4j.protocol import INPUT_CONVERTER  # type: ignore[import-untyped]

from headrace.run.spark.launch import ask_only_about_numpy


def test_values_of_numpy_are_still_converted() -> None:
    def convertible(value: object) -> set[str]:
        found = {type(converter).__name__ for converter in INPUT_CONVERTER if converter.can_convert(value)}
        return {name for name in found if name.startswith("Numpy")}

    values = ["text", 1, np.int64(1), np.array([1.0]), np.array([[1.0]]), [1]]
    before = [convertible(value) for value in values]
    assert before == [set(), set(), {"NumpyScalarConverter"}, {"NumpyArrayConverter"}, set(), set()]
    for _ in range(2):
        ask_only_about_numpy()
        assert [convertible(value) for value in values] == before


def test_a_text_as_an_argument_imports_no_pandas() -> None:
    program = """
import sys
from py4j.protocol import INPUT_CONVERTER
from headrace.run.spark.session import open_context
from headrace.run.spark.launch import ask_only_about_numpy
ask_only_about_numpy()
print(any(converter.can_convert("TERM") for converter in INPUT_CONVERTER), "pandas" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
