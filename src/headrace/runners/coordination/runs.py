"""The book of an app's runs, in the metadata store: its running deployments, and how others have ended.

It has one namespace. ``<app>/running/<run>`` is the address of a deployment, ``<app>/ended/<run>`` its last status.
Each new deployment changes ``<app>/turn``, so that of two starting at once, the second one looks again. An address
contains the token, so anyone who may read the store may drain the app.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from headrace.core.errors import InfrastructureError, ProtocolError, UsageError
from headrace.core.log import logger
from headrace.core.records import UNREADABLE
from headrace.metadata.store import Entry, MetadataStore, Version
from headrace.runners.coordination import messages
from headrace.runners.coordination.address import FORMAT, Address

SPACE = "runs"

_log = logger(__name__)


class _Format(msgspec.Struct, frozen=True):
    format: int


_FORMAT_DECODER = msgspec.json.Decoder(_Format)
_DECODER = msgspec.json.Decoder(Address)


class Running(NamedTuple):
    """A deployment in the book. It may have died."""

    key: str
    version: Version
    address: Address


class Ended(NamedTuple):
    """Return the last status of a run; None if it can't be read."""

    key: str
    version: Version
    status: messages.AppStatus | None


def turn_key(app: str) -> str:
    """Return the key that each deployment of the app changes when it starts."""
    return f"{app}/turn"


def running_key(address: Address) -> str:
    """Return the key of a deployment's address."""
    return f"{address.app}/running/{address.run}"


def ended_key(address: Address) -> str:
    """Return the key of a deployment's last status."""
    return f"{address.app}/ended/{address.run}"


def known_apps(metadata: MetadataStore) -> list[str]:
    """Return the apps that have ever run."""
    return sorted({key.partition("/")[0] for key in metadata.scan(SPACE)})


def all_running(metadata: MetadataStore, app: str | None = None) -> list[Running]:
    """Return every deployment in the book (of ``app``), including dead ones, by app and stages."""
    found = [
        Running(key, entry.version, _decoded(metadata, key, entry)) for key, entry in _entries(metadata, app, "running")
    ]
    return sorted(found, key=lambda one: (one.address.app, one.address.stages))


def all_ended(metadata: MetadataStore, app: str | None = None) -> list[Ended]:
    """Return the last status of every run that has recorded how it ended."""
    return [Ended(key, entry.version, _status(key, entry)) for key, entry in _entries(metadata, app, "ended")]


def find(metadata: MetadataStore, app: str, stage: str | None = None) -> Address:
    """Return the running deployment of the app, or the one with ``stage``. Raises ``UsageError`` if there is none."""
    live = [address for address in find_all(metadata, app) if stage is None or stage in address.stages]
    what = f"app {app!r}" if stage is None else f"stage {stage!r} of app {app!r}"
    if not live:
        others = sorted({f"{a.app} {a.deployment}" for a in find_all(metadata)})
        raise UsageError(
            f"{what} isn't running in {metadata.place}; running there: {', '.join(others) or 'nothing'}",
            hint="start it with `headrace run`, or name the home folder, or the metadata store, that it uses",
        )
    if len(live) > 1:
        raise UsageError(
            f"app {app!r} runs as {len(live)} deployments: {'; '.join(a.deployment for a in live)}",
            hint="name a stage of one of them",
        )
    return live[0]


def find_all(metadata: MetadataStore, app: str | None = None) -> list[Address]:
    """Return every deployment (of ``app``) that isn't certainly dead, by app and stages."""
    live = []
    for one in all_running(metadata, app):
        if one.address.look() == "gone":
            _log.debug("passing over a run that is gone", app=one.address.app, pid=one.address.pid)
        else:
            live.append(one.address)
    return live


def _entries(metadata: MetadataStore, app: str | None, kind: str) -> Iterator[tuple[str, Entry]]:
    for key, entry in metadata.scan(SPACE, "" if app is None else f"{app}/{kind}/").items():
        if key.split("/")[1] == kind:
            yield key, entry


def _decoded(metadata: MetadataStore, key: str, entry: Entry) -> Address:
    where = f"the address of a running app in the metadata store {metadata.place} ({SPACE}: {key})"
    try:
        found = _FORMAT_DECODER.decode(entry.value).format
        if found == FORMAT:
            return _DECODER.decode(entry.value)
    except UNREADABLE as error:
        raise InfrastructureError(
            f"{where} is unreadable: {error}", hint="use the Headrace that runs the app"
        ) from error
    raise InfrastructureError(
        f"{where} is of format {found}; this version of Headrace reads {FORMAT}",
        hint="use the version of Headrace that runs the app",
    )


def _status(key: str, entry: Entry) -> messages.AppStatus | None:
    try:
        return messages.decode(messages.AppStatus, entry.value)
    except ProtocolError as error:
        _log.warning("ignoring an unreadable record of a run", key=key, error=str(error))
        return None
