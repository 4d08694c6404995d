"""Descriptors are waited for, whatever their number."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from headrace.core.readable import readable

HIGH = 1100
"""Higher than ``select.select`` takes."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe; the one to read from has a high number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft <= HIGH + 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (HIGH + 100, hard))
    low, writer = os.pipe()
    reader = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH)
    yield reader, writer
    for descriptor in (low, reader, writer):
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_of_many_files_the_last_can_be_waited_for(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    assert reader >= HIGH
    assert not readable(reader, 0)
    os.write(writer, b"!")
    assert readable(reader, 10_000)
