"""Identify the machine of a process, and check whether its process number is valid here."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A space of process numbers: a machine since its last boot, or a container on it.

    Names aren't enough, because several machines may have the same name.
    """

    host: str
    id: str
    """Its ``/etc/machine-id``, or an empty text."""
    boot: str
    processes: str
    """The namespace of its process numbers; containers on one machine have their own."""

    @property
    def is_here(self) -> bool:
        """Return whether this process exists."""
        return self == this_machine()

    @property
    def has_restarted(self) -> bool:
        """Return whether it is certainly this machine before its last boot, so that its processes have ended."""
        here = this_machine()
        return bool(self.id) and (self.host, self.id) == (here.host, here.id) and self.boot != here.boot


def this_machine() -> Machine:
    """Return the machine on which this process runs."""
    return Machine(
        host=socket.gethostname(),
        id=_text(Path("/etc/machine-id")),
        boot=_text(Path("/proc/sys/kernel/random/boot_id")),
        processes=str(Path("/proc/self/ns/pid").readlink()),
    )


def process_is_there(pid: int) -> bool:
    """Return whether a process of this machine has the number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it belongs to another user, but it exists
    return True


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
