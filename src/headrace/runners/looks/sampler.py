"""What the threads of this process do: a thread looks again and again at their stacks, and counts them.

Only the standard library is used, and nothing is changed in what is looked at. A look holds all threads up for some
tens of microseconds. Stacks are text in the collapsed format that flame graphs are drawn from: the thread, then frames
from the outermost to the innermost, with semicolons between.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import PurePath
from types import FrameType

from headrace.core.thread_stacks import thread_stacks
from headrace.runners.looks.results import SECONDS_MAX, Profiled

EVERY_S = 0.01
FRAMES_MAX = 100
NAME_CHARS_MAX = 120
STACKS_MAX = 2000
TEXT_CHARS_MAX = 1 << 20
"""Further stacks are counted together, because so many different ones don't show where time goes."""

OTHERS = "(other stacks)"


class Sampler:
    """One profile of this process, from its construction on, for at most ``SECONDS_MAX``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = min(max(seconds, EVERY_S), SECONDS_MAX)
        self._until = time.monotonic() + self._seconds
        self._stacks: Counter[str] = Counter()
        self._samples = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-profile", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """It isn't over yet."""
        return self._thread.is_alive()

    def result(self) -> Profiled:
        """What was found; while it runs, only for how long it still does."""
        if self.running:
            return Profiled(left_ms=max(1, round(1000 * (self._until - time.monotonic()))))
        found: Counter[str] = Counter()
        size = 0
        for stack, times in self._stacks.most_common():
            size += len(stack)
            found[stack if size <= TEXT_CHARS_MAX else OTHERS] += times
        return Profiled(stacks=dict(found), samples=self._samples)

    def close(self) -> None:
        """End it now. Idempotent."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        own = threading.get_ident()
        while time.monotonic() < self._until and not self._closing.wait(EVERY_S):
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, frame in thread_stacks().items():
                if ident != own:
                    stack = f"{names.get(ident, 'a thread')};{collapsed(frame)}"
                    if stack not in self._stacks and len(self._stacks) >= STACKS_MAX:
                        stack = OTHERS
                    self._stacks[stack] += 1
            self._samples += 1


def collapsed(frame: FrameType | None) -> str:
    """The stack that ends in a frame, the outermost first."""
    frames: list[str] = []
    while frame is not None and len(frames) < FRAMES_MAX:
        frames.append(_name(frame))
        frame = frame.f_back
    return ";".join(reversed(frames))


def _name(frame: FrameType) -> str:
    code = frame.f_code
    where = f" ({PurePath(code.co_filename).name}:{code.co_firstlineno})"
    name = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}"[:NAME_CHARS_MAX]
    return (name + where).replace(";", ",")
