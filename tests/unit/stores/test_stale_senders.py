"""Generations of one task send, copy and delete at the same time: no trimmed changelog is left without its snapshots.

Each step of each sender is one call to the store, and any other may come in between. A call may fail although it has
its effect, or have it long after. Stale generations have no more commits, but send what they had to send.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headrace.core.errors import UnavailableError
from headrace.stores import snapshots as layout
from headrace.stores.snapshots import SNAPSHOTS_KEPT, Manifest, trimmable
from headrace.stores.transfer import Calls, Fetch, Sender, SnapshotFile
from simulator.objects import MemoryObjects

FOLDER = "t/"
RUNS = 150
STEPS = 250


class Late(MemoryObjects):
    """Some calls to it have their effect, and fail; some fail, and have it later."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._failing = chance.choice((0.0, 0.1, 0.3))
        self.late: list[Callable[[], object]] = []

    def _call(self, call: Callable[[], Any]) -> Any:
        if self._chance.random() >= self._failing:
            return call()
        if self._chance.random() < 0.5:
            call()
        else:
            self.late.append(call)
        raise UnavailableError("an answer was lost")

    def create(self, name, data):
        return self._call(lambda: MemoryObjects.create(self, name, data))

    def put(self, name, size, chunks):
        data = b"".join(chunks())
        self._call(lambda: MemoryObjects.put(self, name, size, partial(iter, [data])))

    def copy(self, source, target):
        return self._call(lambda: MemoryObjects.copy(self, source, target))

    def delete(self, names):
        self._call(lambda: MemoryObjects.delete(self, names))


class Incarnation:
    def __init__(self, world: World, generation: int, files: dict[str, bytes], known: set[int]) -> None:
        self.world, self.generation, self.files, self.known = world, generation, files, known
        self.sender = Sender(Calls(world.store, lambda text: None, world.chance), FOLDER)
        self.waiting: tuple[int, dict[str, bytes]] | None = None
        self._work: Any = None

    def step(self) -> None:
        """Make the next call."""
        if self._work is None and self.waiting is not None:
            (offset, files), self.waiting = self.waiting, None
            some = [SnapshotFile(n, len(d), (n, d), partial(iter, [d])) for n, d in files.items()]
            self._work = self.sender.send(offset, self.generation, offset, some, self._arrived)
        try:
            if self._work is not None:
                next(self._work)
        except (StopIteration, UnavailableError):
            self._work = None

    def _arrived(self, manifest: Manifest) -> None:
        self.known.add(manifest.offset)
        self.world.oldest = max(self.world.oldest, trimmable(self.known) or 0)


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = Late(self.chance)
        self.oldest = self.offset = self.newest = 0
        self._made = 0
        self.all = [Incarnation(self, 1, {}, set())]

    def run(self) -> None:
        actions = [self.commit, self.begin, self.land, *([self.work] * 12)]
        for _ in range(STEPS):
            self.chance.choice(actions)()
            self.check()

    def commit(self) -> None:
        """The current one takes a snapshot: some files are new, and at times all."""
        one = self.all[-1]
        self.offset += 10
        merged = self.chance.random() < 0.2
        for name in "abc":
            if merged or name not in one.files or self.chance.random() < 0.3:
                self._made += 1
                one.files[name] = b"%d" % self._made
        one.waiting = self.offset, dict(one.files)

    def begin(self) -> None:
        """A new generation begins, with what is in the store or where the one before has been."""
        if self.chance.random() < 0.6:
            return
        before = self.all[-1]
        self.all = self.all[-3:]
        if self.chance.random() < 0.3:
            one = Incarnation(self, before.generation + 1, dict(before.files), set())
            self.finish(one.sender.look(self.offset), lambda manifest: one.known.add(manifest.offset))
        else:
            one = Incarnation(self, before.generation + 1, {}, set())
            calls, folder = Calls(self.store, lambda text: None, self.chance), _Folder(one.files)

            def came(manifest: Manifest) -> None:
                one.known.add(manifest.offset)
                one.sender.take_base(manifest)

            self.finish(Fetch(calls, FOLDER, folder, one_by_one, 1).newest(-1, ()), came)
        self.all.append(one)

    def finish(self, work: Any, found: Callable[[Manifest], None]) -> None:
        """Do it, while others work."""
        try:
            while True:
                next(work)
                if self.chance.random() < 0.5:
                    self.work()
                    self.check()
        except StopIteration as stop:
            if stop.value is not None:
                found(stop.value)

    def work(self) -> None:
        self.chance.choice(self.all).step()

    def land(self) -> None:
        if self.store.late:
            self.store.late.pop(self.chance.randrange(len(self.store.late)))()

    def check(self) -> None:
        complete = [manifest.offset for manifest in self.complete()]
        newest = max(complete, default=0)
        assert newest >= self.newest, f"the newest snapshot, at {self.newest}, isn't complete any more"
        self.newest = newest
        if self.oldest:
            left = sum(offset >= self.oldest for offset in complete)
            assert left >= SNAPSHOTS_KEPT, f"the changelog begins at {self.oldest}, and snapshots are at {complete}"

    def complete(self) -> list[Manifest]:
        objects = self.store.objects
        names = layout.manifest_names(name.removeprefix(FOLDER) for name in objects)
        return [m for m in (Manifest.decode(objects[FOLDER + name]) for name in names) if self._good(m)]

    def _good(self, manifest: Manifest) -> bool:
        found = {file: self.store.objects.get(FOLDER + file.object) for file in manifest.files}
        return all(d is not None and hashlib.sha256(d).hexdigest() == file.sha256 for file, d in found.items())


