from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.ids import SSP, Offset
from headrace.kit.contracts import check_system, system_checks
from headrace.kit.systems import ContractError
from headrace.systems.base import Admin, System
from headrace.systems.log.system import LogSystem
from headrace.systems.memory import MemoryConsumer, MemoryProducer, MemorySystem


@pytest.mark.parametrize("check", system_checks())
def test_memory_keeps_the_contract(check: str) -> None:
    system = MemorySystem()
    check_system(lambda: system, only=check)


@pytest.mark.parametrize("check", system_checks())
def test_the_log_keeps_the_contract(check: str, tmp_path: Path) -> None:
    check_system(lambda: LogSystem(tmp_path / "log"), only=check)


@pytest.mark.parametrize("check", system_checks())
def test_the_log_keeps_the_contract_with_fsync_and_a_tiny_buffer(check: str, tmp_path: Path) -> None:
    check_system(lambda: LogSystem(tmp_path / "log", buffer_bytes=100), only=check)


class _LosesARecord(MemoryProducer):
    def send(self, stream: str, partition: int, payload: bytes) -> None:
        if payload != b"0:150":
            super().send(stream, partition, payload)


class _NeverWakes(MemoryConsumer):
    def _wake(self, keys: set[tuple[str, int]]) -> None:
        pass


class _IsOneOff(MemorySystem):
    def offset_at(self, ssp: SSP, time_ms: int) -> Offset:
        return super().offset_at(ssp, time_ms + 1)


class _AcceptsAnyOffset(MemorySystem):
    def check_offset(self, ssp: SSP, offset: Offset) -> None:
        pass


class _WithoutTimes(MemorySystem):
    """What a system has that says nothing about positions: the bodies in ``Admin``."""

    offset_at = Admin.offset_at
    time_of = Admin.time_of


SYSTEMS = {"time": _IsOneOff, "offset": _AcceptsAnyOffset}


@pytest.mark.parametrize("check", ["positions_by_time", "times_of_a_trimmed_partition", "offsets_checked"])
def test_a_system_without_times_keeps_the_contract(check: str) -> None:
    system = _WithoutTimes()
    check_system(lambda: system, only=check)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        ("producer", "order_within_a_partition"),
        ("consumer", "readiness"),
        ("time", "positions_by_time"),
        ("offset", "offsets_checked"),
    ],
)
def test_a_broken_system_is_caught(broken: str, check: str) -> None:
    class Broken(SYSTEMS.get(broken, MemorySystem)):
        def producer(self) -> MemoryProducer:
            return _LosesARecord(self) if broken == "producer" else super().producer()

        def consumer(self) -> MemoryConsumer:
            return _NeverWakes(self) if broken == "consumer" else super().consumer()

    system: System = Broken()
    with pytest.raises(ContractError, match=check):
        check_system(lambda: system, only=check, wait_s=0.2)
    check_system(lambda: system, only="edges", wait_s=2)
