"""The address of a running deployment, and the check whether it is still running.

Commands find an app by its address. A killed driver leaves its address behind, so readers check that the process exists
and answers as that app.
"""

from __future__ import annotations

import http.client
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from typing_extensions import override

from headrace.core.errors import ProtocolError, UnavailableError, UsageError
from headrace.runners.coordination.client import CoordinatorClient
from headrace.runners.coordination.machine import Machine, process_is_there

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
        """Return a client, whose errors explain how to reach the driver; the caller closes it."""
        return CoordinatorClient(self.url, self.token, timeout_s=timeout_s, patience_s=patience_s, hint=self.way)

    @property
    def way(self) -> str:
        """What to do if the driver doesn't answer here, as text."""
        if self.machine.is_here:
            return "the driver has ended, or is busy or stopped; look at its output"
        if self._is_on_its_own_machine:
            return (
                f"it listens only on its own machine, {self.machine.host}: run the command there, or start the app "
                "with --listen HOST, an address that other machines can reach"
            )
        return (
            f"it runs on {self.machine.host} and doesn't answer at {urlsplit(self.url).netloc}: check firewalls and "
            "how that name resolves here, or start the app with --advertise HOST[:PORT], an address that this machine "
            "can reach. If the driver was last seen long ago, it has died: start the app again"
        )

    @property
    def _is_on_its_own_machine(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @override
    def __repr__(self) -> str:  # without the token, which must not appear in tracebacks and logs
        return f"Address({self.app} {self.deployment}, {self.url}, {self.driver})"

    @property
    def deployment(self) -> str:
        """Its stages, as text."""
        return "with all stages" if self.all_stages else f"with stage {', '.join(self.stages)}"

    @property
    def driver(self) -> str:
        """Its driver, as text."""
        return f"pid {self.pid} on {self.machine.host}"

    def look(self) -> Literal["alive", "gone", "out of reach"]:
        """Return whether its driver is alive.

        A process on this machine that doesn't answer counts as alive, because it may be stopped or busy. A driver on
        another machine has to answer to prove anything, because its address may mean another place here.
        """
        here = self.machine.is_here
        if self.machine.has_restarted or (here and not process_is_there(self.pid)):
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
