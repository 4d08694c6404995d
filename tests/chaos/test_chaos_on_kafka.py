"""A command that gets a Kafka of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

CONNECTS = """
import os, socket, sys
host, port = sys.argv[1].split(":")
socket.create_connection((host, int(port)), 10).close()
sys.exit(7 if os.environ["KAFKA_BROKERS"] == sys.argv[1] else 1)
"""


def on_kafka(*command: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "chaos.on_kafka", *command]
    return subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)


def test_the_command_reaches_the_broker_and_its_exit_code_is_passed_on() -> None:
    done = on_kafka(sys.executable, "-c", CONNECTS, "{}")
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 7, done.stderr
    port = int(done.stderr.rpartition(":")[2])
    assert on_kafka_ended(port)


def on_kafka_ended(port: int) -> bool:
    refused = subprocess.run(
        [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"],
        capture_output=True,
        check=False,
        timeout=60,
    )
    return b"ConnectionRefusedError" in refused.stderr


def test_without_a_command_it_says_what_is_missing() -> None:
    done = on_kafka()
    assert done.returncode == 2
    assert "which command?" in done.stderr
