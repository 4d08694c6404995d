"""An object store like Amazon's S3 for chaos: moto's server on a free port, with one bucket, in memory."""

from __future__ import annotations

import importlib.util
import sys
import urllib.request
from pathlib import Path
from typing import Self

from chaos.local_server import LocalServer, free_port
from headrace.core.errors import InfrastructureError

BUCKET = "snapshots"
_CALL_S = 30


class ObjectServer:
    """A server with an empty bucket, from ``with`` to its end."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        """Raise ``InfrastructureError`` if something isn't installed."""
        for module in ("moto", "obstore"):
            if importlib.util.find_spec(module) is None:
                raise InfrastructureError(f"{module} isn't installed", hint="pip install -r requirements/dev.txt")
        self._host, self._port = host, free_port(host)
        self._server = LocalServer("moto")

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self._host}:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """What clients need to reach it, and what keeps them from asking elsewhere."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "AKIACHAOS",
            "AWS_SECRET_ACCESS_KEY": "chaos-s3cret",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def objects(self) -> list[str]:
        """The names of its objects, a thousand at most."""
        with urllib.request.urlopen(f"{self.url}/{BUCKET}?list-type=2", timeout=_CALL_S) as answer:
            return [part.partition("</Key>")[0] for part in answer.read().decode().split("<Key>")[1:]]

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "moto.server", "-H", self._host, "-p", str(self._port)]
        self._server.start(command, f"Running on {self.url}", folder=Path("/"))
        made = urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(made, timeout=_CALL_S):
            return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
