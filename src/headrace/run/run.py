"""A run of an app: its arguments, the thread beside the caller's code, and its status.

A run beside the caller's code has a thread, in which everything happens that a run in the calling thread does, except
for signals: they are for the run in the main thread. The runs of this process are remembered until they have ended.
When the interpreter ends, they are drained for some seconds; what is left of them resumes from the last checkpoints.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import polars as pl
from typing_extensions import override

from headrace.api.specs import Graph
from headrace.coordinator.address import AS_USUAL, Wanted
from headrace.coordinator.exposition import all_series
from headrace.coordinator.messages import AppState, AppStatus, Series, StageStatus
from headrace.core.clock import Duration, WallClock, to_ms
from headrace.core.deployment import setting
from headrace.core.errors import HeadraceError, UnavailableError, UsageError
from headrace.core.log import logger
from headrace.core.secrets import SecretUrl
from headrace.life.metadata import MetadataStore, existing_metadata, open_metadata
from headrace.life.timelines import Timelines
from headrace.plan.inventory import NO_CONSENT, Consent, consent_of
from headrace.run.coordinated import RunControl
from headrace.run.local import run_local
from headrace.run.planning import check_run
from headrace.run.progress import ProgressLine, describe, how_it_ended, lag_of, time_of
from headrace.run.savepoints.restoring import recorded
from headrace.run.savepoints.taking import take_running

_TITLES = ("stage", "tasks", "msg/s", "watermark", "lag")


@dataclass(frozen=True, slots=True, repr=False)
class RunStatus:
    """How a run was at one moment. ``str`` is a line, and a notebook shows a table.

    ``state`` is one of ``"starting"``, ``"running"``, ``"draining"``, ``"finished"``, ``"stopped"`` and ``"failed"``.
    ``error`` is what made the app fail.

    Examples
    --------
    >>> run.status()
    RunStatus(shop finished  0 msg/s  sales done)
    """

    app: str
    state: AppState
    error: BaseException | None = None
    _found: AppStatus | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything that is known, as ``headrace status --json`` prints it. Empty before the app runs.

        Examples
        --------
        >>> [stage["name"] for stage in run.status().to_dict()["stages"]]
        ['sales']
        """
        data: dict[str, Any] = {} if self._found is None else msgspec.to_builtins(self._found)
        return data

    @override
    def __str__(self) -> str:
        line = f"{self.app} {self.state}"
        if self._found is not None and self.state == self._found.state:
            line = describe(self._found)
        return line if self.error is None else f"{line}: {self.error}"

    @override
    def __repr__(self) -> str:
        return f"RunStatus({self})"

    def _repr_html_(self) -> str:
        found = self._found
        drained = found is not None and found.drained and self.state == "finished"
        pieces = [f"<p><b>{escape(self.app)}</b> {'drained' if drained else self.state}</p>"]
        if found is not None and self.state != "failed":
            rows = [_TITLES, *map(_row, found.stages)]
            cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
            pieces.append(f'<table style="text-align: left">{"".join(f"<tr>{row}</tr>" for row in cells)}</table>')
        if self.error is not None:
            pieces.append(f"<pre>{escape(str(self.error))}</pre>")
        return f"<div>{''.join(pieces)}</div>"


def _row(stage: StageStatus) -> tuple[str, ...]:
    done = f" ({stage.finished} done)" if stage.finished else ""
    rate = f"{stage.rows_per_second:,.0f}"
    return stage.name, f"{stage.tasks}{done}", rate, time_of(stage.watermark), lag_of(stage.lag)