def one_by_one(works: Any) -> Any:
    came = []
    for work in works:
        came.append((yield from work))
    return came


class _Folder:
    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def begin(self, snapshot):
        self._files.clear()

    def take(self, name, start, data):
        self._files[name] = self._files.get(name, b"")[:start] + data

    def complete(self):
        pass


@pytest.mark.parametrize("block", range(4))
def test_snapshots_survive_stale_senders(block: int):
    for seed in range(block * RUNS, (block + 1) * RUNS):
        World(seed).run()


def deletes_newer(name, generation, kept):
    by = layout.generation_of(name)
    return by is not None and (by >= generation or kept == SNAPSHOTS_KEPT)


def deletes_early(name, generation, kept):
    by = layout.generation_of(name)
    return by is not None and by <= generation


def refers_to_others(self, manifest):
    self._sent |= {file.content: file.object for file in manifest.files}


def same_generation(self, generation):
    self._generation = generation


def without_generation(generation, number, file):
    return NAME(0, number, file)


def believed(self, source, name):
    yield from COPIED(self, source, name)
    return True


def number_again(self, file, content):
    self._number = max(0, self._number - 1)
    return BRING(self, file, content)


NAME, COPIED, BRING = layout.object_name, Sender._copied, Sender._bring

MISTAKES: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "a stale sender deletes what is newer": ((layout, "_may_delete", deletes_newer),),
    "what is older is deleted with one snapshot": ((layout, "_may_delete", deletes_early),),
    "a manifest refers to another generation's objects": (
        (Sender, "take_base", refers_to_others),
        (Sender, "_begin", same_generation),
    ),
    "objects aren't named by generation": ((layout, "object_name", without_generation),),
    "a failed copy counts": ((Sender, "_copied", believed),),
    "a name is used twice": ((Sender, "_bring", number_again),),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake: str, monkeypatch: pytest.MonkeyPatch):
    for owner, name, value in MISTAKES[mistake]:
        monkeypatch.setattr(owner, name, value)
    with pytest.raises((AssertionError, UnavailableError)):
        for seed in range(8 * RUNS):
            World(seed).run()
