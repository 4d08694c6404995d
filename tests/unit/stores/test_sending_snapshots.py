"""Snapshots are sent and fetched: what crosses the network, and what happens when the store fails in between."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from headrace.core.errors import CorruptLogError, DataError, UnavailableError
from headrace.core.ids import FIRST_TIMELINE, TaskName
from headrace.life.changelogs import stored_snapshots
from headrace.stores import transfer as fetching
from headrace.stores.snapshots import SNAPSHOTS_KEPT, Manifest
from headrace.stores.transfer import (
    AGAIN_MS,
    PIECE_BYTES,
    RETRY,
    Calls,
    Fetch,
    Job,
    Sender,
    SnapshotFile,
    Waiting,
    Work,
)
from simulator.objects import MemoryObjects

FOLDER = "snapshots/orders/by-member-0/"


class Counted(MemoryObjects):
    """Records the calls, and fails where a test wants that: before it does something, or after.

    ``longest``: so many bytes can be read in the time that a call has.
    """

    longest = PIECE_BYTES

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.before = self.after = 0

    def _ask(self, what: str, call: Any) -> Any:
        self.asked.append(what)
        if self.before:
            self.before -= 1
            raise UnavailableError("no answer")
        answer = call()
        if self.after:
            self.after -= 1
            raise UnavailableError("the answer was lost")
        return answer

    def create(self, name, data):
        return self._ask("create", lambda: MemoryObjects.create(self, name, data))

    def put(self, name, size, chunks):
        return self._ask(f"put {name.rpartition('-')[2]}", lambda: MemoryObjects.put(self, name, size, chunks))

    def read(self, name, start, length):
        if length > self.longest:
            raise UnavailableError("it takes too long")
        what = f"read {name.rpartition('-')[2]} {start}+{length}"
        return self._ask(what, lambda: MemoryObjects.read(self, name, start, length))

    def copy(self, source, target):
        return self._ask(f"copy {target.rpartition('-')[2]}", lambda: MemoryObjects.copy(self, source, target))


@dataclass
class Folder:
    """Takes what is fetched."""

    files: dict[str, bytes] = field(default_factory=dict)
    name: str = ""
    done: bool = False

    def begin(self, snapshot: str) -> None:
        self.files, self.name = {}, snapshot

    def take(self, name: str, start: int, data: bytes) -> None:
        assert start == len(self.files.get(name, b""))
        self.files[name] = self.files.get(name, b"") + data

    def complete(self) -> None:
        self.done = True


def one_by_one(works: Any) -> Any:
    came = []
    for work in works:
        came.append((yield from work))
    return came


class Scene:
    def __init__(self) -> None:
        self.store = Counted()
        self.warnings: list[str] = []
        self.arrived: list[Manifest] = []
        self.waited = 0.0
        self.calls = Calls(self.store, self.warnings.append, random.Random(1))
        self.sender = Sender(self.calls, FOLDER)

    def do(self, work: Work[Any]) -> Any:
        try:
            while True:
                self.waited += next(work)
        except StopIteration as stop:
            return stop.value

    def send(self, offset: int, generation: int, **files: bytes) -> list[str]:
        """Send a snapshot; return what was asked of the store for it."""
        self.store.asked.clear()
        some = [SnapshotFile(n, len(data), (n, data), partial(iter, [data])) for n, data in files.items()]
        self.do(self.sender.send(offset, generation, offset * 10, some, self.arrived.append))
        return list(self.store.asked)

    def fetch(self, above: int = -1, unfit: tuple[str, ...] = ()) -> tuple[Manifest | None, Folder, Fetch]:
        self.folder = folder = Folder()
        fetch = Fetch(self.calls, FOLDER, folder, one_by_one, 2)
        return self.do(fetch.newest(above, unfit)), folder, fetch

    def fetching(self) -> Work[Manifest | None]:
        self.folder = Folder()
        return Fetch(self.calls, FOLDER, self.folder, one_by_one, 2).newest(-1, ())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_was_sent_is_not_sent_again(scene: Scene):
    assert scene.send(10, 1, one=b"1", two=b"2") == ["put one", "put two", "create"]
    assert scene.send(20, 1, one=b"1", three=b"3") == ["put three", "create"]
    manifest, folder, _ = scene.fetch()
    assert manifest == scene.arrived[-1]
    assert (folder.files, folder.done) == ({"one": b"1", "three": b"3"}, True)


def test_another_generation_copies_within_the_store(scene: Scene):
    scene.send(10, 1, one=b"1", two=b"2")
    assert scene.send(20, 2, one=b"1", three=b"3") == ["copy one", "put three", "create"]
    assert {file.object.split("/")[1] for file in scene.arrived[-1].files} == {"0000000002"}


@pytest.mark.parametrize("found", ["looked for", "begun from"])
def test_another_incarnation_copies_what_is_alike(scene: Scene, found: str):
    scene.send(10, 1, one=b"1", two=b"2")
    scene.sender = Sender(scene.calls, FOLDER)
    if found == "looked for":
        assert scene.do(scene.sender.look(9)) is None
        assert scene.do(scene.sender.look(10)) == scene.arrived[0]
    else:
        scene.sender.take_base(scene.arrived[0])
    assert scene.send(20, 2, one=b"1", other=b"2", two=b"changed") == ["copy one", "copy other", "put two", "create"]


def test_a_copy_whose_source_is_gone_is_sent(scene: Scene):
    scene.send(10, 1, one=b"1")
    sent = scene.arrived[0].files[0].object
    scene.store.delete([FOLDER + sent])
    assert scene.send(20, 2, one=b"1") == ["copy one", "put one", "create"]


def test_two_snapshots_are_kept_and_their_objects_alone(scene: Scene):
    for offset in range(10, 60, 10):
        scene.send(offset, 1, same=b"s", own=b"%d" % offset)
    names = {name.removeprefix(FOLDER) for name in scene.store.objects}
    kept = scene.arrived[-2:]
    assert names == {m.name for m in kept} | {file.object for m in kept for file in m.files}
    scene.send(70, 2, same=b"s")
    assert names < {name.removeprefix(FOLDER) for name in scene.store.objects}
    scene.send(80, 2, same=b"s")
    assert not names & {name.removeprefix(FOLDER) for name in scene.store.objects}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_fails_is_made_again(scene: Scene, when: str):
    scene.send(10, 1, one=b"1")
    for number in range(3):
        setattr(scene.store, when, 1)
        scene.send(20 + number, 1, one=b"1", two=b"%d" % number)
    assert len(scene.arrived) == 4
    assert scene.waited > 0
    assert "doesn't answer" in scene.warnings[0]


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_a_snapshot_that_was_given_up_can_be_sent_later(scene: Scene, lost: int):
    """Whichever call it is that fails for good, with or without effect."""
    some = [SnapshotFile(n, 1, n, partial(iter, [n.encode()])) for n in "ab"]
    work = scene.sender.send(10, 1, 100, some, scene.arrived.append)
    with pytest.raises(UnavailableError):
        while True:
            next(work)
            if len(scene.store.asked) == lost - 1 or lost == 4:
                scene.store.after = 99
    assert RETRY.attempts == scene.store.asked.count(scene.store.asked[-1])
    scene.store.after = 0
    scene.do(scene.sender.send(10, 1, 100, some, scene.arrived.append))
    assert scene.fetch()[1].files == {"a": b"a", "b": b"b"}


def test_one_snapshot_that_is_sent_twice_is_one(scene: Scene):
    """Tidying up after it fails, so all of the job is done again: older snapshots stay until there is another one."""
    scene.send(10, 1, one=b"1")
    listed, scene.store.list = scene.store.list, unanswered  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        scene.send(20, 2, one=b"2")
    scene.store.list = listed  # type: ignore[method-assign]
    scene.send(20, 2, one=b"2")
    assert scene.fetch(unfit=(scene.arrived[-1].snapshot,))[0] == scene.arrived[0]
    scene.send(30, 2, one=b"3")
    assert scene.arrived[0].name not in {name.removeprefix(FOLDER) for name in scene.store.objects}


def test_a_sender_remembers_no_more_snapshots_than_are_kept(scene: Scene):
    for offset in range(10, 60, 10):
        scene.send(offset, 1, one=b"%d" % offset)
    assert scene.sender._complete == scene.arrived[-SNAPSHOTS_KEPT:]


def unanswered(prefix: str) -> dict[str, int]:
    raise UnavailableError("no answer")


def test_a_manifest_of_somebody_else_stays(scene: Scene):
    scene.send(10, 1, one=b"1")
    scene.sender = Sender(scene.calls, FOLDER)
    with pytest.raises(CorruptLogError, match="another program has written"):
        scene.send(10, 1, one=b"other")
    assert scene.store.objects[FOLDER + scene.arrived[0].name] == scene.arrived[0].encode()


def test_the_newest_that_is_whole_and_good_is_fetched(scene: Scene):
    for offset in (10, 20):
        scene.send(offset, offset, one=b"%d" % offset, two=b"2")
    scene.send(30, 30, one=b"30", two=b"2")
    third = FOLDER + scene.arrived[2].files[0].object
    scene.store.objects[third] = b"xxx"
    assert scene.fetch()[0] == scene.arrived[1]
    assert scene.fetch(above=10)[0] == scene.arrived[1]
    assert scene.fetch(above=20)[0] is None
    assert scene.fetch(unfit=(scene.arrived[1].snapshot,))[0] == scene.arrived[0]
    del scene.store.objects[third]
    assert scene.fetch()[0] == scene.arrived[1]
    assert not scene.warnings
    scene.store.objects[FOLDER + scene.arrived[1].files[1].object] = b"?"
    found, folder, fetch = scene.fetch()
    assert (found, folder.name) == (scene.arrived[0], scene.arrived[0].snapshot)
    assert fetch.damaged == {scene.arrived[1].snapshot}
    assert "is damaged" in scene.warnings[0]


def test_a_file_is_fetched_in_pieces_and_only_a_piece_that_fails_is_fetched_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    scene.send(10, 1, one=b"0123456789", none=b"", two=b"abcd")
    monkeypatch.setattr(fetching, "PIECE_BYTES", 4)
    scene.store.longest = 4
    scene.store.asked.clear()
    steps = scene.fetching()
    while len(scene.store.asked) < 2:
        next(steps)
    scene.store.before = RETRY.attempts - 1
    assert scene.do(steps) == scene.arrived[0]
    again = ["read one 8+2"] * RETRY.attempts
    assert scene.store.asked == ["read one 0+4", "read one 4+4", *again, "read two 0+4"]
    assert scene.folder.files == {"one": b"0123456789", "none": b"", "two": b"abcd"}


def test_a_large_file_comes_over_a_line_that_takes_long(scene: Scene):
    large = bytes(range(256)) * (PIECE_BYTES // 256 * 2 + 1)
    scene.send(10, 1, one=large)
    assert scene.fetch()[1].files == {"one": large}


def test_a_file_that_has_become_shorter_is_damaged(scene: Scene):
    for offset in (10, 20):
        scene.send(offset, 1, one=b"%d" % offset)
    work = scene.fetching()
    next(work)
    next(work)
    next(work)
    scene.store.objects[FOLDER + scene.arrived[1].files[0].object] = b"2"
    assert scene.do(work) == scene.arrived[0]
    assert "is damaged" in scene.warnings[0]


@pytest.mark.parametrize("data", [b"", b"\x00" * 9, b'{"format":1}'])
def test_a_manifest_that_cannot_be_read_is_passed_over(scene: Scene, data: bytes):
    for offset in (10, 20):
        scene.send(offset, 1, one=b"%d" % offset)
    older, newer = scene.arrived
    scene.store.objects[FOLDER + newer.name] = data
    found, _, fetch = scene.fetch()
    assert (found, fetch.damaged) == (older, {newer.snapshot})
    assert scene.do(Sender(scene.calls, FOLDER).look(20)) == older
    assert ["is damaged" in warning for warning in scene.warnings] == [True, True]
    assert stored_snapshots(scene.store, "orders", TaskName("by-member", 0), FIRST_TIMELINE) == [older]


def test_a_manifest_of_another_format_ends_the_fetch(scene: Scene):
    for offset in (10, 20):
        scene.send(offset, 1, one=b"%d" % offset)
    scene.store.objects[FOLDER + scene.arrived[1].name] = b'{"format":2,"parts":[]}'
    with pytest.raises(DataError, match="is of format 2"):
        scene.fetch()


def test_what_is_not_whole_is_no_base(scene: Scene):
    scene.send(10, 1, one=b"1")
    scene.send(20, 1, two=b"2")
    del scene.store.objects[FOLDER + scene.arrived[1].files[0].object]
    assert scene.do(Sender(scene.calls, FOLDER).look(30)) == scene.arrived[0]


def test_a_manifest_that_a_newer_generation_has_deleted_was_there(scene: Scene):
    some = [SnapshotFile("one", 1, "one", partial(iter, [b"1"]))]
    scene.store.create = lambda name, data: False  # type: ignore[method-assign]
    scene.do(scene.sender.send(10, 1, 100, some, scene.arrived.append))
    assert scene.arrived[0].offset == 10


def test_what_is_deleted_while_it_is_fetched_is_looked_for_again(scene: Scene):
    scene.send(10, 1, one=b"1", two=b"2", three=b"3")
    folder = Folder()
    fetch = Fetch(scene.calls, FOLDER, folder, one_by_one, 1)
    work = fetch.newest(-1, ())
    while fetch.progress[0] == 0:
        next(work)
    for offset in (20, 30, 40):
        scene.send(offset, 2, one=b"1", two=b"%d" % offset)
    assert scene.do(work) == scene.arrived[-1]
    assert folder.files == {"one": b"1", "two": b"40"}


def test_one_that_never_stays_is_given_up(scene: Scene):
    scene.send(10, 1, one=b"1")
    scene.store.read = lambda name, start, length: None  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="deleted faster"):
        scene.fetch()


def test_only_the_newest_of_a_task_waits():
    waiting, dropped = Waiting(), []

    def job(key: str, name: str) -> Job:
        return Job(key, lambda: iter(()), lambda text: None, lambda: dropped.append(name))  # type: ignore[return-value, arg-type]

    a, b, c = job("t", "a"), job("u", "b"), job("t", "c")
    for each in (a, b, c):
        waiting.offer(each)
    assert dropped == ["a"]
    assert [waiting.take(0.0), waiting.take(0.0), waiting.take(0.0)] == [b, c, None]
    assert waiting.due_ms(0.0) is None
    waiting.failed(c, 5.0)
    assert (waiting.take(6.0), waiting.due_ms(6.0)) == (None, AGAIN_MS - 1)
    waiting.offer(a)
    waiting.failed(b, 5.0)
    waiting.failed(c, 5.0)
    assert dropped == ["a", "c", "c"]
    assert waiting.take(0.0) is a
