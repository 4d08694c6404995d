"""The status of all deployments, running or ended, for commands and for the page with all apps."""

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
    """Return the status of each running deployment (of ``app``), then the last status of the others.

    With ``patient``, a driver may take longer to answer, and errors of this machine are raised, because a user is
    waiting. Otherwise a driver that doesn't answer soon and correctly counts as unreachable.
    """
    found = []
    for address in find_all(metadata, app):
        with closing(address.client() if patient else address.client(timeout_s=_SOON_S, patience_s=0)) as client:
            try:
                found.append(Deployment(client.status(), address))
            except UnavailableError as error:
                found.append(Deployment(unreachable(address, error)))
            except (UsageError, ProtocolError) as error:  # seen from here, another program answers at its address
                if patient and address.machine.is_here:
                    raise
                found.append(Deployment(unreachable(address, error)))
    return found + [Deployment(status) for status in ended(metadata, app)]
