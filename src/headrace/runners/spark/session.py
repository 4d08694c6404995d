"""Open Spark for containers: the only place a SparkSession is made.

``open_context`` is enough to host containers and is up about a second sooner; ``open_session`` adds Spark SQL
for apps that read or write DataFrames. Both reuse a session that is there already (a notebook, an app that made
its own) after checking that containers can live in it, and both leave Ctrl-C to the caller: PySpark's own handler,
which cancels every job, is put aside.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from headrace.core.errors import InfrastructureError, UsageError
from headrace.runners.spark import settings
from headrace.runners.spark.launch import deafen_to_interrupts, ensure_jvm
from headrace.runners.spark.reachable import check_reachable


def open_session(app_name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A SparkSession whose tasks can be containers. See ``open_context``."""
    open_context(app_name, master, conf)
    return SparkSession.builder.getOrCreate()


def open_context(app_name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkContext:
    """A SparkContext whose tasks can be containers: the running one, or a new one.

    Without ``master``, what spark-submit or spark-defaults.conf says holds, else ``local[*]``. ``conf`` goes above
    both; a value there that containers can't live with is an error, as it is in a running session.
    """
    conf = dict(conf or {})
    master = master or conf.pop("spark.master", None)
    if master is not None:
        settings.check_master(master)
        master = settings.with_retries(master)
    running = SparkContext._active_spark_context
    if running is not None and running._jsc is not None:
        _check_running(running, master)
        _prepare_workers(running)
        return running
    _check_asked(conf)
    if master is not None:
        check_reachable(master)
    launch_conf = conf | ({"spark.master": master} if master else {})
    jvm = ensure_jvm(launch_conf)
    complete = _complete(SparkConf(), app_name, master, conf, jvm)
    if master is None:
        check_reachable(complete.get("spark.master", ""))
    os.environ.setdefault("PYSPARK_PYTHON", complete.get("spark.pyspark.python") or sys.executable)
    try:
        with _interrupts_unchanged():
            context = SparkContext(conf=complete)
    except Py4JJavaError as error:
        raise InfrastructureError(
            f"Spark doesn't start on {complete.get('spark.master')}: {error.java_exception.getMessage()}",
            hint="look at --conf and spark-defaults.conf; HEADRACE_TRACEBACK=1 shows all that Spark says",
        ) from error
    _prepare_workers(context)
    return context


def conf_of(context: SparkContext) -> SparkConf:
    """The settings of a running Spark, to be asked one by one: ``getConf`` copies all of them, call by call."""
    return context._conf


def close_context(context: SparkContext) -> None:
    """Stop Spark, and take away what ``local-cluster`` leaves in Spark's own folder."""
    master, app_id, home = str(context.master), context.applicationId, _spark_home(context)
    context.stop()
    if home is not None and settings.is_local_cluster(master):
        shutil.rmtree(home / "work" / app_id, ignore_errors=True)


def _spark_home(context: SparkContext) -> Path | None:
    home: Any = context._jvm.java.lang.System.getenv("SPARK_HOME") if context._jvm else None
    return Path(home) if home else None


def _complete(conf: SparkConf, app_name: str, master: str | None, asked: Mapping[str, str], jvm: Any) -> SparkConf:
    """Settings from weak to strong: our preferences, Spark's files and spark-submit, the caller, containers' needs."""
    master = settings.with_retries(master or conf.get("spark.master", None) or "local[*]")
    conf.setMaster(master).setAppName(app_name)
    for key, value in settings.preferred(master).items():
        conf.setIfMissing(key, value)
    if settings.is_on_this_machine(master) and not conf.contains("spark.sql.warehouse.dir"):
        # Made by the JVM, which deletes it when it ends, however the driver ends.
        files = jvm.org.apache.spark.util.Utils
        folder = files.createTempDir(files.getLocalDir(conf._jconf), "headrace-warehouse")
        conf.set("spark.sql.warehouse.dir", folder.toURI().toString())
    for key, value in (dict(asked) | settings.required()).items():
        conf.set(key, value)
    return conf


def _check_asked(conf: Mapping[str, str]) -> None:
    asked = settings.required() | dict(conf)
    if wrong := settings.wrong_settings("", asked.get):
        raise UsageError(
            "containers can't live with these Spark settings:\n    " + "\n    ".join(wrong),
            hint="leave them out: Headrace sets them itself",
        )


def _check_running(context: SparkContext, master: str | None) -> None:
    current = str(context.master)
    if master is not None and _plain(master) != _plain(current):
        raise UsageError(
            f"Spark is already running on {_plain(current)}, but this app asks for {_plain(master)}",
            hint="leave the master out, or stop the running session first",
        )
    if wrong := settings.wrong_settings(current, conf_of(context).get):
        raise InfrastructureError(
            "containers can't live in the Spark session that is already running:\n    " + "\n    ".join(wrong),
            hint="put these into SparkSession.builder, or let Headrace make the session",
        )
    deafen_to_interrupts(context._jvm)


def _prepare_workers(context: SparkContext) -> None:
    """Say what each Python worker is told as it starts: this works in a session that is already running."""
    context.environment.setdefault("POLARS_MAX_THREADS", "1")
    if settings.is_on_this_machine(str(context.master)):
        # A worker finds the modules beside the user's script, as the driver does.
        context.environment.setdefault("PYTHONPATH", os.pathsep.join(_own_import_folders()))
        if "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable


def _own_import_folders() -> list[str]:
    """Where this process imports from, beyond what every run of this Python has."""
    installed = (Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    folders = (Path(entry).resolve() for entry in sys.path)
    return [str(f) for f in folders if f.is_dir() and not any(f.is_relative_to(place) for place in installed)]


def _plain(master: str) -> str:
    """The master without how often a task may fail."""
    slots = settings.local_slots(master)
    if settings.is_local(master):
        return f"local[{slots or '*'}]"
    return "".join(master.split())


@contextmanager
def _interrupts_unchanged() -> Iterator[None]:
    """Keep the handler of SIGINT that is there: PySpark's would cancel the containers instead of draining them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
