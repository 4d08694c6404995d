"""A machine of a cluster dies, and all its folders with it. ``python -m chaos --cluster`` does that to everything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from chaos.kafka_server import KafkaServer
from chaos.postgres_server import programs
from chaos.world import why_not
from headrace.core.errors import InfrastructureError

END_S = 600


@pytest.mark.slow
@pytest.mark.soak  # tests/local/test_snapshots_in_s3_killed.py takes an app's folders away, and so does the simulator
def test_a_machine_may_lose_all_that_it_has() -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    try:
        KafkaServer().close()
        programs()
    except InfrastructureError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    # Processes of a world can't be seen from outside, so it is made by a process of its own.
    command = [sys.executable, "-m", "chaos", "--cluster", "--seconds", "0", "--seed", "7", "--rate", "500"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [*command, "--fault", "wipe machine"],
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
