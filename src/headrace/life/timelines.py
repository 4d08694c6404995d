"""The timelines of an app: its histories, of which one is current. An app begins in timeline 1.

Restoring a savepoint begins another one, with changelogs, intermediate streams and local state of its own. Everything
that it needs is written before one compare-and-set makes it the current one, so an interrupted restore has changed
nothing, and going back to the timeline before is another compare-and-set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from headrace.core.errors import UnavailableError, UsageError
from headrace.core.files import decode_record
from headrace.core.ids import FIRST_TIMELINE
from headrace.life.metadata import Entry, MetadataStore

FORMAT = 2
NAMESPACE = "timelines"

Outputs = Literal["again", "silent"]
"""Whether what is processed again is written again, or nothing until each input has been read to where it was."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A timeline that began with a savepoint of ``from_app``, in place of the timeline ``before``.

    No task has committed a higher version than ``version``. ``spoken``: its silent ``outputs`` are written by now.
    """

    number: int
    before: int
    savepoint: str
    from_app: str
    savepoint_version: int
    created_ms: int
    version: int
    outputs: Outputs = "again"
    spoken: bool = False
    partitions: Mapping[str, int] = {}
    system: str


class _Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``highest`` is the highest number ever used: none is used twice."""

    format: int = FORMAT
    current: int = FIRST_TIMELINE
    highest: int = FIRST_TIMELINE
    timelines: tuple[Timeline, ...] = ()


_DECODER = msgspec.json.Decoder(_Record)


class Timelines:
    """What is recorded of an app's timelines. Reads once, so a change that another command has made meanwhile fails."""

    def __init__(self, store: MetadataStore, app: str) -> None:
        self._store = store
        self._app = app
        self._entry: Entry | None = store.get(NAMESPACE, app)
        self._record = _Record()
        if self._entry is not None:
            where = f"the record of the timelines of app {app!r} in the metadata store"
            self._record = decode_record(_DECODER, self._entry.value, where, FORMAT)

    @property
    def current(self) -> int:
        return self._record.current

    @property
    def next(self) -> int:
        return self._record.highest + 1

    @property
    def all(self) -> tuple[Timeline, ...]:
        """Those that began with a savepoint and haven't been deleted, in the order of their numbers."""
        return self._record.timelines

    @property
    def numbers(self) -> tuple[int, ...]:
        found = {one.number for one in self.all}
        if FIRST_TIMELINE in (self.current, *(one.before for one in self.all)):
            found.add(FIRST_TIMELINE)
        return tuple(sorted(found))

    def get(self, number: int) -> Timeline | None:
        return next((one for one in self.all if one.number == number), None)

    def begin(self, timeline: Timeline) -> None:
        """Make a new timeline the current one. Raises ``UnavailableError`` if another command has changed something."""
        if timeline.number != self.next or timeline.before != self.current:
            raise self._overtaken()
        self._write(_Record(current=timeline.number, highest=timeline.number, timelines=(*self.all, timeline)))

    @property
    def silent(self) -> bool:
        timeline = self.get(self.current)
        return timeline is not None and timeline.outputs == "silent" and not timeline.spoken

    def speak(self) -> None:
        changed = (msgspec.structs.replace(one, spoken=True) if one.number == self.current else one for one in self.all)
        self._write(msgspec.structs.replace(self._record, timelines=tuple(changed)))

    def take_back(self) -> Timeline:
        found = self.get(self.current)
        if found is None:
            hint = f"headrace savepoint timelines {self._app} lists all timelines"
            raise UsageError(f"app {self._app!r} is in its first timeline: no restore can be undone", hint=hint)
        if found.before not in self.numbers:
            raise UsageError(
                f"timeline {found.before} of app {self._app!r}, which came before timeline {found.number}, is deleted",
                hint="restore a savepoint instead",
            )
        left = tuple(one for one in self.all if one.number != found.number)
        self._write(_Record(current=found.before, highest=self._record.highest, timelines=left))
        return found

    def forget(self, number: int) -> None:
        if number == self.current:
            raise UsageError(
                f"timeline {number} of app {self._app!r} is the current one", hint="only older ones can be deleted"
            )
        left = (one for one in self.all if one.number != number)
        changed = (msgspec.structs.replace(one, before=0) if one.before == number else one for one in left)
        self._write(msgspec.structs.replace(self._record, timelines=tuple(changed)))

    def _write(self, record: _Record) -> None:
        expected = None if self._entry is None else self._entry.version
        data = msgspec.json.encode(record)
        version = self._store.put_if(NAMESPACE, self._app, data, expected)
        if version is None:
            raise self._overtaken()
        self._entry, self._record = Entry(data, version), record

    def _overtaken(self) -> UnavailableError:
        what = f"another command changed the timelines of app {self._app!r} at the same time"
        return UnavailableError(what, hint=f"check headrace savepoint timelines {self._app}, then try again")


def current_timeline(store: MetadataStore | None, app: str) -> int:
    return FIRST_TIMELINE if store is None else Timelines(store, app).current
