"""A run that goes on beside the code that has started it: in a cell of a notebook, or in a script.

Each run has a thread, in which everything happens that a run in the calling thread does. The runs of this process are
remembered until they have ended, so callers needn't keep the ``Run``. It doesn't handle signals: they are for the run
in the main thread, if there is one. When the interpreter ends, the runs are drained for some seconds; what is left of
them ends with the process, and they resume from their last checkpoints.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import polars as pl
from typing_extensions import override

from headrace.core.clock import WallClock
from headrace.core.duration import Duration, to_ms
from headrace.core.errors import HeadraceError, UnavailableError, UsageError
from headrace.core.log import logger
from headrace.metadata.opening import existing_metadata
from headrace.runners.control import RunControl
from headrace.runners.coordination.exposition import all_series
from headrace.runners.coordination.messages import AppStatus
from headrace.runners.launch import Launch
from headrace.runners.progress import ProgressLine
from headrace.runners.run_status import RunStatus, table_of_series
from headrace.runners.savepoints.taking import take_running

AT_EXIT_S = 10.0
"""How long the end of the interpreter waits for runs to drain."""

_LOOK_S = 1.0
_STUCK_S = 10.0
"""How long after its app has failed a run may take to end; then a function of the app keeps its thread."""

_log = logger(__name__)


class Run:
    """An app that runs beside this code: what ``App.start`` returns. As a context manager, it drains at the end.

    An exception in the block stops it instead. Dropping the object ends nothing: ``hr.runs.running()`` has it. Ctrl-C
    ends a ``wait``, and not the app.

    Examples
    --------
    >>> with app.start(local=True, progress=False) as run:
    ...     status = run.wait()
    >>> status.state
    'finished'
    """

    def __init__(self, launch: Launch, line: ProgressLine | None) -> None:
        """Called by ``App.start``."""
        self._launch = launch
        self._line = line
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
        """Return how the run is now, or how it has ended. Never raises what made the app fail.

        Returns
        -------
        RunStatus
            Its ``state``, its ``error`` and more. A notebook shows it as a table.

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
        """Wait until the app has ended.

        Parameters
        ----------
        timeout
            How long at most: ``"10s"``, or a ``timedelta``. By default for as long as it takes.

        Returns
        -------
        RunStatus
            The ``state`` is ``"finished"``, or ``"stopped"``; if the timeout is over, another one.

        Raises
        ------
        HeadraceError
            What made the app fail.

        Examples
        --------
        >>> run.wait(timeout="10s").state
        'finished'
        """
        if self._await(timeout) and self._error is not None:
            raise self._error
        return self.status()

    def drain(self, timeout: Duration | None = None) -> RunStatus:
        """Make the app finish what it has read, commit and end, and wait for that.

        The next run goes on there. On Spark an app that is still starting ends without having read anything.

        Parameters
        ----------
        timeout
            How long to wait: ``"10s"``, or a ``timedelta``. By default for as long as it takes: for one call of a
            function no longer than the app's ``drain_timeout``.

        Returns
        -------
        RunStatus
            As of ``wait``.

        Raises
        ------
        HeadraceError
            What made the app fail.

        Examples
        --------
        >>> run.drain().state
        'finished'
        """
        if not self._ended.is_set():
            self._control.request()
        return self.wait(timeout)

    def stop(self, timeout: Duration | None = "30s") -> RunStatus:
        """End the app at once, without a commit, and wait for that. It is as safe as a crash.

        What was not committed is read again by the next run. ``drain`` takes longer, and leaves nothing to repeat.

        Parameters
        ----------
        timeout
            How long to wait: ``"10s"``, or a ``timedelta``. None: for as long as it takes.

        Returns
        -------
        RunStatus
            As of ``wait``. What made the app fail is in it, and isn't raised.

        Raises
        ------
        UnavailableError
            If the app is still running after the timeout.

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
        """Return all metrics of the run, as ``/metrics`` shows them.

        Returns
        -------
        polars.DataFrame
            A row for each series: its ``name``, ``kind`` and ``value``, a column for each label, and the ``buckets`` of
            histograms. Empty before the app runs.

        Examples
        --------
        >>> read = run.metrics().filter(pl.col("name") == "headrace_task_messages_in_total")
        >>> read.select("stage", "value").rows()
        [('sales', 2.0)]
        """
        found = self._found()
        return table_of_series([] if found is None else list(all_series(found, WallClock().now_ms())))

    def savepoint(self, name: str, timeout: Duration = "60s") -> None:
        """Take a savepoint of the app, which goes on meanwhile. See the page "Savepoints".

        Parameters
        ----------
        name
            The name of the savepoint.
        timeout
            How long its tasks may take to commit together: ``"10s"``, or a ``timedelta``.

        Raises
        ------
        UsageError
            If there is a savepoint of this name, or the app doesn't run.

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
        """The run in a notebook."""
        return self.status()._repr_html_()

    # -- inside

    def _begin(self) -> None:
        self._thread.start()

    def _perform(self) -> None:
        try:
            self._launch.run(self._control, self._line)
        except BaseException as error:  # noqa: BLE001  # raised by whoever waits for it
            self._error = error
            _log.error("the app has failed; its Run object holds the error", app=self.app, kind=type(error).__name__)
            if self._line is not None:
                self._line.end(f"{self.app} failed: {error}")
        finally:
            coordinator = self._control.coordinator
            if coordinator is not None:
                self._final = msgspec.structs.replace(coordinator.status(), ended_at=WallClock().now_ms())
                self._control.coordinator = None  # only its final facts are kept
            self._ended.set()
            with _lock:
                _runs.remove(self)

    def _found(self) -> AppStatus | None:
        coordinator = self._control.coordinator  # read this first, because it is removed once the final status exists
        return self._final if coordinator is None else coordinator.status()

    def _await(self, timeout: Duration | None) -> bool:
        """Wait for the end; False if the timeout is over before."""
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

    def _conflicts(self, launch_app: str, home: str, stages: set[str]) -> bool:
        mine = set(self._launch.options.stages)
        same = (self.app, self._launch.graph.settings.home) == (launch_app, home)
        return same and not self._ended.is_set() and (not mine or not stages or not mine.isdisjoint(stages))


# -- the runs of this process

_lock = threading.Lock()
_runs: list[Run] = []
_watched: list[Callable[[], None]] = []
"""What the end of the interpreter calls, once there has been a run."""


def running() -> list[Run]:
    """Return the runs that ``App.start`` has begun in this process and that haven't ended, the oldest first.

    Returns
    -------
    list of Run

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
        if not run._conflicts(app, home, stages):
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
    """Start a run in a thread of its own."""
    run = Run(launch, line)
    with _lock:
        if not _watched:
            _at_exit(_drain_all)
            _watched.append(_drain_all)
        _runs.append(run)
    run._begin()
    return run


def _at_exit(call: Callable[[], None]) -> None:
    """Have this called when the interpreter ends, while pools of threads still take work.

    They stop taking it before ``atexit`` calls anything. What comes last here is called first.
    """
    import concurrent.futures.thread  # noqa: F401 - which asks for its own call when it is imported

    register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(call)


def _drain_all() -> None:
    """The interpreter ends: have the runs drain, and wait for a while."""
    mine = [run for run in running() if run._pid == os.getpid()]  # not in a fork
    for run in mine:
        run._control.request()
    end = time.monotonic() + AT_EXIT_S
    for run in mine:
        run._ended.wait(max(0.0, end - time.monotonic()))
