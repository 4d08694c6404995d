"""Descriptors are waited for, whatever their number."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

from headrace.core.files import readable
from open_files import open_files

HIGH = 1100
"""Higher than ``select.select`` takes."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe; the one to read from has a high number."""
    with open_files(HIGH + 100):
        low, writer = os.pipe()
        reader = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH)
        yield reader, writer
        for descriptor in (low, reader, writer):
            os.close(descriptor)


def test_of_many_files_the_last_can_be_waited_for(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    assert reader >= HIGH
    assert not readable(reader, 0)
    os.write(writer, b"!")
    assert readable(reader, 10_000)
