"""Ctrl-C as a flag, instead of an exception in the middle of a write.

An exception between a write and the record of it would make the next flush write it again. So commands that write or
follow check ``Interrupt`` at safe places instead. A second Ctrl-C raises ``KeyboardInterrupt``, as usual.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from typing_extensions import override

from headrace.runners.interrupts import Interrupts


class Interrupt(Interrupts):
    """While entered, the first SIGINT or SIGTERM sets a flag and makes ``fd`` readable. For the main thread only."""

    def __init__(self) -> None:
        super().__init__()
        self._read, self._write = -1, -1

    @property
    def fd(self) -> int:
        """A descriptor for ``select`` that becomes readable when the signal comes."""
        return self._read

    @override
    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        self.drain_by(self._ring)
        super().__enter__()
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        os.close(self._read)
        os.close(self._write)

    def _ring(self) -> None:
        os.write(self._write, b"!")
