"""The files of examples/nexmark as modules, and the data that the tests run them on."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "nexmark"
QUERIES = ("q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q11")


def load(name: str) -> Any:
    """Load the file as a new module, so that each call declares the query again."""
    spec = importlib.util.spec_from_file_location(f"nexmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = ModuleType(spec.name)
    module.__file__ = spec.origin
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module
