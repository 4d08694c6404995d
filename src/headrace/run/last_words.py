"""The last words of a container in case it dies silently: a small file under ``home``.

While the container lives, the file says which function of the app is being called, on which messages. That part is
mapped into memory: a note costs about a microsecond, no system call, and the kernel keeps it whatever happens to the
process. What ends the process adds how: ``os._exit``, and the signals that ``faulthandler`` handles. SIGKILL adds
nothing.

An incarnation that starts tells the coordinator what those before it have left behind where it starts, and deletes the
file of the one that it replaces. So the driver needs no such folder. An orderly end deletes the file as well.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from headrace.coordinator.messages import LastWords
from headrace.core.files import UNREADABLE, make_private_folder, open_private, writing
from headrace.core.log import logger
from headrace.task.scope import Work

_NOTE_BYTES = 4096
_HOW_BYTES_MAX = 64 << 10
_FILES_MAX = 64
_ENCODER = msgspec.msgpack.Encoder()
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
}
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in ', re.MULTILINE)
_log = logger(__name__)


def folder_of(home: Path, app: str) -> Path:
    return home / "apps" / app / "at-work"


class Recorder:
    """Keeps the notes of one incarnation, from ``start`` to ``close``. Start it in a process of the container's own."""

    def __init__(self, folder: Path, container: int, incarnation: str) -> None:
        self._path = _path(folder, container, incarnation)
        with writing(self._path):
            make_private_folder(folder)
            self._file = os.fdopen(open_private(self._path, os.O_RDWR | os.O_TRUNC), "w+b")
            self._file.truncate(_NOTE_BYTES)
            self._note = mmap.mmap(self._file.fileno(), _NOTE_BYTES)
        self._file.seek(_NOTE_BYTES)
        self._pid = os.getpid()
        self._exit = os._exit

    def keep(self, work: Work | None) -> None:
        if work is None:
            self._note[0:4] = bytes(4)
            return
        data = _ENCODER.encode((work.task, work.step, work.place))
        fits = len(data) <= _NOTE_BYTES - 4  # else only the names, which are short
        data = data if fits else _ENCODER.encode((work.task[:500], work.step[:500], ""))
        self._note[0 : len(data) + 4] = len(data).to_bytes(4, "little") + data

    def start(self) -> None:
        faulthandler.enable(self._file, all_threads=False)
        os._exit = self._exiting

    def close(self) -> None:
        if os._exit == self._exiting:
            os._exit = self._exit
            faulthandler.disable()
        self._note.close()
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _exiting(self, status: int) -> NoReturn:
        if os.getpid() == self._pid:  # and not a child that was forked from it
            frame = sys._getframe(1)
            text = f"os._exit({status}) at {frame.f_code.co_filename}:{frame.f_lineno}"
            with suppress(OSError):
                os.pwrite(self._file.fileno(), text.encode(), _NOTE_BYTES)
        self._exit(status)


def clear(folder: Path) -> None:
    for path in folder.glob("*"):
        path.unlink(missing_ok=True)


def left_in(folder: Path, container: int) -> dict[str, LastWords]:
    """Return what incarnations of a container have left behind, by their names: the latest ``_FILES_MAX`` of them.

    Older files of this container are deleted, because no report needs them. Stages that are deployed apart number their
    containers alike, so some incarnations may be alive, and of another run.
    """
    found: dict[str, LastWords] = {}
    for number, path in enumerate(sorted(folder.glob(f"{container}.*"), key=_changed_ns, reverse=True)):
        if number >= _FILES_MAX:
            path.unlink(missing_ok=True)
        elif (words := _read(path)) is not None:
            found[path.name.partition(".")[2]] = words
    return found


def forget(folder: Path, container: int, incarnation: str) -> None:
    _path(folder, container, incarnation).unlink(missing_ok=True)


def _path(folder: Path, container: int, incarnation: str) -> Path:
    return folder / f"{container}.{incarnation}"


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # another one has just deleted it
        return 0


def _read(path: Path) -> LastWords | None:
    try:
        with path.open("rb") as file:
            data = file.read(_NOTE_BYTES + _HOW_BYTES_MAX)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            _log.warning("can't read the files of a dead container", file=str(path), error=str(error))
        return None
    task, step, place = _noted(data[:_NOTE_BYTES])
    how = _how(data[_NOTE_BYTES:].decode(errors="replace"))
    return LastWords(task=task, step=step, place=place, how=how, by_itself=bool(how))


def _noted(data: bytes) -> tuple[str, str, str]:
    size = int.from_bytes(data[:4], "little")
    try:
        return msgspec.msgpack.decode(data[4 : 4 + size], type=tuple[str, str, str]) if size else ("", "", "")
    except UNREADABLE:  # it died in the middle of a note
        return "", "", ""


def _how(text: str) -> str:
    if text.startswith("os._exit("):
        return f"called {text}"
    first, _, rest = text.partition("\n")
    reason = first.removeprefix("Fatal Python error: ")
    if not first or reason == first:
        return ""
    frames = [m for m in _FRAME.finditer(rest) if not _is_ours(m["file"])] or list(_FRAME.finditer(rest))
    where = f" at {frames[0]['file']}:{frames[0]['line']}" if frames else ""
    signal = _SIGNALS.get(reason)
    return f"was killed by {signal} ({reason}){where}" if signal else f"ended with {reason!r}{where}"


def _is_ours(file: str) -> bool:
    """Whether a file is of Headrace or of an installed package: the app's own line says more."""
    return "/site-packages/" in file or "/headrace/" in file or f"/python{sys.version_info[0]}." in file
