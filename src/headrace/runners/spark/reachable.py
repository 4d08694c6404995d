"""Check that a standalone master accepts connections, before Spark is started.

Spark tries a master for a minute, and no setting shortens that: its source says three times twenty seconds. A refused
connection shows the same at once. Blocks for at most ``CONNECT_S`` per master.
"""

from __future__ import annotations

import socket

from headrace.core.errors import UnavailableError
from headrace.runners.spark.settings import standalone_addresses

CONNECT_S = 3.0
"""How long each of the masters has to accept a connection."""


def check_reachable(master: str, connect_s: float = CONNECT_S) -> None:
    """Raise ``UnavailableError`` when none of the hosts of ``spark://host:port,host:port`` accepts a connection.

    Doesn't check other kinds of masters, nor whether the host that accepts it is a Spark master.
    """
    failures = []
    for host, port in standalone_addresses(master):
        try:
            socket.create_connection((host, port), connect_s).close()
        except OSError as error:
            failures.append(f"{host}:{port}: {_reason(error, connect_s)}")
        else:
            return
    if failures:
        raise UnavailableError(
            f"no Spark master answers at {master} ({'; '.join(failures)})",
            hint="check that it is running, and its host and port: its own page and log show its URL",
        )


def _reason(error: OSError, connect_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {connect_s:g} s"
    return (error.strerror or str(error)).lower()
