"""``headrace doctor``: does this machine have what an app needs, and what to do where it doesn't.

It changes nothing but a file of its own in the home, which it removes. A check that can't look never ends the others.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

from headrace.core.clock import format_ms, to_ms
from headrace.core.deployment import (
    DEFAULT_HOME,
    SETTINGS,
    TRACEBACK_VARIABLE,
    Found,
    find,
    home_of,
    metadata_url_of,
    settings_file,
)
from headrace.core.errors import HeadraceError, InfrastructureError, UsageError
from headrace.operate.words import counted, format_bytes

if TYPE_CHECKING:
    from headrace.api.specs import Graph, Settings
    from headrace.core.secrets import SecretUrl

Verdict = Literal["ok", "warning", "problem"]

FILES_LEAST = 4096
SPACE_LEAST = 1 << 30
MEMORY_LEAST = 1 << 30
SYNC_SLOW_MS = 20.0
SKEW_MS_MAX = 1000.0
_SYNCS = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found; ``remedy`` says what to do about it, unless all is well."""

    verdict: Verdict
    subject: str
    found: str
    remedy: str = ""


def look(home: Path | None, metadata: SecretUrl | None, load: Callable[[], Graph] | None = None) -> Iterator[Finding]:
    """Look at the settings, at this machine, and at the systems of the app that ``load`` returns."""
    try:
        place, url = home_of(home), metadata or metadata_url_of()
    except UsageError:  # which the check of the settings finds, too
        place, url = home or Path(DEFAULT_HOME), metadata
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "settings": _settings,
        "Python": _python,
        "Headrace": _extras,
        "Java": _java,
        "Spark": _spark,
        "limits": _limits,
        "memory": _memory,
        "network": _network,
        "disk": lambda: _disk(place),
        "metadata": lambda: _metadata(place, url),
    }
    if load is not None:
        checks["app"] = lambda: _systems(load())
    for subject, check in checks.items():
        try:
            yield from check()
        except HeadraceError as error:
            yield Finding("problem", subject, error.message, error.hint or "")
        except OSError as error:
            yield Finding("problem", subject, str(error))


def in_force(home: Path | None, metadata: SecretUrl | None, graph: Graph | None) -> list[Found]:
    """Each setting with its value and the place that says it; of an app, its code too."""
    found = {name: find(name, app="" if graph is None else graph.app) for name in SETTINGS}
    if graph is not None:
        for name, value in _of_program(graph.settings).items():
            if value != _comparable(found[name]):
                shown = format_ms(value) if isinstance(value, int) and SETTINGS[name].kind == "duration" else value
                found[name] = Found(SETTINGS[name], shown, "the app's code")
    for name, given in (("home", home), ("metadata", metadata and metadata.text)):
        if given is not None:
            found[name] = Found(SETTINGS[name], str(given), SETTINGS[name].option)
    return list(found.values())


def _of_program(own: Settings) -> dict[str, str | int | None]:
    return {
        "home": own.home,
        "metadata": None if own.metadata is None else own.metadata.text,
        "snapshots": None if own.snapshots is None else own.snapshots.url,
        "checkpoint_interval": own.checkpoint_interval_ms,
        "durability": own.durability,
        "drain_timeout": own.drain_timeout_ms,
        "standby": own.standby,
        "peek": own.peek,
    }


def _comparable(found: Found) -> str | int | None:
    if found.setting.kind == "duration":
        return to_ms(found.value)
    value: str | int | None = found.value
    return value.rstrip("/") if found.setting.name == "snapshots" and isinstance(value, str) else value


def _settings() -> Iterator[Finding]:
    for name in SETTINGS:
        find(name)
    file = settings_file()
    yield Finding("ok", "settings", "no file of settings" if file is None else f"{file.path} is read")
    known = {one.variable for one in SETTINGS.values()} | {TRACEBACK_VARIABLE}
    for variable in sorted(name for name in os.environ if name.startswith("HEADRACE_") and name not in known):
        close = get_close_matches(variable, known, n=1)
        remedy = f"did you mean {close[0]}?" if close else "unset it"
        yield Finding("warning", "settings", f"{variable} is set, but no setting has this name", remedy)


def _warned(wrong: bool, subject: str, found: str, remedy: str) -> Finding:
    return Finding("warning", subject, found, remedy) if wrong else Finding("ok", subject, found)


def _python() -> Iterator[Finding]:
    yield Finding("ok", "Python", f"{platform.python_version()} at {sys.executable}")
    if sys.platform != "linux":
        yield Finding("problem", "system", sys.platform, "run it on Linux, or in a container of Linux")


def _extras() -> Iterator[Finding]:
    """Which optional packages are there; those of the core are there, or nothing would run."""
    from headrace import __version__

    wanted: dict[str, str] = {}
    for line in importlib.metadata.requires("headrace") or ():
        if extra := re.search(r"extra == ['\"]([\w-]+)['\"]", line):
            wanted.setdefault(extra[1], re.split(r"[\s\[<>=;!~]", line, maxsplit=1)[0])
    there = sorted(extra for extra, package in wanted.items() if _installed(package))
    missing = sorted(wanted.keys() - set(there))
    said = f"{__version__}, with {', '.join(there) or 'no extras'}"
    yield Finding("ok", "Headrace", said + (f"; not installed: {', '.join(missing)}" if missing else ""))


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _java() -> Iterator[Finding]:
    from headrace.run.spark.launch import find_java

    try:
        java = find_java(os.environ)
    except InfrastructureError as error:
        yield Finding("warning", "Java", str(error), f"{error.hint}; --local needs none")
    else:
        yield Finding("ok", "Java", f"{java.version}, from {java.source}: {java.path}")


