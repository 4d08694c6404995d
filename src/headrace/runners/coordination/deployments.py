"""How all deployments are, those that run and those that have ended: for commands and for the page with all apps."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from headrace.core.errors import ProtocolError, UnavailableError, UsageError
from headrace.metadata.store import MetadataStore
from headrace.runners.coordination.address import Address
from headrace.runners.coordination.endings import ended, unreachable
from headrace.runners.coordination.messages import AppStatus
from headrace.runners.coordination.runs import find_all

_SOON_S = 2.0


class Deployment(NamedTuple):
    """The status of a deployment, and where it is if its driver answers."""

    status: AppStatus
    address: Address | None = None


def deployments(metadata: MetadataStore, app: str | None = None, *, patient: bool = True) -> list[Deployment]:
    """Return each running deployment (of ``app``), then how the others ended.

    ``patient``: a driver may take its time, and what is wrong on this machine is raised, as somebody asks for it. Else
    a driver that doesn't answer soon, or not as it should, counts as unreachable.
    """
    found = []
    for address in find_all(metadata, app):
        with closing(address.client() if patient else address.client(timeout_s=_SOON_S, patience_s=0)) as client:
            try:
                found.append(Deployment(client.status(), address))
            except UnavailableError as error:
                found.append(Deployment(unreachable(address, error)))
            except (UsageError, ProtocolError) as error:  # somebody else answers at its address, as seen from here
                if patient and address.machine.is_here:
                    raise
                found.append(Deployment(unreachable(address, error)))
    return found + [Deployment(status) for status in ended(metadata, app)]
