"""Timers of a low-level task: a durable queue in the order of times, over a key-value store. Otherwise pure.

A timer is an identity (bytes of a name and a key) on an axis, with one time in milliseconds from 0 on. The store has,
as golden bytes, ``axis (E or P) | time u64 | identity -> nothing``, in the order of times, and ``axis (e or p) |
identity -> time u64``, to find, move and delete it. A heap in memory has all timers up to a horizon. Those that were
moved or deleted stay in it until they come up, and are recognised by the store's second entry.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import polars as pl
from typing_extensions import override

from headrace.api.tasks import TimerAxis
from headrace.stores.base import Share, readable
from headrace.stores.keyvalue import Contents, Dealt, KeyValueStore

HEAD_MAX = 1024
TIME_MAX = (1 << 63) - 1
_TIME = struct.Struct(">Q")
_PREFIXES: dict[TimerAxis, tuple[bytes, bytes]] = {"event": (b"E", b"e"), "processing": (b"P", b"p")}
_AXES = {by_time: axis for axis, (by_time, _) in _PREFIXES.items()}
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder().decode
_PLAIN = (str, int, bytes, float, bool, type(None))


def identity_of(key: Any, name: str) -> bytes:
    if type(key) not in _PLAIN:
        _check_key(key)
    try:
        return _ENCODE((name, key))
    except OverflowError as error:
        raise TypeError(f"{key!r:.100} has more than 64 bits") from error


def named(identity: bytes) -> tuple[str, Any]:
    name, key = _DECODE(identity)
    return name, _as_tuples(key) if type(key) is list else key


def _check_key(key: Any) -> None:
    if isinstance(key, tuple):
        for part in key:
            _check_key(part)
    elif type(key) not in _PLAIN:
        raise TypeError(f"{key!r:.100} ({type(key).__name__}) can't be the key of a timer")


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value


class Timers:
    """The timers of one task, on both axes."""

    def __init__(self, id_: str, head_max: int = HEAD_MAX, columns: Mapping[str, pl.DataType] | None = None) -> None:
        self.store = KeyValueStore(id_)
        self.store.contents = _TimerContents(id_, columns or {})
        self._axes = {axis: _Axis(self.store, *prefixes, head_max) for axis, prefixes in _PREFIXES.items()}

    def __getitem__(self, axis: TimerAxis) -> _Axis:
        return self._axes[axis]


class _TimerContents(Contents):
    """What the entries of timers mean: their keys are the values of the columns by which the messages are shuffled."""

    def __init__(self, id_: str, columns: Mapping[str, pl.DataType]) -> None:
        self._id = id_
        self._columns = columns

    @override
    def dealt(self, share: Share, keys: Sequence[bytes], values: Sequence[bytes]) -> Dealt:
        types = {name: self._columns[name] for name in share.columns if name in self._columns}
        rows = [self._values(share, named(_identity_in(key))[1], types) for key in keys]
        # The hash of such an integer is that of an Int64, and a timer may have been set for a larger one.
        narrow = {name for name, dtype in types.items() if dtype.is_integer() and dtype != pl.UInt64}
        widest = {name: pl.Int64() if name in narrow else dtype for name, dtype in types.items()}
        return share.mask(self._id, pl.DataFrame(rows, widest, orient="row")), None

    @override
    def shown(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pl.DataFrame:
        found = []
        for key in keys:
            axis = _AXES.get(key[:1])
            if axis is not None:
                name, of = named(_identity_in(key))
                found.append((axis, _TIME.unpack_from(key, 1)[0], name, of if isinstance(of, str) else repr(of)))
        columns = {"axis": pl.String, "__time": pl.Int64, "name": pl.String, "key": pl.String}
        return readable(pl.DataFrame(found, columns, orient="row"))

    def _values(self, share: Share, key: Any, types: Mapping[str, pl.DataType]) -> tuple[Any, ...]:
        parts = key if isinstance(key, tuple) and len(types) != 1 else (key,)
        if len(parts) != len(types) or not all(map(_fits, parts, types.values())):
            wanted = ", ".join(f"{name}: {dtype}" for name, dtype in types.items())
            raise share.undealt(self._id, f"a timer was set for {key!r:.100}, and messages are shuffled by {wanted}")
        return parts


def _fits(value: Any, dtype: pl.DataType) -> bool:
    if value is None:
        return True
    if dtype.is_integer():
        low, high = (0, 1 << 64) if dtype == pl.UInt64 else (-(1 << 63), 1 << 63)
        return type(value) is int and low <= value < high
    if dtype.is_float():
        return type(value) in (float, int)
    return {pl.String: str, pl.Binary: bytes, pl.Boolean: bool}.get(type(dtype)) is type(value)


def _identity_in(key: bytes) -> bytes:
    return key[1 + _TIME.size :] if key[:1] in _AXES else key[1:]


class _Axis:
    """The timers of one axis; ``pop`` removes and returns the first one, if it is due at ``through`` or before."""

    def __init__(self, store: KeyValueStore, by_time: bytes, by_identity: bytes, head_max: int) -> None:
        self._store = store
        self._by_time = by_time
        self._by_identity = by_identity
        self._head_max = head_max
        self._head: list[tuple[int, bytes]] = []
        self._horizon: tuple[int, bytes] | None = (-1, b"")  # up to here all entries are in the heap; None: all are

    def set(self, identity: bytes, at: int) -> None:
        before = self.time_of(identity)
        if before == at:
            return
        time = _TIME.pack(at)
        if before is not None:
            self._store.delete(self._by_time + _TIME.pack(before) + identity)
        self._store.put(self._by_time + time + identity, b"")
        self._store.put(self._by_identity + identity, time)
        if self._horizon is None or (at, identity) <= self._horizon:
            heapq.heappush(self._head, (at, identity))
            if len(self._head) > 2 * self._head_max:
                self._head = heapq.nsmallest(self._head_max, self._head)  # the rest is in the store
                self._horizon = self._head[-1]

    def delete(self, identity: bytes) -> None:
        before = self.time_of(identity)
        if before is not None:
            self._remove(before, identity)

    def time_of(self, identity: bytes) -> int | None:
        time = self._store.get(self._by_identity + identity)
        return None if time is None else int(_TIME.unpack(time)[0])

    def earliest(self) -> int | None:
        while True:
            while self._head:
                time, identity = self._head[0]
                if self.time_of(identity) == time:
                    return time
                heapq.heappop(self._head)
            if self._horizon is None:
                return None
            self._read_on()

    def pop(self, through: int) -> tuple[int, bytes] | None:
        time = self.earliest()
        if time is None or time > through:
            return None
        first = heapq.heappop(self._head)
        self._remove(*first)
        return first

    def _remove(self, time: int, identity: bytes) -> None:
        self._store.delete(self._by_time + _TIME.pack(time) + identity)
        self._store.delete(self._by_identity + identity)

    def _read_on(self) -> None:
        if self._horizon is None:
            return
        time, identity = self._horizon
        start = self._by_time if time < 0 else self._by_time + _TIME.pack(time) + identity + b"\x00"
        stop = bytes([self._by_time[0] + 1])
        entries = islice(self._store.range(start, stop), self._head_max)
        self._head = [(_TIME.unpack(key[1:9])[0], key[9:]) for key, _ in entries]
        self._horizon = self._head[-1] if len(self._head) == self._head_max else None
