"""Where all threads of this process are.

While Python collects the frames of all threads, it holds a lock that a starting thread waits for without letting others
run. If the garbage collector starts in the meantime, and calls Python code (``gc.callbacks``, a ``__del__``), another
thread may get its turn, and then the whole process waits forever. So the collector is off in the meantime.
"""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType

_alone = threading.Lock()


def thread_stacks() -> dict[int, FrameType]:
    """Return the innermost frame of each thread."""
    with _alone:  # or one thread could turn the collector on again while another needs it off
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if collects:
                gc.enable()
