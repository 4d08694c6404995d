"""Mistakes with a store of snapshots: who deletes what, and what a trim relies on.

More of them, on a model of the store alone, are in ``tests/unit/stores/test_stale_senders.py``.
"""

from __future__ import annotations

from functools import partial

from mutant_kit import mutant

from headrace.stores import snapshots as layout
from headrace.stores.transfer import Sender
from headrace.task.state import depot as remote
from headrace.task.state.depot import RemoteSnapshots
from headrace.task.state.disk import Snapshot
from simulator.run import OBJECT_SHAPES, Parts

SHAPES = "shuffle+objects", "wide+objects", "diamond+objects"


def patched(name, says, *patches, first_seed=1):
    mutant(name, says, Parts(), *SHAPES, first_seed=first_seed, patches=patches)


def whoever_wrote_it(name, generation, kept):
    by = layout.generation_of(name)
    return by is not None and (by >= generation or kept == layout.SNAPSHOTS_KEPT)


patched(
    "a stale sender deletes what is newer",
    "what its own manifests don't name",
    (layout, "_may_delete", whoever_wrote_it),
    first_seed=18,
)


def with_one_snapshot(name, generation, kept):
    by = layout.generation_of(name)
    return by is not None and by <= generation


patched(
    "older snapshots go too early",
    "what older generations wrote is deleted with one snapshot of its own",
    (layout, "_may_delete", with_one_snapshot),
)


def one_is_kept(names, generation, complete):
    return GARBAGE(names, generation, complete[-1:])


GARBAGE = layout.garbage
patched("one snapshot is kept", "changelogs are trimmed to the last but one", (layout, "garbage", one_is_kept))


def named_by_number(generation, number, file):
    return NAME(0, number, file)


NAME = layout.object_name
patched(
    "objects aren't named by generation", "two generations write one object", (layout, "object_name", named_by_number)
)


def manifest_first(self, offset, generation, version, files, done):
    """Says what it is going to send, and sends it then."""
    later = []

    def put_off(file, content):
        self._number += 1
        name = layout.object_name(generation, self._number, file.name)
        later.append(partial(self.calls.store.put, self.folder + name, file.size, file.chunks))
        self._sent[content] = name
        yield 0.0
        return name

    def all_there(manifest):
        done(manifest)

    self._bring = put_off
    yield from SEND(self, offset, generation, version, files, all_there)
    for put in later:
        yield from self.calls.tried(put)


SEND = Sender.send
patched("the manifest comes first", "a snapshot is taken for complete before it is", (Sender, "send", manifest_first))


def taken_is_there(self, snapshot):
    TAKEN(self, snapshot)
    self._note(lambda: self._complete.add(snapshot.local.offset))


TAKEN = RemoteSnapshots.taken
patched(
    "taken is sent",
    "the changelog is trimmed before a snapshot has arrived",
    (RemoteSnapshots, "taken", taken_is_there),
)


def to_the_newest(complete):
    return max(complete, default=None)


patched("trimmed to the newest", "only one snapshot is left for the changelog", (remote, "trimmable", to_the_newest))


def the_newest_in_the_folder(self, snapshot):
    TAKEN(self, Snapshot.at(self._disk.snapshots(self._local)[-1]))


mutant(
    "the newest snapshot is sent",
    "it may be of its replacement, which sends it as well",
    Parts(),
    *OBJECT_SHAPES,
    first_seed=241,
    patches=((RemoteSnapshots, "taken", the_newest_in_the_folder),),
)
