"""The progress of an app's batch runs, in a file of its home, so that computed results aren't computed again.

    {"format":1,"run":3,"state":"computed","until":"now","savepoint":""}

A run is first ``computed``: everything that leaves the app is in the run's folder. Then it is ``published``, and the
folder is deleted. A run that died before is ``begun``, and what it left is worth nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from headrace.core.durable import replace_file
from headrace.core.errors import StateLockedError, UnavailableError, UsageError
from headrace.core.private_folder import make_private_folder
from headrace.core.records import decode_record
from headrace.stores.state_folder import FolderLock

FORMAT = 1

State = Literal["begun", "computed", "published"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the last run. ``until`` says, in words, up to where it reads inputs that don't end.

    ``savepoint`` is the name of the one that a backfill makes.
    """

    format: int = FORMAT
    run: int
    state: State
    until: str
    savepoint: str = ""


_DECODER = msgspec.json.Decoder(Entry)


class Journal:
    """The runs of one app. One process has it at a time."""

    def __init__(self, home: Path, app: str) -> None:
        self._app = app
        self._folder = home / "batches" / app
        self._file = self._folder / "journal.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have it for the block. Raises ``UnavailableError`` if another run has it."""
        try:
            lock = FolderLock(self._folder / "runs")
        except StateLockedError as error:
            raise UnavailableError(
                f"another batch run of app {self._app!r} is running in this home", hint="wait until it has ended"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def read(self) -> Entry | None:
        """The last run; None before there was one. Raises ``DataError`` if it can't be read."""
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:
            return None
        return decode_record(_DECODER, data, f"{self._file}, the record of batch runs,", FORMAT)

    def begin(self, until: str, *, again: bool, savepoint: str = "") -> Entry:
        """Begin a run, or continue one that is computed. Raises ``UsageError`` if that would publish results twice."""
        last = self.read()
        if last is not None and last.state == "computed":
            if last.savepoint != savepoint:
                raise UsageError(
                    f"run {last.run} of app {self._app!r} ({_kind(last.savepoint)}, until {last.until}) is computed "
                    f"and not yet published: {_kind(savepoint)} can't begin before that",
                    hint="repeat the former command: it only publishes the computed results",
                )
            return last
        if last is not None and last.state == "published" and not again:
            raise UsageError(
                f"app {self._app!r} has published a batch run already (run {last.run}, until {last.until}): "
                "another one would publish its results a second time",
                hint="to publish them again, use --again or again=True",
            )
        run = 1 if last is None else last.run + (last.state == "published")
        entry = Entry(run=run, state="begun", until=until, savepoint=savepoint)
        self._discard()
        self._write(entry)
        return entry

    def note(self, entry: Entry, state: State) -> Entry:
        """Record the run's progress."""
        noted = msgspec.structs.replace(entry, state=state)
        self._write(noted)
        if state == "published":
            self._discard()
        return noted

    def results(self, entry: Entry) -> Path:
        """Where the results of a run are, until they are published."""
        return self._folder / "runs" / str(entry.run)

    def left(self, entry: Entry) -> Path:
        """Where the tasks of a run leave their state, until it is in a savepoint."""
        return self._folder / "runs" / f"{entry.run}-left"

    def _write(self, entry: Entry) -> None:
        make_private_folder(self._folder)
        replace_file(self._file, msgspec.json.encode(entry))

    def _discard(self) -> None:
        shutil.rmtree(self._folder / "runs", ignore_errors=True)


def _kind(savepoint: str) -> str:
    return f"the backfill for savepoint {savepoint!r}" if savepoint else "a batch run"
