"""Open Spark for containers. SparkSessions are created nowhere else.

``open_context`` is enough to host containers, and about a second faster; ``open_session`` adds Spark SQL for jobs over
DataFrames. Both reuse a running session (of a notebook, or an app's own) after checking that containers can run in it.
Both leave Ctrl-C to the caller: PySpark's own handler, which cancels every job, is not installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from headrace.core.deployment import check_known
from headrace.core.errors import InfrastructureError, UnavailableError, UsageError
from headrace.run.run import check_not_connect
from headrace.run.spark import settings
from headrace.run.spark.launch import (
    ask_only_about_numpy,
    ensure_jvm,
    forget_jvm,
    is_loss,
    leave_signals_to_driver,
    silence_py4j,
)
from headrace.run.spark.settings import standalone_addresses

CONNECT_S = 3.0
"""How long each of the masters has to accept a connection."""


def check_reachable(master: str, connect_s: float = CONNECT_S) -> None:
    """Raise if no host of ``spark://host:port,host:port`` accepts a connection: Spark itself would try for a minute."""
    failures = []
    for host, port in standalone_addresses(master):
        try:
            socket.create_connection((host, port), connect_s).close()
        except TimeoutError:
            failures.append(f"{host}:{port}: no answer within {connect_s:g} s")
        except OSError as error:
            failures.append(f"{host}:{port}: {(error.strerror or str(error)).lower()}")
        else:
            return
    if failures:
        raise UnavailableError(
            f"no Spark master answers at {master} ({'; '.join(failures)})",
            hint="check that it is running, and its host and port: its own page and log show its URL",
        )