def _spark() -> Iterator[Finding]:
    own = importlib.metadata.version("pyspark")
    other = os.environ.get("SPARK_HOME")
    release = Path(other or ".") / "RELEASE"
    if other is None:
        yield Finding("ok", "Spark", f"{own}, as a package of Python")
    elif release.is_file() and f"Spark {own} " not in release.read_text():
        found = f"the package is {own}, but SPARK_HOME={other} is {release.read_text().splitlines()[0]}"
        yield Finding("problem", "Spark", found, "unset SPARK_HOME, or install the same version of both")
    else:
        yield Finding("ok", "Spark", f"{own}, SPARK_HOME={other}")


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limited, most = resource.RLIM_INFINITY not in (soft, hard), max(soft, hard)
    remedy = "raise ulimit -n (LimitNOFILE= of systemd, or the container's ulimits)"
    found = f"up to {most}" if limited else "without a limit"
    yield _warned(limited and most < FILES_LEAST, "open files", found, remedy)
    yield Finding("ok", "processors", f"{len(os.sched_getaffinity(0))} may be used")


def _memory() -> Iterator[Finding]:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    if found is None:
        return
    available = int(found[1]) * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    within = min(available, int(text)) if text.isdigit() else available
    remedy = "Spark takes about half a gigabyte, a container a few hundred megabytes: end something, or use --local"
    yield _warned(within < MEMORY_LEAST, "memory", f"{format_bytes(within)} available", remedy)


def _network() -> Iterator[Finding]:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        remedy = f"add it to /etc/hosts (127.0.1.1 {name}), or set SPARK_LOCAL_IP=127.0.0.1"
        yield Finding("problem", "host name", f"{name} has no address, and Spark needs one", remedy)
    else:
        yield Finding("ok", "host name", f"{name} is {address}")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname(), timeout=5):
            yield Finding("ok", "ports", "a port on 127.0.0.1 can be opened and reached")


def _disk(home: Path) -> Iterator[Finding]:
    """Write and sync a small file where the home is or will be, look at its time, and remove it."""
    place = next(folder for folder in (home.absolute(), *home.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(place).free
    remedy = "make room: a full disk stops the app until there is some"
    yield _warned(free < SPACE_LEAST, "disk", f"{format_bytes(free)} free at {place}", remedy)
    syncs: list[float] = []
    with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-") as file:
        for _ in range(_SYNCS):
            before = time.monotonic()
            file.write(b"headrace")
            file.flush()
            os.fsync(file.fileno())
            syncs.append((time.monotonic() - before) * 1000)
        skew_ms = abs(Path(file.name).stat().st_mtime - time.time()) * 1000
    remedy = 'each checkpoint waits for some: use a faster disk, or durability="process"'
    yield _warned(median(syncs) > SYNC_SLOW_MS, "syncing", f"the disk takes {median(syncs):.1f} ms", remedy)
    if skew_ms > SKEW_MS_MAX:
        remedy = "synchronise both clocks (chrony, systemd-timesyncd)"
        yield Finding("problem", "clock", f"it differs by {skew_ms:.0f} ms from that of the disk's server", remedy)
    else:
        yield Finding("ok", "clock", "it agrees with the disk's")


def _metadata(home: Path, url: SecretUrl | None) -> Iterator[Finding]:
    from headrace.life.metadata import existing_metadata

    if url is None and not home.exists():
        yield Finding("ok", "home", f"{home} isn't there yet: the first run makes it")
        return
    with existing_metadata(home, url) as store:
        yield Finding("ok", "metadata", f"{store.place} answers")


def _systems(graph: Graph) -> Iterator[Finding]:
    """Ask for each stream of an app, and its store of snapshots, as a start does."""
    from headrace.api.specs import Role
    from headrace.stores.transfer import check_objects
    from headrace.task.connections import Connections

    with closing(Connections()) as connections:
        for id_, spec in graph.streams.items():
            subject = f"stream {id_}"
            try:
                info = connections.admin(spec.system).describe(spec.stream.name)
            except HeadraceError as error:
                yield Finding("problem", subject, error.message, error.hint or "")
            else:
                needed = info is None and spec.role in (Role.SOURCE, Role.SIDE_INPUT)
                there = "isn't there yet" if info is None else f"has {counted(info.partitions, 'partition')}"
                found = f"{spec.system.kind} answers: {spec.stream.name} {there}"
                yield _warned(needed, subject, found, "create it before the app starts; headrace plan says how")
    if (place := graph.settings.snapshots) is not None:
        check_objects(place)
        yield Finding("ok", "snapshots", f"{place} takes objects and gives them back")
