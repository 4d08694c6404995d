"""Start PySpark's JVM, quietly, or take the one that ``spark-submit`` started.

Three things can only be set before a JVM runs: which address Spark's servers listen on, how it logs, and where its
standard error goes. A daemon thread reads standard error through a pipe. Until the JVM is up, the thread keeps what it
reads, so that a failed start can be explained and a good one prints nothing. After that it passes bytes on as they
arrive. It always reads, so the JVM never waits for the driver.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from headrace.core.errors import InfrastructureError
from headrace.core.log import CLEAR_LINE
from headrace.runners.coordination.endpoint import LOOPBACK
from headrace.runners.spark.java import ensure_java
from headrace.runners.spark.settings import is_on_this_machine
from headrace.runners.spark.signals import STARTED_BY_SPARK, leave_signals_to_driver

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
    """The JVM of this process: the running one, that of ``spark-submit``, or a new one with these settings."""
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
    """The processes that this thread has started and that still run."""
    try:
        listed = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()
    except FileNotFoundError:  # a kernel that doesn't list them
        return set()
    return {int(pid) for pid in listed.split()}


def _launch_environment(launch_conf: Mapping[str, str], log_conf: Path) -> dict[str, str]:
    environment = {}
    if not _logs_are_configured():
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


def _logs_are_configured() -> bool:
    folder = _spark_conf_folder()
    return folder is not None and any(folder.glob("log4j2.*"))


def _stays_on_this_machine(launch_conf: Mapping[str, str]) -> bool:
    """Whether the master is certainly a local one, even before Spark reads its files."""
    if master := launch_conf.get("spark.master"):
        return is_on_this_machine(master)
    folder = _spark_conf_folder()
    asked_elsewhere = "PYSPARK_SUBMIT_ARGS" in os.environ or "MASTER" in os.environ
    return not asked_elsewhere and (folder is None or not (folder / "spark-defaults.conf").exists())


@contextmanager
def _logging_file() -> Iterator[Path]:
    """The logging configuration as a temporary file, for a JVM to read."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        path = Path(folder) / "log4j2.properties"
        path.write_text(_LOGGING)
        yield path


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change this process's environment for the block, and so for processes that it starts."""
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
    """Configure the logging of a running JVM, unless it is configured already."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    is_set = jvm.java.lang.System.getProperty("log4j2.configurationFile") is not None
    if is_set or any(loader.getResource(f"log4j2.{kind}") for kind in ("properties", "xml", "yaml", "json")):
        return
    with _logging_file() as path:
        jvm.org.apache.logging.log4j.core.config.Configurator.reconfigure(jvm.java.net.URI(path.as_uri()))


class _StderrRelay:
    """Carries a JVM's standard error to this process's: kept at first, passed on later."""

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
        """The driver no longer waits for the JVM: continue reading, so that it can end."""
        os.close(self.writing_end)

    def stop(self) -> str:
        """The JVM has ended: end the thread, and return what the JVM printed."""
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
