"""The addresses of coordinators and of running deployments, by which commands find an app.

A killed driver leaves its address behind, so readers check that the process exists and answers as that app. In a pod,
or behind network address translation (NAT), the address to call isn't the one on which the coordinator listens.
"""

from __future__ import annotations

import http.client
import os
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from typing_extensions import override

from headrace.coordinator.client import CoordinatorClient
from headrace.core.errors import ProtocolError, UnavailableError, UsageError


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine since its last boot, or a container on it: a space of process numbers. Several may have one name."""

    host: str
    id: str
    """Its ``/etc/machine-id``, or an empty text."""
    boot: str
    processes: str
    """The namespace of its process numbers; containers on one machine have their own."""

    @property
    def is_here(self) -> bool:
        return self == this_machine()

    @property
    def has_restarted(self) -> bool:
        """Return whether it is certainly this machine before its last boot, so that its processes have ended."""
        here = this_machine()
        return bool(self.id) and (self.host, self.id) == (here.host, here.id) and self.boot != here.boot


def this_machine() -> Machine:
    return Machine(
        host=socket.gethostname(),
        id=_text(Path("/etc/machine-id")),
        boot=_text(Path("/proc/sys/kernel/random/boot_id")),
        processes=str(Path("/proc/self/ns/pid").readlink()),
    )


def _process_is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it belongs to another user, but it exists
    return True


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


FORMAT = 2
_PROBE_S = 2.0


class Address(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A running deployment of an app. ``stages`` are the stages it runs; with ``all_stages``, it runs all of them."""

    format: int = FORMAT
    run: str
    app: str
    stages: list[str]
    all_stages: bool
    url: str
    token: str
    machine: Machine
    pid: int
    started_at: int
    seen_at: int
    """When its driver was last alive."""

    def client(self, *, timeout_s: float = 5.0, patience_s: float = 10.0) -> CoordinatorClient:
        return CoordinatorClient(self.url, self.token, timeout_s=timeout_s, patience_s=patience_s, hint=self.way)

    @property
    def way(self) -> str:
        if self.machine.is_here:
            return "the driver has ended, or is busy or stopped; look at its output"
        host = urlsplit(self.url).hostname or ""
        ip = _ip(host)
        if ip.is_loopback if ip else host == "localhost":
            return (
                f"it listens only on its own machine, {self.machine.host}: run the command there, or start the app "
                "with --listen HOST, an address that other machines can reach"
            )
        return (
            f"it runs on {self.machine.host} and doesn't answer at {urlsplit(self.url).netloc}: check firewalls and "
            "how that name resolves here, or start the app with --advertise HOST[:PORT], an address that this machine "
            "can reach. If the driver was last seen long ago, it has died: start the app again"
        )

    @override
    def __repr__(self) -> str:  # without the token, which must not appear in tracebacks and logs
        return f"Address({self.app} {self.deployment}, {self.url}, {self.driver})"

    @property
    def deployment(self) -> str:
        return "with all stages" if self.all_stages else f"with stage {', '.join(self.stages)}"

    @property
    def driver(self) -> str:
        return f"pid {self.pid} on {self.machine.host}"

    def look(self) -> Literal["alive", "gone", "out of reach"]:
        """Return whether its driver is alive.

        A process on this machine that doesn't answer counts as alive, because it may be busy. A driver on another
        machine has to answer, because its address may mean another place here.
        """
        here = self.machine.is_here
        if self.machine.has_restarted or (here and not _process_is_there(self.pid)):
            return "gone"
        client = self.client(timeout_s=_PROBE_S, patience_s=0)
        try:
            answers = client.status().app == self.app
        except UnavailableError as error:
            # Nothing listens there, or another program does, because another process now has the pid.
            answers = not isinstance(error.__cause__, ConnectionRefusedError | http.client.HTTPException) and here
        except (UsageError, ProtocolError):
            answers = False  # another program now has the port, and doesn't know the token or the messages
        finally:
            client.close()
        if answers:
            return "alive"
        return "gone" if here else "out of reach"


LOOPBACK = "127.0.0.1"


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_wildcard(host: str) -> bool:
    ip = _ip(host)
    return ip.is_unspecified if ip else not host


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The coordinator binds to ``host`` and ``port`` (0: a free one); others call the advertised ones."""

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
                "or HEADRACE_ADVERTISE",
            )

    def url(self, port: int) -> str:
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
        (host, port), (called, called_port) = self.listen, self.advertise
        inherited = default.advertised_host if not host or _is_wildcard(host) else ""
        return Endpoint(
            host=host or default.host, port=port, advertised_host=called or inherited, advertised_port=called_port
        )


AS_USUAL = Wanted()


def _parsed(option: str, text: str | None) -> tuple[str, int]:
    if text is None:
        return "", 0
    if not isinstance(text, str):
        raise UsageError(f"{option}={text!r} is not an address", hint=f'write {option}="HOST" or "HOST:PORT"')
    host, colon, port = text.strip().rpartition(":")
    if not colon or (":" in host and not host.endswith("]")) or text.strip().endswith("]"):
        host, port = text.strip(), "0"  # only a host; one with several colons must be an IPv6 address
    host = host.removeprefix("[").removesuffix("]")
    valid = port.isascii() and port.isdigit() and int(port) < 1 << 16 and (":" not in host or _ip(host) is not None)
    if not valid or not (host or int(port)) or "/" in host or any(mark.isspace() for mark in host):
        hint = "write a name or an address, such as node-7, 10.0.0.7:7090 or [fd00::7]:7090, or only a port, :7090"
        raise UsageError(f"{option} {text!r} is neither HOST nor HOST:PORT", hint=hint)
    return host, int(port)
