"""Run a command against an Apache Kafka of its own: ``python -m chaos.on_kafka python examples/29_kafka.py {}``.

The broker's address takes the place of ``{}`` in the command's arguments, and is in the environment as KAFKA_BROKERS.
The broker listens on loopback and ends with the command, whose exit code is passed on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from chaos.kafka_server import KafkaServer
from headrace.core.errors import InfrastructureError

_NO_BROKER = 3


def main(command: Sequence[str]) -> int:
    """Start a broker, run the command, and end both."""
    if not command:
        sys.stderr.write("which command? python -m chaos.on_kafka python examples/29_kafka.py {}\n")
        return 2
    try:
        broker = KafkaServer()
    except InfrastructureError as error:
        sys.stderr.write(f"{error.message}\n{error.hint or ''}\n")
        return _NO_BROKER
    with broker:
        sys.stderr.write(f"Apache Kafka listens at {broker.address}\n")
        child = subprocess.Popen(
            [part.replace("{}", broker.address) for part in command],
            env={**os.environ, "KAFKA_BROKERS": broker.address},
        )
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command decides what Ctrl-C means
        try:
            return child.wait()
        finally:
            signal.signal(signal.SIGINT, previous)
            child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
