"""A server that stands in for Kinesis, in a process of its own, with streams in memory.

kinesis-local is closer to Kinesis, and kinesalite several times as fast. `make test` installs both.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from chaos.local_server import LocalServer, free_port
from headrace.core.errors import InfrastructureError

REGION = "us-east-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIACHAOS",
    "AWS_SECRET_ACCESS_KEY": "chaos",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Any do, but boto3 wants some."""
_MODULES = Path(sys.prefix) / "servers" / "node_modules"
Kind = Literal["kinesis-local", "kinesalite"]
_LOOPBACK = Path(__file__).with_name("loopback.js")
_CALLS = ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS", "UPDATE_SHARD_COUNT")
_SETTINGS = {"LOG_LEVEL": "WARN", "SHARD_LIMIT": "10000", "ON_DEMAND_STREAM_COUNT_LIMIT": "10"}
_SETTINGS |= {f"{call}_DURATION": "20ms" for call in _CALLS}
_QUICK = {"createStreamMs": 20, "deleteStreamMs": 20, "updateStreamMs": 20, "shardLimit": 10_000}


class KinesisServer:
    """The server, from ``with`` or ``start`` to its end; it can be started again. Stopping it loses its streams."""

    region = REGION

    def __init__(self, kind: Kind = "kinesis-local") -> None:
        """Raises ``InfrastructureError`` if it can't be started here."""
        self.kind = kind
        self._program = _MODULES / kind
        if shutil.which("node") is None or not self._program.is_dir():
            raise InfrastructureError(
                f"there is no {kind} here, a server that stands in for Kinesis",
                hint="install Node.js, then run `make test` once: it installs the server where npm finds its registry",
            )
        self._port, self._other_port = free_port(), free_port()
        self._server = LocalServer(kind)

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Return when it takes connections."""
        ports = {"KINESIS_MOCK_PLAIN_PORT": str(self._port), "KINESIS_MOCK_TLS_PORT": str(self._other_port)}
        self._server.start(
            ["node", "--require", str(_LOOPBACK), *self._arguments()],
            f"listening on port {self._port}\n",
            folder=self._program,  # where kinesis-local finds its certificate
            environment={"PATH": os.environ["PATH"], "NODE_PATH": str(_MODULES), **ports, **_SETTINGS},
        )

    def stop(self) -> None:
        """End it at once."""
        self._server.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _arguments(self) -> list[str]:
        if self.kind == "kinesis-local":
            return ["main.js"]
        return ["-e", f"require('kinesalite')({_QUICK}).listen({self._port})"]
