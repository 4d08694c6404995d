"""Tiers: the parts of a store, which never change once written, and are merged with neighbours of like size.

``Runs`` and ``KeyedRows`` add rows as a new part at the end of a list. When the last parts together are more than half
as large as the one before them, all of these are merged, as in a log-structured merge tree. On disk a manifest, all
that a restart reads, names the parts by numbers that aren't used twice. It is written together with a new part. A new
form is logged before the next rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.rows.given import concat_rows
from headrace.stores import pieces
from headrace.stores.base import FORM, StateForm, View, Writes, check_form, grown, other_kind, unknown_format
from headrace.stores.pieces import Kept, Pieces

MANIFEST = b"manifest"
_SMALL_PARTS_MAX = 8


class Part(Protocol):
    """Rows that are written once."""

    @property
    def pieces(self) -> Pieces:
        """Where the rows are."""

    @property
    def living(self) -> int:
        """How many rows a merge would keep, roughly."""

    def write(self, writes: Writes) -> None:
        """Write what isn't in the database yet."""

    def erase(self, writes: Writes) -> None:
        """Remove it from the database."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a restart must know of the parts. Each store adds its own fields, and sets ``format``."""

    format: int
    form: StateForm | None = None


P = TypeVar("P", bound=Part)
M = TypeVar("M", bound=Manifest)


@dataclass(slots=True)
class Tiers(Generic[P]):
    """The parts of one store, oldest first. ``merge`` makes one part, or none, of neighbours.

    Parts of more than ``merged_rows_max`` stay, so a merge is short however large the state is. Rows aren't checked
    without ``form``. With ``wait``, parts that are less than a piece together are merged when there are eight.
    """

    kept: Kept
    merged_rows_max: int
    merge: Callable[[Sequence[P]], Sequence[P]]
    form: StateForm | None = None
    wait: bool = field(default=False, kw_only=True)
    parts: list[P] = field(default_factory=list, init=False)
    changed: bool = field(default=False, init=False)  # whether the manifest in the database is out of date
    kept_form: StateForm | None = field(default=None, init=False)  # of the rows that are kept, and of those that come
    _gone: list[P] = field(default_factory=list, init=False)
    _next_number: int = field(default=0, init=False)

    def number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def push(self, part: P) -> None:
        self.parts.append(part)
        number, rows = 1, part.living
        for older in reversed(self.parts[:-1]):
            if older.living >= 2 * rows or older.living + rows > self.merged_rows_max:
                break
            number, rows = number + 1, rows + older.living
        if number > 1 and not (self.wait and number < _SMALL_PARTS_MAX and rows < pieces.PIECE_ROWS):
            self.replace([*self.parts[:-number], *self.merge(self.parts[-number:])])
        self.changed = True

    def replace(self, parts: Sequence[P]) -> None:
        """Hold these parts instead. The next ``persist`` erases the pieces that none of them has."""
        used = {id(part.pieces) for part in parts}
        self._gone += [part for part in self.parts if part.pieces.stored and id(part.pieces) not in used]
        self.parts = list(parts)

    def clear(self) -> None:
        self.replace([])
        self.changed = True

    def form_change(self) -> list[bytes]:
        """The change that says of which form the rows after it are, if it isn't in the changelog yet."""
        if self.form is None or self.kept_form == (now := grown(self.kept_form, self.form)):
            return []
        self.kept_form = now
        return [FORM + now.written()]

    def whole_form(self) -> list[bytes]:
        """The change that says of which form all rows are, for a store that gets them; none if there never were any."""
        if self.form is None or self.kept_form is None:
            return []
        return [FORM + grown(self.kept_form, self.form).written()]

    def apply_form(self, operation: bytes, body: bytes) -> bool:
        """Apply such a change, if ``operation`` says that it is one. Raises ``DeclarationError`` for an unfit form."""
        if operation == FORM:
            self._take_form(StateForm.read(body))
            self.changed = True
            return True
        if self.form is not None and self.kept_form is None:
            raise other_kind(self.kept.store)
        return False

    @property
    def other_columns(self) -> bool:
        return self.form is not None and self.kept_form is not None and self.kept_form != self.form

    def _take_form(self, form: StateForm | None) -> None:
        if form is not None and self.form is not None:
            check_form(self.kept.store, form, self.form)
        # Rows that come from several stores may be of several forms.
        self.kept_form = form if form is None else grown(self.kept_form, form)

    def attach(self, view: View, kind: type[M], format_: int) -> M | None:
        """Raises ``DeclarationError`` if the rows can't be opened now."""
        self.kept.view = view
        data = view.get(MANIFEST)
        if data is None:
            if next(view.range(b"", None), None) is not None:
                raise other_kind(self.kept.store)
            return None
        head = msgspec.json.decode(data, type=Manifest)
        self._take_form(head.form)
        if head.format != format_:
            raise unknown_format(self.kept.store, head.format, format_)
        return msgspec.json.decode(data, type=kind)

    def restore(self, parts: Sequence[P]) -> None:
        self.parts = list(parts)
        self._next_number = max((part.pieces.number + 1 for part in parts), default=0)

    def persist(self, writes: Writes, manifest: Callable[[], Manifest]) -> None:
        for part in self._gone:
            part.erase(writes)
        for part in self.parts:
            part.write(writes)
        writes.put(MANIFEST, msgspec.json.encode(manifest()))
        self._gone = []
        self.changed = False


_PIECES = 4


class Crowd(NamedTuple):
    """How many rows each time has; the times ascend."""

    times: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    def stops(self) -> list[int]:
        """Times to stop at, ascending: a lot is due from one to the next, or more if it is all of the same time."""
        stops, there = [], 0
        before = None
        for time, count in zip(self.times.tolist(), self.counts.tolist(), strict=True):
            if before is not None and there + count > lot_rows():
                stops.append(before)
                there = 0
            there += count
            before = time
        return stops


EMPTY = Crowd(np.empty(0, np.int64), np.empty(0, np.int64))


def lot_rows() -> int:
    return _PIECES * pieces.PIECE_ROWS


def crowd(times: Iterable[pl.Series]) -> Crowd:
    found = [each.value_counts(name="__rows") for each in times]
    if not found:
        return EMPTY
    rows = concat_rows([each.rename({each.columns[0]: "time"}) for each in found])
    counted = rows.group_by("time").agg(pl.col("__rows").cast(pl.Int64).sum()).sort("time")
    return Crowd(counted.get_column("time").to_numpy(), counted.get_column("__rows").to_numpy())


def in_lots(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    waiting: list[pl.DataFrame] = []
    rows = 0
    for frame in frames:
        if waiting and rows + frame.height > lot_rows():
            yield concat_rows(waiting)
            waiting, rows = [], 0
        waiting.append(frame)
        rows += frame.height
    if waiting:
        yield concat_rows(waiting)
