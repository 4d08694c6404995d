"""The addresses on which a coordinator listens, and at which containers and commands call it. Pure.

On one machine, both are loopback. On a cluster, it listens where Spark's driver does. In a pod, or behind network
address translation (NAT), the two addresses differ.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from headrace.core.errors import UsageError

LOOPBACK = "127.0.0.1"
LISTEN_VARIABLE = "HEADRACE_LISTEN"
ADVERTISE_VARIABLE = "HEADRACE_ADVERTISE"


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The coordinator binds to ``host`` and ``port``; others call the advertised ones.

    Port 0 picks a free port. By default the advertised host and port are those that it binds to.
    """

    host: str = LOOPBACK
    port: int = 0
    advertised_host: str = ""
    advertised_port: int = 0

    def __post_init__(self) -> None:
        called = self.advertised_host or self.host
        if _is_wildcard(called):
            raise UsageError(
                f"containers and commands can't call {called!r}",
                hint="give the name or address at which they reach this machine: --advertise HOST[:PORT], advertise=, "
                f"or {ADVERTISE_VARIABLE}",
            )

    def url(self, port: int) -> str:
        """Return the URL for callers, if it listens on this port."""
        host = self.advertised_host or self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.advertised_port or port}"


ON_THIS_MACHINE = Endpoint()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The user's settings: the host and port to listen on, and those to call. Empty and 0 mean the default."""

    listen: tuple[str, int] = ("", 0)
    advertise: tuple[str, int] = ("", 0)

    @classmethod
    def of(cls, listen: str | None, advertise: str | None) -> Wanted:
        """Parse HOST, HOST:PORT or :PORT. Raises ``UsageError`` for anything else."""
        return cls(_parsed("listen", listen), _parsed("advertise", advertise))

    def instead_of(self, default: Endpoint) -> Endpoint:
        """Apply the user's settings to ``default``. A host to listen on is also called, unless it is the wildcard."""
        (host, port), (called, called_port) = self.listen, self.advertise
        inherited = default.advertised_host if not host or _is_wildcard(host) else ""
        return Endpoint(
            host=host or default.host,
            port=port,
            advertised_host=called or inherited,
            advertised_port=called_port,
        )


AS_USUAL = Wanted()


def _parsed(option: str, text: str | None) -> tuple[str, int]:
    """Return the host or an empty text, and the port or 0."""
    if text is None:
        return "", 0
    if not isinstance(text, str):
        raise UsageError(f"{option}={text!r} is not an address", hint=f'write {option}="HOST" or "HOST:PORT"')
    host, colon, port = text.strip().rpartition(":")
    if not colon or (":" in host and not host.endswith("]")) or text.strip().endswith("]"):
        host, port = text.strip(), "0"  # only a host; one with several colons must be an IPv6 address
    host = host.removeprefix("[").removesuffix("]")
    valid = port.isascii() and port.isdigit() and int(port) < 1 << 16 and (":" not in host or _is_ip(host))
    if not valid or not (host or int(port)) or "/" in host or any(mark.isspace() for mark in host):
        raise UsageError(
            f"{option} {text!r} is neither HOST nor HOST:PORT",
            hint="write a name or an address, such as node-7, 10.0.0.7:7090 or [fd00::7]:7090, or only a port, :7090",
        )
    return host, int(port)
