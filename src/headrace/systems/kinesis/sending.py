"""Records on their way into a stream, in order for each key: which may go next, and what happened to them. Pure.

Kinesis takes many records in one call, and may refuse some of them while it takes later ones. So a call has each key
at most once, and a key whose record was refused waits until that record is there. Other keys don't wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from headrace.systems.kinesis.api import PUT_BYTES, PUT_RECORDS, Put, PutResult

WAITING_MAX, WAITING_BYTES_MAX = 5 * PUT_RECORDS, 2 * PUT_BYTES
"""How many records are looked at to fill a call with different keys."""


def size_of(put: Put) -> int:
    """How many bytes of a call's and a record's limits it needs."""
    return len(put.data) + len(put.key.encode())


class Sending:
    """Records on their way. ``call`` and ``answered`` take turns; what was refused waits for ``again``."""

    def __init__(self, records: Iterable[Put]) -> None:
        self._coming = iter(records)
        self._waiting: dict[str, deque[Put]] = {}
        self._count = self._bytes = 0
        self._ready: deque[str] = deque()
        self._refused: list[str] = []
        self.taken = 0
        """How many records Kinesis has taken."""
        self.error = ""
        """Why the last refused record was refused."""
        self._fill()

    @property
    def done(self) -> bool:
        """Whether all records have arrived."""
        return not self._count

    @property
    def refused(self) -> bool:
        """Something was refused, and waits for ``again``."""
        return bool(self._refused)

    def call(self) -> list[Put]:
        """Return what may go next, each key once, within the limits of a call; nothing if all keys were refused."""
        found: list[Put] = []
        size = 0
        while self._ready and len(found) < PUT_RECORDS:
            put = self._waiting[self._ready[0]][0]
            size += size_of(put)
            if found and size > PUT_BYTES:
                break
            found.append(put)
            self._ready.popleft()
        return found

    def answered(self, call: Sequence[Put], results: Sequence[PutResult]) -> int:
        """Note what happened to each record of the last call; return how many were refused."""
        taken = self.taken
        for put, result in zip(call, results, strict=True):
            if result.error:
                self.error = result.error
                self._refused.append(put.key)
                continue
            records = self._waiting[put.key]
            records.popleft()
            if records:
                self._ready.append(put.key)
            else:
                del self._waiting[put.key]
            self._count -= 1
            self._bytes -= size_of(put)
            self.taken += 1
        self._fill()
        return len(call) - (self.taken - taken)

    def failed(self, call: Sequence[Put], error: str) -> int:
        """Note that the last call failed, so that nothing is known to be there: all of it was refused."""
        return self.answered(call, [PutResult(error=error)] * len(call))

    def again(self) -> None:
        """Let what was refused go next."""
        self._ready.extendleft(reversed(self._refused))
        self._refused.clear()

    def _fill(self) -> None:
        while self._count < WAITING_MAX and self._bytes < WAITING_BYTES_MAX:
            put = next(self._coming, None)
            if put is None:
                return
            self._count += 1
            self._bytes += size_of(put)
            records = self._waiting.setdefault(put.key, deque())
            records.append(put)
            if len(records) == 1:
                self._ready.append(put.key)
