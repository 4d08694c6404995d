"""Frees the disk blocks of a trimmed range, if the file system supports that."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

from headrace.core.errors import StorageError
from headrace.core.log import Throttle, logger

_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
_BLOCK = 4096
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_throttle = Throttle(logger(__name__))


def punch(path: Path, start: int, stop: int) -> bool:
    """Free the blocks that are wholly in ``start <= byte < stop``. They read as zeros; the file keeps its size.

    Returns False if this system can't: the bytes then stay, which costs only disk space.
    """
    start = (start + _BLOCK - 1) // _BLOCK * _BLOCK
    stop = stop // _BLOCK * _BLOCK
    if start >= stop:
        return True
    if not sys.platform.startswith("linux"):
        _throttle.info("this system can't free the blocks of trimmed records: they stay on the disk", path=str(path))
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, stop - start) == 0:
            return True
        code = ctypes.get_errno()
    finally:
        os.close(fd)
    if code in _UNSUPPORTED:
        _throttle.warning(
            "the file system can't free the blocks of trimmed records: they stay on the disk", path=str(path)
        )
        return False
    raise StorageError(f"can't free bytes {start} to {stop} of {path}: {os.strerror(code)}")
