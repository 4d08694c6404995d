"""A DynamoDB for tests: moto's server on a free port of 127.0.0.1, with its tables in memory, ended by its pid."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Self

from chaos.local_server import LocalServer, free_port

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIATESTS",
    "AWS_SECRET_ACCESS_KEY": "tests-s3cret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
"""What boto3 needs to talk to it, and what keeps boto3 from looking elsewhere."""


class MotoServer:
    """A server of the tests' own, from ``with`` to its end. Stopping it loses its tables."""

    region = "us-east-1"

    def __init__(self) -> None:
        self._port = free_port()
        self._server = LocalServer("moto")

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        # Only the server imports moto, which takes 0.25 s. -P: or this file would be imported as moto.
        command = [sys.executable, "-P", str(Path(__file__).with_name("moto_in_turn.py")), str(self._port)]
        self._server.start(command, f"Running on {self.endpoint}")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
