"""A home with a stream of numbers."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import headrace as hr


@pytest.fixture
def home(tmp_path: Path) -> Path:
    hr.streams.create_stream("numbers", 2, {"n": pl.Int64}, home=tmp_path)
    return tmp_path