def open_session(app_name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the running SparkSession, or a new one, for ordinary jobs: Spark gives up on tasks that keep failing."""
    if SparkContext._active_spark_context is None:
        open_context(app_name, master, conf, hosts=False)
    return SparkSession.builder.getOrCreate()


_OPENING = threading.Lock()
_suitable: WeakSet[SparkContext] = WeakSet()
"""Running contexts in which containers can run: settings don't change any more, and to read them takes many calls."""
_users: dict[SparkContext, int] = {}
"""The contexts that Headrace has started for apps, and how many apps run in each."""


def take_context(app_name: str, master: str | None, conf: Mapping[str, str]) -> SparkContext:
    """``open_context`` for an app. Several apps of a process share a context; each gives it back by ``let_go``."""
    with _OPENING:
        is_new = SparkContext._active_spark_context is None
        context = open_context(app_name, master, conf)
        if is_new or context in _users:
            _users[context] = _users.get(context, 0) + 1
        return context


def let_go(context: SparkContext) -> None:
    """Stop Spark if Headrace has started it and no other app uses it; not if there is a session of the user's on it."""
    with _OPENING:
        left = _users.pop(context, 0) - 1
        if left > 0:
            _users[context] = left
        if left != 0:
            return
        session = SparkSession._instantiatedSession
        if context._jsc is not None and (session is None or session.sparkContext is not context):
            close_context(context)


def open_context(
    app_name: str, master: str | None = None, conf: Mapping[str, str] | None = None, *, hosts: bool = True
) -> SparkContext:
    """Return a SparkContext whose tasks can be containers: the running one, or a new one.

    The default ``master`` is that of spark-submit or spark-defaults.conf, else ``local[*]``. ``conf`` has precedence
    over both. With ``hosts=False`` containers won't run in it, and what they need isn't set.
    """
    conf = dict(conf or {})
    master = master or conf.pop("spark.master", None)
    if master is not None:
        settings.check_master(master)
        master = settings.with_retries(master) if hosts else master
    silence_py4j()
    ask_only_about_numpy()
    running = SparkContext._active_spark_context
    if running is not None and running._jsc is not None:
        _check_running(running, master)
        prepare_workers(running)
        return running
    check_not_connect()
    if hosts and (wrong := settings.wrong_settings("", (settings.required() | conf).get)):
        raise UsageError(
            "containers can't run with these Spark settings:\n    " + "\n    ".join(wrong),
            hint="leave them out: Headrace sets them itself",
        )
    if master is not None:
        check_reachable(master)
    jvm = ensure_jvm(conf | ({"spark.master": master} if master else {}))
    complete = _complete(SparkConf(), app_name, master, conf, jvm, hosts=hosts)
    if master is None:
        check_reachable(complete.get("spark.master", ""))
    os.environ.setdefault("PYSPARK_PYTHON", complete.get("spark.pyspark.python") or sys.executable)
    try:
        with _interrupts_unchanged():
            context = SparkContext(conf=complete)
    except Py4JJavaError as error:
        raise InfrastructureError(
            f"Spark doesn't start on {complete.get('spark.master')}: {error.java_exception.getMessage()}",
            hint="check --conf and spark-defaults.conf; HEADRACE_TRACEBACK=1 shows Spark's whole error",
        ) from error
    prepare_workers(context)
    return context


def conf_of(context: SparkContext) -> SparkConf:
    """Return the settings of a running Spark, to be read one by one: ``getConf`` copies all, with a call for each."""
    return context._conf


def said_to_spark(key: str) -> str | None:
    """A setting of the running session, else of the running Spark, else one that spark-submit was given."""
    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        ensure_jvm({})
        return SparkConf().get(key, None)
    session = SparkSession._instantiatedSession
    if session is not None and session.sparkContext is context:
        return session.conf.get(key, None)
    return conf_of(context).get(key, None)


def _check_names(conf: SparkConf) -> None:
    """Raise ``UsageError`` for a setting ``spark.headrace...`` that there isn't."""
    jconf: Any = conf._jconf
    for pair in jconf.getAllWithPrefix("spark.headrace."):
        check_known(pair._1(), f"spark.headrace.{pair._1()}")


def close_context(context: SparkContext) -> None:
    master = str(context.master)
    try:
        app_id, jvm = context.applicationId, cast("Any", context._jvm)
        home = jvm.java.lang.System.getenv("SPARK_HOME") if jvm else None
        context.stop()
    except (OSError, Py4JError) as error:
        if not is_loss(error):
            raise
        forget_jvm()
        return
    if home and settings.is_local_cluster(master):
        shutil.rmtree(Path(home) / "work" / app_id, ignore_errors=True)


def _complete(
    conf: SparkConf, app_name: str, master: str | None, asked: Mapping[str, str], jvm: Any, *, hosts: bool
) -> SparkConf:
    """Settings from weak to strong: our preferences, Spark's files and spark-submit, the caller, containers' needs."""
    master = master or conf.get("spark.master", None) or "local[*]"
    master = settings.with_retries(master) if hosts else master
    conf.setMaster(master).setAppName(app_name)
    preferred = settings.preferred(master)
    if settings.is_local_cluster(master):
        preferred |= settings.executors_as_driver(os.environ.get("SPARK_SUBMIT_OPTS", ""))
    for key, value in preferred.items():
        conf.setIfMissing(key, value)
    if settings.is_on_this_machine(master) and not conf.contains("spark.sql.warehouse.dir"):
        # The JVM creates it, and deletes it when it ends, even if the driver is killed.
        files = jvm.org.apache.spark.util.Utils
        folder = files.createTempDir(files.getLocalDir(conf._jconf), "headrace-warehouse")
        conf.set("spark.sql.warehouse.dir", folder.toURI().toString())
    for key, value in (dict(asked) | (settings.required() if hosts else {})).items():
        conf.set(key, value)
    _check_names(conf)
    return conf


def _check_running(context: SparkContext, master: str | None) -> None:
    current = str(context.master)
    there, asked = settings.without_retries(current), settings.without_retries(master or current)
    if asked != there:
        raise UsageError(
            f"Spark is already running on {there}, but this app asks for {asked}",
            hint="leave out the master, also in HEADRACE_MASTER and the file of settings, or stop the running session "
            "first",
        )
    if context in _suitable:
        return
    _check_names(conf_of(context))
    if wrong := settings.wrong_settings(current, conf_of(context).get):
        raise InfrastructureError(
            "containers can't run in the Spark session that is already running:\n    " + "\n    ".join(wrong),
            hint="put these into SparkSession.builder, or let Headrace create the session",
        )
    leave_signals_to_driver()
    _suitable.add(context)


def prepare_session(session: SparkSession) -> None:
    context = getattr(session, "_sc", None)
    if context is not None:  # a session of Spark Connect has none
        prepare_workers(context)


def prepare_workers(context: SparkContext) -> None:
    """Set what each Python worker starts with. This also works in a running session, and may be repeated."""
    context.environment.setdefault("POLARS_MAX_THREADS", "1")
    if settings.is_on_this_machine(str(context.master)):
        # A worker finds the modules beside the user's script, as the driver does.
        context.environment.setdefault("PYTHONPATH", os.pathsep.join(_own_import_folders()))
        if "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable


def _own_import_folders() -> list[str]:
    installed = (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    folders = (Path(entry).resolve() for entry in sys.path)
    return [str(f) for f in folders if f.is_dir() and not any(f.is_relative_to(place) for place in installed)]


@contextmanager
def _interrupts_unchanged() -> Iterator[None]:
    """Keep the handler of SIGINT. PySpark's would cancel the containers instead of draining them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