def table_of_series(series: Sequence[Series]) -> pl.DataFrame:
    labels = list(dict.fromkeys(label for one in series for label in one.labels if label != "app"))
    columns: dict[str, pl.Series] = {
        "name": pl.Series([one.name for one in series], dtype=pl.String),
        "kind": pl.Series([one.kind for one in series], dtype=pl.String),
        **{label: pl.Series([one.labels.get(label) for one in series], dtype=pl.String) for label in labels},
        "value": pl.Series([one.value for one in series], dtype=pl.Float64),
        "buckets": pl.Series([one.buckets or None for one in series], dtype=pl.List(pl.Int64)),
    }
    return pl.DataFrame(columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to run an app. Without ``stages``, all of them run. ``savepoint`` is taken at the end.

    ``beside``: code of this process goes on meanwhile. ``wanted``: where the coordinator listens, if not as usual.
    """

    local: bool = False
    master: str | None = None
    containers: int | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    stages: Sequence[str] = ()
    consent: Consent = NO_CONSENT
    savepoint: str = ""
    wanted: Wanted = AS_USUAL
    beside: bool = False

    @classmethod
    def of(
        cls,
        local: bool,
        master: str | None,
        containers: int | None,
        conf: Mapping[str, str] | None,
        stages: Sequence[str] | None,
        drop_state: Sequence[str],
        rename: Mapping[str, str] | None,
        listen: str | None,
        advertise: str | None,
        savepoint: str = "",
        *,
        beside: bool = False,
        app: str = "",
    ) -> Self:
        check_options(master, containers, stages, conf)
        if savepoint and stages:
            raise UsageError(
                "a savepoint covers the whole app, but this run has only some of its stages",
                hint="run all stages, or take the savepoint while they run: headrace savepoint create",
            )
        return cls(
            local=local,
            master=master if local else setting("master", master, app),
            containers=containers if local else setting("containers", containers, app),
            conf=conf or {},
            stages=stages or (),
            consent=consent_of(drop_state, rename or {}),
            savepoint=savepoint,
            wanted=Wanted.of(setting("listen", listen or None, app), setting("advertise", advertise or None, app)),
            beside=beside,
        )


def check_kind_of_run(*, batch: bool, backfill: bool, until: str | None, again: bool, tables: object) -> None:
    if batch and backfill:
        raise UsageError(
            "a batch job ends, but a run that begins with a backfill goes on", hint="choose one: batch= or backfill="
        )
    if again and not batch:
        raise UsageError("again= is for batch jobs", hint="add batch=True")
    if until is not None and not (batch or backfill):
        raise UsageError("until= is for batch jobs", hint="write batch=True, or backfill=True to go on live")
    if tables and not backfill:
        raise UsageError("tables= gives the history for a backfill", hint="add backfill=True")


def check_not_connect(session: object = None) -> None:
    """Raise for a session of Spark Connect, or a process that has one: only a driver can host containers."""
    remote = "SPARK_CONNECT_MODE_ENABLED" in os.environ or "SPARK_REMOTE" in os.environ
    local = "SPARK_LOCAL_REMOTE" in os.environ  # the server is in this process, and has a SparkContext
    if type(session).__module__.startswith("pyspark.sql.connect") or (remote and not local):
        raise UsageError(
            "this process reaches Spark through Spark Connect, which has no SparkContext: containers and batch jobs of "
            "Headrace can't run there. Streams can be read and written as DataFrames",
            hint="run the app with local=True, or from a driver: with spark-submit, or in a process without "
            'SPARK_REMOTE and builder.remote(...), with master="spark://host:7077"',
        )


def refuse(
    what: str,
    containers: object,
    stages: object,
    local: bool,
    savepoint: str,
    listen: object = None,
    advertise: object = None,
) -> None:
    given = {"containers": containers, "stages": stages, "local": local or None, "savepoint": savepoint or None}
    given |= {"listen": listen, "advertise": advertise}
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name}= doesn't apply to {what}")


def check_options(master: object, containers: object, stages: object, conf: object) -> None:
    """Raise for options that would otherwise fail deep inside Spark."""
    if master is not None and not isinstance(master, str):
        raise UsageError(f"master={master!r} is not a Spark master", hint='write master="local[2]"')
    if containers is not None and type(containers) is not int:
        raise UsageError(f"containers={containers!r} is not a number of containers", hint="write containers=2")
    if stages is not None and (isinstance(stages, str) or not isinstance(stages, Sequence)):
        raise UsageError(f"stages={stages!r} is not a list of stages", hint=f"write stages=[{stages!r}]")
    if conf is not None and not isinstance(conf, Mapping):
        raise UsageError(f"conf={conf!r} has no keys", hint='write conf={"spark.executor.memory": "4g"}')
    for key in conf if isinstance(conf, Mapping) else ():
        if str(key).startswith("spark.headrace."):  # they are read before Spark starts
            raise UsageError(f"conf= can't say {key}", hint="give it as an option, a variable, or to spark-submit")


SAID_AT_START = "interrupted: ends once Spark has started; Ctrl-C again ends it at once"


class Launch:
    """Checks that an app can run, and runs it once. Its metadata store is open from the one to the other."""

    def __init__(
        self,
        graph: Graph,
        metadata: SecretUrl | None,
        options: RunOptions,
        before: Callable[[MetadataStore], None] | None = None,
    ) -> None:
        """Raises what keeps the app from running. ``before`` is done first. ``metadata`` is the URL of its store."""
        self.graph, self.options = graph, options
        self.metadata_url = metadata
        if not options.local:
            check_not_connect()
        self._metadata = open_metadata(Path(graph.settings.home), metadata)
        try:
            if before is not None:
                before(self._metadata)
            self._checked = check_run(graph, self._metadata, options.stages, options.consent)
        except BaseException:
            self._metadata.close()
            raise

    def run(self, control: RunControl, line: ProgressLine | None) -> None:
        began, options = time.monotonic(), self.options
        try:
            if options.local:
                status = run_local(self._checked, line, options.savepoint, options.wanted, control)
            else:
                from headrace.run.spark.runner import run_on_spark

                status = run_on_spark(self._checked, options, line, control)
        except BaseException:
            if line is not None:
                line.close()
            raise
        finally:
            self._metadata.close()
        if line is not None:
            line.end(how_it_ended(self.graph.app, status, time.monotonic() - began))


# -- run ---------------------------------------------------------------------------------------------
AT_EXIT_S = 10.0
"""How long the end of the interpreter waits for runs to drain."""
_LOOK_S = 1.0
_STUCK_S = 10.0
"""How long after its app has failed a run may take to end; then a function of the app keeps its thread."""
_log = logger(__name__)


class Run:
    """An app that runs beside this code, from ``App.start``. As a context manager it drains, or stops on an error.

    Dropping the object ends nothing: ``hr.runs.running()`` has it. Ctrl-C ends a ``wait``, and not the app.

    Examples
    --------
    >>> with app.start(local=True, progress=False) as run:
    ...     status = run.wait()
    >>> status.state
    'finished'
    """

    def __init__(self, launch: Launch, line: ProgressLine | None) -> None:
        self._launch, self._line = launch, line
        self._control = RunControl()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._final: AppStatus | None = None
        self._since = time.strftime("%H:%M:%S")
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._perform, name=f"run-{launch.graph.app}", daemon=True)

    @property
    def app(self) -> str:
        """The app's name.

        >>> run.app
        'shop'
        """
        return self._launch.graph.app

    def status(self) -> RunStatus:
        """Return how the run is now, or how it has ended; a notebook shows a table. Never raises what made it fail.

        Examples
        --------
        >>> print(run.status())
        shop finished  0 msg/s  sales done
        """
        over = self._ended.is_set()
        found = self._found()
        state = "failed" if over and self._error is not None else found.state if found is not None else "starting"
        error: BaseException | None = self._error if over else None
        if error is None and found is not None and found.error is not None:
            error = found.error.as_error()
        return RunStatus(self.app, state, error, found)

    def wait(self, timeout: Duration | None = None) -> RunStatus:
        """Wait until the app has ended, or for ``timeout`` (``"10s"``, or a ``timedelta``). Raises what made it fail.

        The ``state`` is then ``"finished"`` or ``"stopped"``; if the timeout is over, another one.

        Examples
        --------
        >>> run.wait(timeout="10s").state
        'finished'
        """
        if self._await(timeout) and self._error is not None:
            raise self._error
        return self.status()

    def drain(self, timeout: Duration | None = None) -> RunStatus:
        """Make the app finish what it has read, commit and end, and wait for that. Raises what made it fail.

        The next run goes on there. On Spark an app that is still starting ends without having read anything. Without a
        ``timeout`` it waits for one call of a function no longer than the app's ``drain_timeout``.

        Examples
        --------
        >>> run.drain().state
        'finished'
        """
        if not self._ended.is_set():
            self._control.request()
        return self.wait(timeout)

    def stop(self, timeout: Duration | None = "30s") -> RunStatus:
        """End the app at once, without a commit, and wait for that. It is as safe as a crash. A failure isn't raised.

        What was not committed is read again by the next run. ``drain`` takes longer, and leaves nothing to repeat.
        Raises ``UnavailableError`` if the app is still running after the ``timeout``; None: it waits for as long as it
        takes.

        Examples
        --------
        >>> run.stop().state
        'finished'
        """
        if not self._ended.is_set():
            self._control.stop()
        if not self._await(timeout):
            raise UnavailableError(
                f"app {self.app!r} didn't stop within {timeout}: {self.status()}",
                hint="it ends when the running function returns; headrace status names that function",
            )
        return self.status()

    def metrics(self) -> pl.DataFrame:
        """Return all metrics of the run, as ``/metrics`` shows them: a row for each series. Empty before the app runs.

        It has the ``name``, ``kind`` and ``value``, a column for each label, and the ``buckets`` of histograms.

        Examples
        --------
        >>> read = run.metrics().filter(pl.col("name") == "headrace_task_messages_in_total")
        >>> read.select("stage", "value").rows()
        [('sales', 2.0)]
        """
        found = self._found()
        return table_of_series([] if found is None else list(all_series(found, WallClock().now_ms())))

    def savepoint(self, name: str, timeout: Duration = "60s") -> None:
        """Take a savepoint of the app, which must be running, and goes on meanwhile. See the page "Savepoints".

        Its ``name`` must be new. ``timeout`` is how long the tasks may take to commit together: ``"10s"``, or a
        ``timedelta``.

        Examples
        --------
        >>> run.savepoint("before-the-change")
        Traceback (most recent call last):
        ...
        headrace.core.errors.UsageError: app 'shop' isn't running: shop finished  0 msg/s  sales done
        ...
        """
        patience_ms = to_ms(timeout, "timeout", error=UsageError)
        if self._ended.is_set() or self._control.coordinator is None:
            raise UsageError(
                f"app {self.app!r} isn't running: {self.status()}", hint="take the savepoint while the app is running"
            )
        home = Path(self._launch.graph.settings.home)
        with existing_metadata(home, self._launch.metadata_url) as metadata:
            take_running(home, self.app, metadata, name, patience_ms / 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.drain()
            return
        try:
            self.stop()
        except HeadraceError as late:  # the error of the block counts
            _log.warning("the app is still running", app=self.app, error=late.message)

    @override
    def __repr__(self) -> str:
        return f"Run({self.status()})"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def _perform(self) -> None:
        try:
            self._launch.run(self._control, self._line)
        except BaseException as error:  # noqa: BLE001  # raised by whoever waits for it
            self._error = error
            _log.error("the app has failed; its Run object holds the error", app=self.app, kind=type(error).__name__)
            if self._line is not None:
                self._line.end(f"{self.app} failed: {error}")
        finally:
            if (coordinator := self._control.coordinator) is not None:
                self._final = msgspec.structs.replace(coordinator.status(), ended_at=WallClock().now_ms())
                self._control.coordinator = None  # only its final facts are kept
            self._ended.set()
            with _lock:
                _runs.remove(self)

    def _found(self) -> AppStatus | None:
        coordinator = self._control.coordinator  # read this first, because it is removed once the final status exists
        return self._final if coordinator is None else coordinator.status()

    def _await(self, timeout: Duration | None) -> bool:
        end = None if timeout is None else time.monotonic() + to_ms(timeout, "timeout", error=UsageError) / 1000
        failed_since: float | None = None
        while not self._ended.is_set():
            now = time.monotonic()
            if end is not None and now >= end:
                return False
            self._ended.wait(_LOOK_S if end is None else min(_LOOK_S, end - now))
            found = self._found()
            if found is None or found.error is None:
                continue
            failed_since = now if failed_since is None else failed_since
            if now - failed_since >= _STUCK_S and not self._ended.is_set():
                raise found.error.as_error()
        return True


# -- the runs of this process
_lock = threading.Lock()
_runs: list[Run] = []


def running() -> list[Run]:
    """Return the runs that ``App.start`` has begun in this process and that haven't ended, the oldest first.

    Examples
    --------
    >>> hr.runs.running()
    []
    """
    with _lock:
        return list(_runs)


def make_room(app: str, home: str, stages: set[str], *, replace: bool) -> None:
    """Raise ``UsageError`` if some of these stages of the app (empty: all) run in this process; or drain them."""
    for run in running():
        mine, graph = set(run._launch.options.stages), run._launch.graph
        apart = mine and stages and mine.isdisjoint(stages)
        if apart or (graph.app, graph.settings.home) != (app, home) or run._ended.is_set():
            continue
        if not replace:
            raise UsageError(
                f"app {app!r} is already running in this process, since {run._since}: {run.status()}",
                hint="end it with run.drain() or run.stop() (hr.runs.running() returns the run), or write "
                "app.start(replace=True)",
            )
        with suppress(HeadraceError):  # it has failed: ``wait`` raises that
            run.drain()


def begin(launch: Launch, line: ProgressLine | None) -> Run:
    run = Run(launch, line)
    with _lock:
        _drain_at_exit()
        _runs.append(run)
    run._thread.start()
    return run


@cache
def _drain_at_exit() -> None:
    """Drain the runs at exit, while pools of threads still take work: before ``atexit`` calls anything."""
    import concurrent.futures.thread  # noqa: F401 - which asks for its own call when it is imported

    register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(_drain_all)


def _drain_all() -> None:
    mine = [run for run in running() if run._pid == os.getpid()]  # not in a fork
    for run in mine:
        run._control.request()
    end = time.monotonic() + AT_EXIT_S
    for run in mine:
        run._ended.wait(max(0.0, end - time.monotonic()))


def check_not_live(graph: Graph) -> None:
    """Raise ``UsageError`` if the app has run live in its home: a batch job would publish its results again."""
    app = graph.app
    with existing_metadata(Path(graph.settings.home), graph.settings.metadata) as metadata:
        if metadata and recorded(metadata, app, Timelines(metadata, app).current):
            raise UsageError(
                f"app {app!r} has run live in this home, so its results would appear twice",
                hint="look at them with app.to_dataframe(...), which publishes nothing; or publish them anyway with "
                "--again or again=True",
            )
