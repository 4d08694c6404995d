"""What the contract doesn't prescribe for the memory system; the rest is in tests/contracts."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace.core.errors import DeclarationError
from headrace.core.ids import SSP, StreamId
from headrace.systems.base import Edge, Records
from headrace.systems.memory import MemorySystem, open_memory


@pytest.fixture
def names() -> Iterator[list[str]]:
    made: list[str] = []
    yield made
    for name in made:
        MemorySystem.forget(name)


def test_a_name_means_one_system_in_a_process(names: list[str]) -> None:
    names += ["a", "b"]
    assert MemorySystem.named("a") is open_memory("memory", {"name": "a"}) is open_memory("a", {})
    assert MemorySystem.named("a") is not MemorySystem.named("b")
    first = MemorySystem.named("a")
    MemorySystem.forget("a")
    assert MemorySystem.named("a") is not first
    with pytest.raises(DeclarationError, match="unknown options"):
        open_memory("memory", {"path": "x"})


def test_offsets_count_records() -> None:
    system = MemorySystem()
    system.admin().create("s", 1)
    producer = system.producer()
    for payload in (b"a", b"b", b"c"):
        producer.send("s", 0, payload)
    consumer = system.consumer()
    ssp = SSP(StreamId("memory", "s"), 0)
    consumer.register(ssp, Edge.OLDEST)
    assert consumer.poll() == []
    assert producer.flush() == {("s", 0): 3}
    assert consumer.poll() == [Records(ssp, [0, 1, 2], [b"a", b"b", b"c"], 3)]
    consumer.close()


def test_threads_share_it() -> None:
    system = MemorySystem()
    system.admin().create("s", 1)
    ssp = SSP(StreamId("memory", "s"), 0)

    def write(name: int) -> None:
        producer = system.producer()
        for i in range(300):
            producer.send("s", 0, b"%d:%d" % (name, i))
            producer.flush()

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    consumer = system.consumer()
    consumer.register(ssp, Edge.OLDEST)
    got: list[bytes] = []
    while len(got) < 1200:
        got += [payload for item in consumer.poll() if isinstance(item, Records) for payload in item.payloads]
    for thread in threads:
        thread.join()
    for name in range(4):
        assert [p for p in got if p.startswith(b"%d:" % name)] == [b"%d:%d" % (name, i) for i in range(300)]
    consumer.close()
