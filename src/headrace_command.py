"""What the ``headrace`` command runs first: beside the package, whose import takes a second, to be there before it.

Ctrl-C in that second ends the command at once and without a word; there is nothing to put in order yet. So it does when
the command is over, while the interpreter ends, which would print a traceback.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys

_INTERRUPTED = 130
_NEW_OBJECTS = 10_000
"""So many new objects are worth a look for garbage among them; Python's 700 are meant for smaller programs."""
_OF_APPS = frozenset({"plan", "run", "backfill", "offsets"})
"""These commands load an app, so they need all of the API."""


def main() -> int:
    """The command line; returns its exit code."""
    heard = signal.getsignal(signal.SIGINT)
    _at_once(heard)
    gc.disable()  # nothing that imports make is garbage, and looking for it takes a tenth of their time
    from headrace.operate.cli.main import main as command

    if not _OF_APPS.isdisjoint(sys.argv) and "--help" not in sys.argv:
        import headrace.api.app  # noqa: F401  # here, because Python may lose an interrupt while it imports

    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)  # a command imports more
    gc.enable()
    try:
        signal.signal(signal.SIGINT, heard)
        code = command()
        _at_once(heard)
    except KeyboardInterrupt:
        _at_once(heard)
        return _INTERRUPTED
    # In the very end Python would restore the system's handling, by which a signal kills the process.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    return code


def _at_once(heard: object) -> None:
    if heard is signal.default_int_handler:  # else whoever started us doesn't want it to be heard
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
