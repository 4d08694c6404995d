"""Several real processes on one log: appending at once, dying in mid-append, waking each other."""

from __future__ import annotations

import time
from pathlib import Path

from log_harness import STREAM, append, drain, log_file, new_log, read_all, ssp, start_process

from headrace.core.files import readable
from headrace.systems.base import Edge
from headrace.systems.log.segment import HEADER_SIZE

WRITER = """
import sys
from headrace.systems.log.system import LogSystem
root, name, batches, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
producer = LogSystem(root).producer()
producer.send("events", 0, b"")
print("ready", flush=True)
sys.stdin.readline()
for batch in range(batches):
    for i in range(5):
        producer.send("events", 0, f"{name}:{batch * 5 + i}:".encode().ljust(size, b"."))
    producer.flush()
    print(batch, flush=True)
"""


def test_processes_that_append_at_once_lose_and_mix_nothing(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    writers = [start_process(WRITER, tmp_path, name, 200, 300 + name) for name in range(3)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    consumer = system.consumer()
    consumer.register(ssp(), Edge.OLDEST)
    got: list[bytes] = []
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    deadline = time.monotonic() + 60
    while len(got) < 3 * 1001 and time.monotonic() < deadline:
        readable(consumer.fileno(), 1000)
        got += drain(consumer, max_bytes=5000)
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    for name in range(3):
        mine = [payload for payload in got if payload.startswith(b"%d:" % name)]
        assert mine == [f"{name}:{i}:".encode().ljust(300 + name, b".") for i in range(1000)]
    assert consumer.torn_bytes == 0
    assert read_all(system)[0] == got
    consumer.close()


def test_a_writer_killed_in_mid_append_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    system = new_log(tmp_path)
    acknowledged: dict[int, int] = {}
    size = 1_500_000
    for name in range(6):
        writer = start_process(WRITER, tmp_path, name, 1000, size)
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
        for _ in range(1 + name % 2):
            acknowledged[name] = (int(writer.stdout.readline()) + 1) * 5
        time.sleep(name * 0.0013)  # they end up at various places of the next write call
        writer.kill()
        rest, _ = writer.communicate()
        if rest.split():
            acknowledged[name] = (int(rest.split()[-1]) + 1) * 5
        append(system, [b"between:%d" % name])
    payloads, torn = read_all(system)
    for name in range(6):
        mine = [payload for payload in payloads if payload.startswith(b"%d:" % name)]
        assert len(mine) >= acknowledged[name]
        assert mine == [f"{name}:{i}:".encode().ljust(size, b".") for i in range(len(mine))]
        assert payloads.count(b"between:%d" % name) == 1
    whole = sum(len(payload) + HEADER_SIZE for payload in payloads)
    assert 32 + whole + torn == log_file(tmp_path).stat().st_size


ECHO = """
import sys, time
from headrace.core.ids import SSP, StreamId
from headrace.core.files import readable
from headrace.systems.base import Edge
from headrace.systems.log.segment import HEADER_SIZE
from headrace.systems.log.system import LogSystem
system = LogSystem(sys.argv[1])
consumer, producer = system.consumer(), system.producer()
consumer.register(SSP(StreamId("log", "events"), 0), Edge.OLDEST)
print("ready", flush=True)
count = 0
while count < int(sys.argv[2]):
    readable(consumer.fileno(), 5000)
    for item in consumer.poll():
        for payload in item.payloads:
            producer.send("events", 1, payload)
            producer.flush()
            count += 1
"""


def test_a_process_is_woken_by_another_ones_append_within_milliseconds(tmp_path: Path) -> None:
    system = new_log(tmp_path, partitions=2)
    rounds = 200
    echo = start_process(ECHO, tmp_path, rounds)
    assert echo.stdout is not None
    assert echo.stdout.readline() == b"ready\n"
    consumer, producer = system.consumer(), system.producer()
    consumer.register(ssp(1), Edge.OLDEST)
    times = []
    for i in range(rounds):
        start = time.perf_counter()
        producer.send(STREAM, 0, b"%d" % i)
        producer.flush()
        got: list[bytes] = []
        while not got:
            assert readable(consumer.fileno(), 30_000), "not woken"
            got = drain(consumer)
        times.append(time.perf_counter() - start)
        assert got == [b"%d" % i]
    echo.communicate()
    assert echo.returncode == 0
    producer.close()
    consumer.close()
    there_and_back = sorted(times)[rounds // 10]
    # Two wake-ups, when the processor happens to be free. With polls every 10 ms, one round in 22 would be as short,
    # not one in ten.
    assert there_and_back < 0.003, f"{there_and_back * 1000:.1f} ms there and back"


def test_an_idle_consumer_uses_next_to_no_time(tmp_path: Path) -> None:
    system = new_log(tmp_path, partitions=64)
    consumer = system.consumer()
    for partition in range(64):
        consumer.register(ssp(partition), Edge.OLDEST)
    while consumer.poll():
        pass
    rounds = []
    for _ in range(5):  # the fastest: other programs on this machine slow some of them down
        start = time.thread_time()
        for _ in range(200):
            assert consumer.poll() == []
        rounds.append((time.thread_time() - start) / 200)
    each = min(rounds)
    assert each < 0.0002, f"{each * 1e6:.0f} us for an idle poll of 64 partitions"
    assert not readable(consumer.fileno(), 0)
    consumer.close()


def test_reported_positions_are_seen_by_another_process(tmp_path: Path) -> None:
    system = new_log(tmp_path, partitions=3)
    code = (
        "import sys; from headrace.systems.log.system import LogSystem; from headrace.core.ids import SSP;"
        "LogSystem(sys.argv[1]).admin().report_position(SSP.of('log.events', 2), 'stage-2', 12345)"
    )
    process = start_process(code, tmp_path)
    process.communicate()
    assert process.returncode == 0
    assert system.admin().reported_positions(STREAM, "stage-2") == {2: 12345}
    assert (tmp_path / STREAM / "positions" / "stage-2").stat().st_size == 24
