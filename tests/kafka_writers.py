"""Writers of a Kafka output in processes of their own, that are killed and frozen, and what a plain consumer then has.

A life of a writer publishes version after version, a little below its position at first, as a task does whose last
commit doesn't say what was published since. It ends by itself only when it is told to.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import secrets
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess

import polars as pl
import pytest

from chaos.kafka_plain import create_topic, read_topic
from chaos.kafka_server import Broker
from headrace.connectors.kafka import target as target_module
from headrace.connectors.kafka import writer_session
from headrace.connectors.kafka.publishing import Progress, Publishing
from headrace.connectors.kafka.settings import KafkaSettings, TopicOptions
from headrace.connectors.kafka.target import KafkaTarget
from headrace.core.errors import HeadraceError
from headrace.systems.base import Target

KEYS = 5
LAST_VERSIONS, VERSIONS_MIN = 3, 10
LAST_LIFE_S = 180
"""Long enough for a transaction whose timeout has doubled more than once on a busy machine."""


def new_target(address: str, topic: str) -> KafkaTarget:
    """A target whose rows go by their column ``key``."""
    return KafkaTarget(TopicOptions(topic=topic, settings=KafkaSettings(address), key="key"))


def rows_of(writer: str, version: int) -> pl.DataFrame:
    """The rows of a version, the same ones in each life: from 1 to 60."""
    numbers = range(1 + (version * 7) % 60)
    keys = [f"{writer}-{number % KEYS}" for number in numbers]
    return pl.DataFrame({"key": keys, "writer": writer, "version": version, "n": numbers})


def live(address: str, topic: str, writer: str, mistake: str, last: bool) -> None:
    """One life. The ``last`` one of a writer publishes some more versions, and ends."""
    _make(mistake)
    target = new_target(address, topic)
    position = -1
    for _ in iter(int, 1):
        try:
            position = target.position(writer)
            break
        except HeadraceError as error:
            if not error.retry:
                raise
    end = max(position + 1 + LAST_VERSIONS, VERSIONS_MIN)
    for version in itertools.count(max(0, position - 2)):
        finish(target, writer, version, [target.accept(rows_of(writer, version))], tries=10_000)
        if last and version == end:
            break
    target.close()


def finish(target: Target, writer: str, version: int, accepted: Sequence[pl.DataFrame], tries: int = 1) -> None:
    """Publish, as a run loop does; the last of some ``tries`` may not fail."""
    while True:
        try:
            again_ms = target.publish(writer, version, accepted)
        except HeadraceError as error:
            tries -= 1
            if not error.retry or not tries:
                raise
            again_ms = 50.0
        if again_ms is None:
            return
        time.sleep(again_ms / 1000)


def _make(mistake: str) -> None:
    """Make a mistake, for tests that must find it."""
    if mistake == "position isn't read":
        read = Publishing.read
        Publishing.read = lambda self, found, now: read(self, Progress(self.floor), now)  # type: ignore[method-assign]
    elif mistake == "new id in each life":
        own = secrets.token_hex(4)
        writer_session.transactional_id = lambda writer: f"headrace.{writer}.{own}"
        target_module.transactional_id = writer_session.transactional_id


class Storm:
    """Writers of one app, killed and frozen at random for some time."""

    def __init__(self, address: str, seed: int, mistake: str = "", writers: int = 3) -> None:
        self.kills = self.zombies = self.broker_kills = 0
        self._address = address
        self._mistake = mistake
        self._draw = random.Random(seed)
        self._topic = create_topic(address, 3)
        self._writers = [f"{self._topic}/stage/{number}/out" for number in range(writers)]
        self._lives: dict[str, ForkServerProcess] = {}
        self._frozen: list[tuple[float, ForkServerProcess]] = []
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["kafka_writers"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # what is preloaded isn't looked for elsewhere
            forkserver.ensure_running()

    def rage(self, strikes: int, pause_s: tuple[float, float], broker: Broker | None = None) -> None:
        """Kill or freeze a life so often, with such pauses, and then let each writer end in peace.

        If it is given, the ``broker`` is killed at every eighth strike, too, and started again.
        """
        try:
            for writer in self._writers:
                self._lives[writer] = self._start(writer)
            for number in range(strikes):
                time.sleep(self._draw.uniform(*pause_s))
                self._strike(self._draw.choice(self._writers))
                if broker is not None and number % 8 == 4:
                    broker.stop()
                    broker.start()
                    self.broker_kills += 1
                self._thaw(time.monotonic())
            for _, life in self._frozen:
                _wake(life)
            time.sleep(0.7)  # the stale copies do what they can
        finally:
            self._end()
        # All at once: until its own writer comes back, an open transaction hides the others' positions, too.
        last = {writer: self._start(writer, last=True) for writer in self._writers}
        for life in last.values():
            life.join(LAST_LIFE_S)
        codes = {writer: life.exitcode for writer, life in last.items()}
        for life in last.values():
            life.kill()
        assert set(codes.values()) == {0}, f"the last lives ended with {codes}"

    def _strike(self, writer: str) -> None:
        life = self._lives[writer]
        if self._draw.random() < 0.3 and life.is_alive():
            os.kill(life.pid or 0, signal.SIGSTOP)
            self._frozen.append((time.monotonic() + self._draw.uniform(0.1, 2.5), life))
            self.zombies += 1
        else:
            life.kill()
            life.join()
            self.kills += 1
        self._lives[writer] = self._start(writer)

    def _thaw(self, now_s: float) -> None:
        """Wake those whose time has come; those that have been awake for a moment are killed."""
        for when, life in list(self._frozen):
            if now_s > when:
                _wake(life)
            if now_s > when + 0.7:
                life.kill()
                life.join()
                self._frozen.remove((when, life))

    def _end(self) -> None:
        for life in [*self._lives.values(), *(life for _, life in self._frozen)]:
            life.kill()
            life.join()

    def _start(self, writer: str, last: bool = False) -> ForkServerProcess:
        process = self._context.Process(target=live, args=(self._address, self._topic, writer, self._mistake, last))
        process.start()
        return process

    def wrong(self) -> str:
        """What a plain consumer finds wrong; empty if each row is there once, in order for its key."""
        found: dict[bytes | None, list[tuple[int, int]]] = defaultdict(list)
        for record in read_topic(self._address, self._topic):
            version, row = record.header("headrace-version"), record.header("headrace-row")
            found[record.key].append((int(version or b"-1"), int(row or b"-1")))
        for writer in self._writers:
            mine = {key: rows for key, rows in found.items() if key and key.startswith(f"{writer}-".encode())}
            versions = range(max((version for rows in mine.values() for version, _ in rows), default=-1) + 1)
            if len(versions) < VERSIONS_MIN:
                return f"{writer} has published only {len(versions)} versions"
            for number in range(KEYS):
                wanted = [
                    (v, row) for v in versions for row in range(rows_of(writer, v).height) if row % KEYS == number
                ]
                got = mine.get(f"{writer}-{number}".encode(), [])
                if got != wanted:
                    doubled = len(got) - len(set(got))
                    return f"{writer}: key {number}: {len(set(wanted) - set(got))} lost, {doubled} doubled"
        return ""


def _wake(life: ForkServerProcess) -> None:
    if life.is_alive():
        os.kill(life.pid or 0, signal.SIGCONT)
