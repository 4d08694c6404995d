"""Wakes a reader when a file grows: inotify on Linux, nothing elsewhere.

The kernel queues an event for each write call of any process on this machine. Writes from another machine, on a network
file system, cause none, so readers also check file sizes from time to time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

from headrace.core.errors import InfrastructureError
from headrace.core.log import Throttle, logger

_MODIFY = 0x00000002
_OVERFLOW = 0x00004000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16

_log = logger(__name__)
_throttle = Throttle(_log)


class FileWatcher:
    """An inotify instance. ``fd`` becomes readable when a watched file was written."""

    def __init__(self, fd: int, libc: ctypes.CDLL) -> None:
        self.fd = fd
        self._libc = libc

    @classmethod
    def open(cls) -> FileWatcher | None:
        """Return a new watcher; None on other systems, or if the user's limit of inotify instances is reached."""
        if not sys.platform.startswith("linux"):
            _throttle.info("this system has no inotify: readers look for new records twice a second")
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd >= 0:
            return cls(fd, libc)
        _throttle.warning(
            "no inotify instance is left: readers look for new records twice a second; raise the sysctl "
            "fs.inotify.max_user_instances",
            error=os.strerror(ctypes.get_errno()),
        )
        return None

    def watch(self, path: Path) -> int:
        """Watch a file and return the number that identifies it in ``drain``. A file always has the same number."""
        number = int(self._libc.inotify_add_watch(self.fd, os.fsencode(path), _MODIFY))
        if number < 0:
            code = ctypes.get_errno()
            hint = "raise the sysctl fs.inotify.max_user_watches" if code == errno.ENOSPC else None
            raise InfrastructureError(f"can't watch {path}: {os.strerror(code)}", hint=hint)
        return number

    def unwatch(self, number: int) -> None:
        """Stop watching a file. Does nothing if the file was deleted, because that removes its watch."""
        self._libc.inotify_rm_watch(self.fd, number)

    def drain(self) -> set[int] | None:
        """Return the numbers of the files written since the last call; None if the kernel's queue has overflowed."""
        changed: set[int] = set()
        known = True
        while True:
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                if not known:
                    _throttle.info("inotify's queue overflowed: checking all files")
                return changed if known else None
            start = 0
            while start < len(data):
                number, mask, _, name_length = _EVENT.unpack_from(data, start)
                start += _EVENT.size + name_length
                changed.add(number)
                known = known and not mask & _OVERFLOW

    def close(self) -> None:
        """Release the instance."""
        os.close(self.fd)
