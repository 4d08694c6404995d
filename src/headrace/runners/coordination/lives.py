"""Classify how the lives of containers end, and decide when too many have failed in a row. Pure.

A container that dies silently is restarted. That fixes external causes: a crashed machine, a kill, a lost executor. It
doesn't fix a function that ends its process, because the next life takes the same message again. The difference is
progress: after a life with a commit, the next one begins at another message.
"""

from __future__ import annotations

from headrace.core.retry import Retry
from headrace.runners.coordination.error_report import ErrorReport
from headrace.runners.coordination.messages import LastWords

_PAUSES = Retry(attempts=None, first_ms=500, longest_ms=5000)


def pause_ms(failures: int, chance: float) -> int:
    """Return how long a container waits after this many failures in a row; ``chance`` is a random number in [0, 1]."""
    return 0 if failures < 2 else round(_PAUSES.pause_ms(failures - 1, chance) or 0)


def death(container: int, host: str, peak_bytes: int, words: LastWords | None, *, frozen: bool) -> ErrorReport:
    """Return the error of a container that died silently. ``frozen``: it was killed because it seemed dead."""
    words = words or LastWords()
    how = words.how or "was killed from outside, or native code ended it"
    if frozen and not words.how:
        how = "sent no heartbeats and was killed"
    memory = f"; it had used up to {peak_bytes / 2**30:.1f} GiB of memory" if peak_bytes and not words.how else ""
    where = f"\n  in the function of step {words.step!r}, task {words.task}" if words.step else ""
    place = f", on {words.place}" if words.place else ""
    return ErrorReport(
        type="UserFunctionError" if words.by_itself and words.step else "InfrastructureError",
        message=f"container {container} on {host} {how}{memory}{where}{place}",
        hint=_hint(words, frozen),
        fault="user" if words.by_itself and words.step else "environment",
        retry=True,
    )


def _hint(words: LastWords, frozen: bool) -> str:
    if words.by_itself:
        return "fix the code that ends the process; a function that can't continue should raise an error"
    if frozen and not words.how:
        return "look at the machine: it may be overloaded, or native code holds Python's lock"
    return (
        "if memory ran out, the kernel's log says so (`dmesg`): give the machine or the executor more memory, or run "
        "fewer containers on it"
    )
