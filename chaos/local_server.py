"""A server program for tests and measurements: on a free port of this machine, ended by its pid."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.core.errors import UnavailableError

_END_S = 60.0


def free_port(host: str = "127.0.0.1") -> int:
    """A port that stays free while the server is away: not one of those that connections get by themselves."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(min(10_000, lowest - 1000), lowest), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port
    raise UnavailableError("no port is free")


class LocalServer:
    """One program. Stopping it loses what it has in memory."""

    def __init__(self, name: str) -> None:
        """``name`` is for errors."""
        self._name = name
        self._process: subprocess.Popen[str] | None = None
        self._output = threading.Thread()

    def start(
        self,
        command: Sequence[str],
        ready: str,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Return when a line of its output has ``ready`` in it. ``environment`` is the whole of it."""
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=environment
        )
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if ready in line:
                break
        else:
            process.wait(_END_S)
            raise UnavailableError(f"{self._name} didn't start: {''.join(said)}")
        # A full pipe would stop it.
        self._output = threading.Thread(target=process.stdout.read, name=f"{self._name}-output", daemon=True)
        self._output.start()
        self._process = process

    def stop(self) -> None:
        """End it at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_END_S)
            self._output.join(_END_S)
            if process.stdout is not None:
                process.stdout.close()
