from __future__ import annotations

import pytest
from machine_host import A0, A, B, Host

from headrace.core.ids import TaskName
from headrace.protocol.machine import MachineConfig


@pytest.fixture
def source() -> Host:
    """A timer-driven task that writes two partitions."""
    return Host(MachineConfig(task=TaskName("s", 0), task_count=1, producer=1, outputs={A: 2}))


@pytest.fixture
def reader() -> Host:
    """A command-driven task that reads one partition, written by producers 1 and 2."""
    inputs = {A0: (1, 2)}
    return Host(MachineConfig(task=TaskName("r", 0), task_count=1, producer=9, inputs=inputs, outputs={B: 1}))
