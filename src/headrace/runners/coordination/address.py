"""The address of a running app: the file ``<home>/apps/<app>/coordinator.json``, which exists while the driver runs.

Commands find the app by it. It also prevents a second run of the same stages on one home, since two runs would keep
fencing each other off. Deployments of different stages of an app have a file each. The file contains the token, so only
its owner may read it. A driver that was killed leaves its file behind. So readers check that the process exists and
answers as that app.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
from typing_extensions import override

from headrace.core.errors import (
    InfrastructureError,
    ProtocolError,
    StorageError,
    UnavailableError,
    UsageError,
)
from headrace.core.log import logger
from headrace.runners.coordination.client import CoordinatorClient

FORMAT = 1
_PROBE_S = 2.0
_NAME_BYTES_MAX = 200

_log = logger(__name__)


class Address(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A running deployment of an app. ``stages`` are those it runs; ``all_stages``: it runs all of them."""

    version: int = FORMAT
    app: str
    stages: list[str]
    all_stages: bool
    url: str
    token: str
    host: str
    pid: int
    started_at: int

    def client(self) -> CoordinatorClient:
        """Return a client; the caller closes it."""
        return CoordinatorClient(self.url, self.token)

    @override
    def __repr__(self) -> str:  # without the token, which must not get into tracebacks and logs
        return f"Address({self.app} {self.deployment}, {self.url}, pid {self.pid} on {self.host})"

    @property
    def deployment(self) -> str:
        """Its stages, as text."""
        return "with all stages" if self.all_stages else f"with stage {', '.join(self.stages)}"


_DECODER = msgspec.json.Decoder(Address)


class Publication:
    """The file of a deployment that runs in this process; it exists from ``publish`` to ``close``."""

    def __init__(self, home: Path, address: Address) -> None:
        self.path = path_of(home, address)
        self._address = address

    def close(self) -> None:
        """Delete the file if it is still this run's. Idempotent."""
        with _locked(self.path.parent):
            if _read(self.path) == self._address:
                self.path.unlink(missing_ok=True)


def path_of(home: Path, address: Address) -> Path:
    """Return the path of the deployment's file."""
    name = "coordinator"
    if not address.all_stages:
        stages = "+".join(quote(stage, safe="") for stage in sorted(address.stages))
        name = f"coordinator-{stages}"
    if len(name) > _NAME_BYTES_MAX:
        raise UsageError(
            f"the names of the {len(address.stages)} stages are too long for a file name: {name[:60]}...",
            hint="deploy fewer stages in one run, or all of them",
        )
    return _folder(home, address.app) / f"{name}.json"


def publish(
    home: Path, app: str, url: str, token: str, *, stages: Sequence[str], all_stages: bool, started_at: int
) -> Publication:
    """Publish that this process runs these stages of the app. Raises ``UsageError`` if a live run has one of them."""
    address = Address(
        app=app,
        stages=list(stages),
        all_stages=all_stages,
        url=url,
        token=token,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=started_at,
    )
    publication = Publication(home, address)
    with _locked(publication.path.parent):
        for path in _files(publication.path.parent):
            other = _read(path)
            if other is None or not set(other.stages).intersection(stages):
                continue
            if is_live(other):
                raise UsageError(
                    f"app {app!r} is already running {other.deployment}: pid {other.pid} on {other.host}, says {path}",
                    hint="stop that run first (deployments of one app need different stages);"
                    " if you are sure that it is gone, delete that file",
                )
            _log.info("deleted the address of a run that is gone", file=str(path), pid=other.pid)
            path.unlink(missing_ok=True)
        _write(publication.path, address)
    return publication


def find(home: Path, app: str, stage: str | None = None) -> Address:
    """Return the running deployment of the app, or the one with ``stage``. Raises ``UsageError`` if there is none."""
    live = [address for address in find_all(home, app) if stage is None or stage in address.stages]
    what = f"app {app!r}" if stage is None else f"stage {stage!r} of app {app!r}"
    if not live:
        others = sorted({f"{a.app} {a.deployment}" for a in find_all(home)})
        raise UsageError(
            f"{what} isn't running on {home}; running there: {', '.join(others) or 'nothing'}",
            hint="start it with `headrace run`, or name the home folder that it uses",
        )
    if len(live) > 1:
        raise UsageError(
            f"app {app!r} runs as {len(live)} deployments: {'; '.join(a.deployment for a in live)}",
            hint="name one of their stages",
        )
    return live[0]


def find_all(home: Path, app: str | None = None) -> list[Address]:
    """Return every live deployment (of ``app``), sorted by app and stages. Skips files of runs that are gone."""
    live = []
    for _, address in published(home, app):
        if is_live(address):
            live.append(address)
        else:
            _log.debug("passing over the address of a run that is gone", app=address.app, pid=address.pid)
    return sorted(live, key=lambda a: (a.app, a.stages))


def published(home: Path, app: str | None = None) -> list[tuple[Path, Address]]:
    """Return every file with an address (of ``app``), also those of runs that are gone."""
    folders = [_folder(home, app)] if app else sorted((home / "apps").glob("*"))
    return [(path, address) for folder in folders for path in _files(folder) if (address := _read(path))]


def is_live(address: Address) -> bool:
    """Whether the run may be alive. A process that exists but doesn't answer counts: it may be stopped or busy."""
    here = address.host == socket.gethostname()
    if here and not _process_is_there(address.pid):
        return False
    client = CoordinatorClient(address.url, address.token, timeout_s=_PROBE_S, patience_s=0)
    try:
        return client.status().app == address.app
    except UnavailableError as error:
        # Nothing listens, or some other program does: another process has the pid now. For a run on another
        # machine this proves nothing, since its address may mean another place here.
        return not (here and isinstance(error.__cause__, ConnectionRefusedError | http.client.HTTPException))
    except (UsageError, ProtocolError):
        return False  # another program has the port now, and doesn't know the token or the messages
    finally:
        client.close()


def _process_is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it belongs to another user, but it exists
    return True


# -- files -------------------------------------------------------------------------------------------------


def _folder(home: Path, app: str) -> Path:
    return home / "apps" / app


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("coordinator*.json"))


def _read(path: Path) -> Address | None:
    try:
        address = _DECODER.decode(path.read_bytes())
    except FileNotFoundError:
        return None  # its run has just ended
    except (OSError, msgspec.MsgspecError) as error:
        raise InfrastructureError(
            f"can't read the address of a running app in {path}: {error}",
            hint="if the app isn't running, delete the file",
        ) from error
    if address.version != FORMAT:
        raise InfrastructureError(
            f"{path} is of format {address.version}; this version of Headrace reads {FORMAT}",
            hint="use the version of Headrace that runs the app",
        )
    return address


def _write(path: Path, address: Address) -> None:
    draft = path.with_name(f".{path.name}.{address.pid}")
    try:
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(address) + b"\n")
        draft.replace(path)
    except OSError as error:
        raise StorageError(
            f"can't write {path}: {error}", hint="check the home folder's owner and its free space"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make reading and writing atomic among all processes. Held at most for as long as an unresponsive run is asked."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".coordinator.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(f"can't use the folder {folder}: {error}", hint="check the home folder's owner") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
