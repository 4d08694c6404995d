"""What a power cut could take, and waiting until it can't: for many places at once, and once for each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

SYNCS_AT_ONCE = 8
"""How many places are waited for at the same time: a file system writes its journal once for several of them."""


@dataclass(frozen=True, slots=True)
class Unsynced:
    """Something that a power cut could take.

    ``wait`` waits until it survives, on any thread, and raises ``IndeterminateWriteError``. What is at an equal
    ``place`` survives, too. Then ``done`` is called, on the thread that uses the consumer or producer.
    """

    place: Hashable
    wait: Callable[[], None]
    done: Callable[[], None]


def sync_all(unsynced: Iterable[Unsynced], pool: ThreadPoolExecutor | None = None) -> None:
    """Wait until all of it survives a power cut; in this pool, if there are several places."""
    places: dict[Hashable, list[Unsynced]] = {}
    for each in unsynced:
        places.setdefault(each.place, []).append(each)
    waits = [alike[0].wait for alike in places.values()]
    if pool is None or len(waits) < 2:
        for wait in waits:
            wait()
    else:
        for waited in [pool.submit(wait) for wait in waits]:
            waited.result()
    for alike in places.values():
        for each in alike:
            each.done()
