"""Names for writers that have none of their own: a few for each stream, each lent to one process at a time.

A name of its own for each write would leave a record, and a producer in the position of each reader, forever. And
no write would come again under that name to clean up after a write that died. So names are lent: the next write
gets the first name that is free, and also settles what the others have left whose processes are gone.

A lock file for each name says whether it is lent. The lock ends with its process. Nothing here waits.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.durable import writing
from headrace.core.errors import UnavailableError
from headrace.core.private_folder import make_private_folder, open_private
from headrace.streams.committed_writer import CommittedWriter, open_committed_writer

SLOTS = 16
"""How many writes without a name may be published at a time."""


@contextmanager
def borrowed_writer(home: str | Path, stream: str, locks: Path) -> Iterator[CommittedWriter]:
    """Lend a writer of a stream for the block. ``locks`` is a folder for lock files, the same for all.

    Raises ``UnavailableError`` if all are lent, and ``StreamNotFoundError``.
    """
    for number in range(SLOTS):
        with _lent(locks, number) as lent:
            if not lent:
                continue
            for other in range(SLOTS):
                if other != number:
                    _settle(home, stream, locks, other)
            with _open(home, stream, number) as writer:
                yield writer
            return
    raise UnavailableError(
        f"{SLOTS} writes without a name are being published to {stream!r}, and that is the limit",
        hint="try again when one of them has ended, or give the write a name: options writer and version",
    )


def _settle(home: str | Path, stream: str, locks: Path, number: int) -> None:
    if not _lock(locks, number).exists():
        return
    with _lent(locks, number) as lent:
        if lent:
            with _open(home, stream, number) as writer:
                writer.settle()


def _open(home: str | Path, stream: str, number: int) -> CommittedWriter:
    # Names of users have no slash.
    return open_committed_writer(home, stream, f"batch/{number}")


def _lock(locks: Path, number: int) -> Path:
    return locks / f"batch-{number:02d}.lock"


@contextmanager
def _lent(locks: Path, number: int) -> Iterator[bool]:
    """Take a name for the block; False if another process has it."""
    path = _lock(locks, number)
    with writing(path):
        make_private_folder(locks)
        descriptor = open_private(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
