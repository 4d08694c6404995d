"""The endings of an app's runs, for ``headrace status``."""

from __future__ import annotations

from headrace.core.errors import HeadraceError, InfrastructureError
from headrace.metadata.store import MetadataStore
from headrace.runners.coordination import messages
from headrace.runners.coordination.address import Address
from headrace.runners.coordination.error_report import ErrorReport
from headrace.runners.coordination.runs import all_ended, all_running


def ended(metadata: MetadataStore, app: str | None = None) -> list[messages.AppStatus]:
    """Return the last status of each deployment (of ``app``) that is no longer running, by app."""
    recorded = [one.status for one in all_ended(metadata, app) if one.status is not None]
    gone = [_gone(run.address) for run in all_running(metadata, app) if run.address.look() == "gone"]
    return sorted([*recorded, *gone], key=lambda one: (one.app, one.started_at))


def unreachable(address: Address, error: HeadraceError) -> messages.AppStatus:
    """Return the status of a deployment whose driver doesn't answer; its machine may be unreachable from here."""
    return _status(
        address,
        "unreachable",
        f"its driver ({address.driver}) doesn't answer: {error.message}",
        address.way,
    )


def _gone(address: Address) -> messages.AppStatus:
    return _status(
        address,
        "gone",
        f"its driver ({address.driver}) has disappeared without an error",
        "the driver was killed or its machine crashed; start the app again, and it resumes from its last checkpoints",
    )


def _status(address: Address, state: messages.AppState, message: str, hint: str) -> messages.AppStatus:
    error = InfrastructureError(message, hint=hint)
    return messages.AppStatus(
        app=address.app,
        state=state,
        started_at=address.started_at,
        ended_at=address.seen_at,
        guarantee="",
        stages=[],
        tasks=[],
        containers=[],
        error=ErrorReport.of(error, with_traceback=False),
    )
