"""The public ``App``: the declarations of ``headrace.api``, plus planning, running and testing.

It is above ``run``, ``spark`` and ``kit`` because it starts them; nothing below imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from headrace.api.app import Declarations
from headrace.core.deployment import PROGRAM_MODULE, setting
from headrace.core.errors import HeadraceError, UsageError, needing
from headrace.core.log import logging_as_said

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from headrace.api.draft import Sample
    from headrace.api.stream import Stream
    from headrace.kit.harness import TestApp
    from headrace.life.metadata import MetadataStore
    from headrace.plan.render import ReadablePlan
    from headrace.run.run import Launch, Run, RunOptions
    from headrace.spark.batch.runner import BatchOptions


class App(Declarations):
    """A stream processing app: declare it, then ``run`` it. Building it runs nothing.

    Parameters
    ----------
    name
        The app's name.
    home
        The folder for streams, state and metadata. By default what the deployment says, or ``.headrace``. A deployment
        says settings by variables (``HEADRACE_HOME``), in Spark's settings or in a file: see the page "Settings".
    metadata
        The URL of a PostgreSQL database for the metadata, so that drivers and commands may run on several machines:
        ``postgresql://user:password@host/database``. It needs ``pip install "headrace[postgres]"``. By default
        the deployment's, or an SQLite file in the home. The password is never shown.
    intermediate_partitions
        The partition count of intermediate streams, unless something else determines it.
    guarantee
        ``"exactly_once"``; or ``"at_least_once"``, where some messages are processed again after a failure.
    checkpoint_interval
        The time between two checkpoints. By default the deployment's, or one second.
    ahead_bytes_max
        A stage stops reading while its output is this many bytes ahead of its reader.
    restarts_max
        How many times in a row a failed container is restarted. A commit resets the count.
    drain_timeout
        How long a drain may take. After that, the app ends at once with an error that says what it was waiting for. By
        default the deployment's, or one minute.
    hung_after
        How long one call of a function may take before its container is killed and restarted. None sets no limit.
    durability
        ``"commit"``: committed results survive a power cut, because a checkpoint waits until its streams, its changelog
        and the part of the embedded log that it has read are on the disk. ``"process"``: they survive killed processes,
        but a power cut may lose the last seconds of only some files. The app then refuses to start. By default the
        deployment's, or ``"commit"``.
    lost_results
        What to do if an output has lost rows that the app has committed, for example because a table was emptied, or
        the power failed: ``"refuse"`` to start, or ``"accept"`` the loss and continue.
    grouping
        Whether each partition (``"partition"``) or each container (``"container"``) gets a task.
    startpoints
        The app's own kinds of startpoints; see ``hr.startpoints.CustomStartpoint``.
    system
        Where inputs and outputs are that name no system of their own; see ``hr.io``. A URL such as
        ``"kafka://host:9092"`` is ``hr.io.kafka(brokers="host:9092")``: topics with the names of the inputs and
        outputs. By default where ``internal`` is.
    internal
        Where the app keeps its own streams: intermediate streams and changelogs. By default in ``system`` if that keeps
        Headrace's frames, as ``hr.io.kafka_log(...)`` does; else in the embedded log under ``home``, which belongs to
        one machine.
    snapshots
        The object store for snapshots of the app's state: a URL such as ``"s3://bucket/prefix"``, or the result of
        ``hr.io.object_store``. Containers then need no shared disk for snapshots. It needs ``headrace[objects]``. By
        default the deployment's, or folders under ``home``.
    standby
        How many copies of each task's state other hosts keep current, 0 to 3. On a cluster it needs ``snapshots``. By
        default the deployment's, or none.
    peek
        Whether the live page and ``headrace peek`` may show messages, to anyone who can open the page. By default what
        the deployment says, or not.

    Examples
    --------
    >>> import headrace as hr
    >>> app = hr.App("page-views", system="kafka://localhost:9092")
    >>> app.input("views", {"member": str, "url": str}).filter("url = '/cart'").send_to("carts")
    """

    @override
    def _preview(self, node: str, rows: int, sample: Sample) -> pl.DataFrame:
        from headrace.kit.harness import head

        return head(self._draft, node, rows, sample)

    def sql(
        self,
        text: str,
        *,
        name: str | None = None,
        functions: Mapping[str, Callable[..., pl.Expr]] | None = None,
        tables: Mapping[str, Stream] | None = None,
    ) -> Stream | None:
        """Declare steps in SQL: ``CREATE TABLE``, ``CREATE VIEW``, ``INSERT INTO ... SELECT``, and queries.

        Tables are the app's inputs, those of ``CREATE TABLE ... WITH ('connector' = ...)``, views, and the streams in
        ``tables``. If the last statement of ``text`` is a query, its flow is returned, for the methods of a stream;
        ``name`` begins the names of its state. ``functions`` are yours, from Polars expressions to one. What can't be
        planned is refused with its line and column. It needs ``pip install "headrace[sql]"``.

        Examples
        --------
        >>> from datetime import datetime
        >>> app = hr.App("by-page")
        >>> clicks = app.input("clicks", {"url": str, "at": datetime}, event_time="at")
        >>> busy = app.sql("SELECT url, count(*) AS n FROM clicks GROUP BY url HAVING count(*) > 10", name="busy")
        >>> busy.changing
        True
        """
        return self._sql(text, name, functions, tables, None)

    def _sql(
        self,
        text: str,
        name: str | None,
        functions: Mapping[str, Callable[..., pl.Expr]] | None,
        tables: Mapping[str, Stream] | None,
        file: str | None,
    ) -> Stream | None:
        with needing("sqlglot", "SQL", "sql", "where apps are declared"):
            from headrace.sql.program import planned
        return planned(self, text, name, functions or {}, tables or {}, file)

    def plan(self, containers: int = 1) -> ReadablePlan:
        """Plan the app for the streams that exist now, and this number of ``containers``. Runs nothing.

        Only ``grouping="container"`` depends on the number. ``str`` of a plan equals the result of ``explain``; a
        notebook shows tables. Raises ``PlanError`` if an input doesn't exist, or streams that are joined have different
        partition counts.
        """
        from headrace.life.metadata import existing_metadata
        from headrace.plan.inventory import NO_CONSENT
        from headrace.plan.render import ReadablePlan
        from headrace.run.planning import Deployment

        graph = self.graph()
        with existing_metadata(Path(graph.settings.home), graph.settings.metadata) as metadata:
            return ReadablePlan.of(Deployment(graph, metadata, NO_CONSENT).planned(containers).plan)

    def explain(self, containers: int = 1) -> str:
        """The plan for that many ``containers`` as text: stages, operators with their lines, streams and tables."""
        return str(self.plan(containers))

    def test(self, partitions: int | Mapping[str, int] = 1) -> TestApp:
        """Start the app in memory, with a clock that only the test advances; see ``headrace.kit.harness``.

        ``partitions`` are the counts of the inputs: one number for all, or a number by the name of each input.
        """
        from headrace.kit.harness import TestApp

        return TestApp(self.graph(), partitions)

    def run(
        self,
        *,
        master: str | None = None,
        containers: int | None = None,
        stages: Sequence[str] | None = None,
        local: bool = False,
        conf: Mapping[str, str] | None = None,
        progress: bool = True,
        drop_state: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        savepoint: str = "",
        listen: str | None = None,
        advertise: str | None = None,
        batch: bool = False,
        until: str | None = None,
        again: bool = False,
        backfill: bool = False,
        tables: Mapping[str, DataFrame | str] | None = None,
    ) -> None:
        """Run the app until it ends, or until Ctrl-C (SIGINT) or SIGTERM has drained it.

        Parameters
        ----------
        master
            The Spark master. By default the deployment's, the one that spark-submit gives, or ``local[*]``.
        containers
            How many Spark tasks share the work. By default as many as the deployment says, or one for each free slot,
            and no more than the app has tasks.
        stages
            Run only these stages, for an app that is deployed in parts.
        local
            Run in this process, without Spark.
        conf
            More Spark settings.
        progress
            Whether to show a line of progress, and how the app ended, on standard error.
        drop_state, rename
            The ids of steps, tables, streams and inputs that may start over empty, and new ids with the former ones:
            ``{"per-minute": "per-10s"}``. See the page "Changing an app".
        savepoint
            Take a savepoint of this name when the app ends, before it drains. See the page "Savepoints".
        listen, advertise
            The address on which the coordinator listens for containers and commands, ``"HOST"``, ``"HOST:PORT"`` or
            ``":PORT"``, and that at which they reach it, if it differs. By default the
            deployment's; without them loopback, or on a cluster where Spark's driver listens. See the pages "Settings"
            and "Deploying".
        batch
            Run the app as one Spark job over its inputs' present contents, without containers. See the page "Batch".
        until
            Where a batch job stops reading inputs that don't end: ``"now"``, a time such as ``"2026-01-31T12:00Z"``, or
            offsets such as ``"views/0=1200,views/1=980"``.
        again
            Whether to run a batch job even if its results are published already; they then appear twice.
        backfill
            When the app first starts, compute the history up to ``until`` in a batch job, then continue live from
            there. See the page "From history to live".
        tables
            As for the method ``backfill``.

        Raises
        ------
        HeadraceError
            The error that made the app fail.
        """
        from headrace.run.coordinated import RunControl
        from headrace.run.progress import progress_line
        from headrace.run.run import SAID_AT_START, RunOptions, check_kind_of_run, check_options, refuse

        check_kind_of_run(batch=batch, backfill=backfill, until=until, again=again, tables=tables)
        if batch:
            refuse("a batch job, which has no containers", containers, stages, local, savepoint, listen, advertise)
            check_options(master, containers, stages, conf)
            self._check_loaded()
            with logging_as_said():
                self._run_batch(master, conf, until, again=again, progress=progress)
            return

        options = RunOptions.of(
            local,
            master,
            containers,
            conf,
            stages,
            drop_state,
            rename,
            listen,
            advertise,
            savepoint,
            app=self.name,
        )
        launch = self._launch(options, self._history(options, until, tables, progress=progress) if backfill else None)
        control = RunControl(SAID_AT_START if progress and not local else "")
        with logging_as_said():
            launch.run(control, progress_line() if progress else None)

    def start(
        self,
        *,
        master: str | None = None,
        containers: int | None = None,
        stages: Sequence[str] | None = None,
        local: bool = False,
        conf: Mapping[str, str] | None = None,
        progress: bool = True,
        drop_state: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        savepoint: str = "",
        listen: str | None = None,
        advertise: str | None = None,
        until: str | None = None,
        backfill: bool = False,
        tables: Mapping[str, DataFrame | str] | None = None,
        replace: bool = False,
    ) -> Run:
        """Run the app in a thread beside this code: from a cell of a notebook, or from a script.

        An error that keeps the app from starting is raised at once. ``wait`` raises later ones.

        Parameters
        ----------
        master
            As for ``run``.
        containers
            By default one for each free slot but one, which is left to other jobs of the session.
        stages, local, conf
            As for ``run``.
        progress
            Whether to show progress: below the cell of a notebook, elsewhere on standard error. A Python prompt shows
            none.
        drop_state, rename, savepoint, listen, advertise
            As for ``run``.
        until, backfill, tables
            As for ``run``. With ``backfill``, this call returns when the history is computed.
        replace
            Whether to first drain a run of this app in this process, such as one that an earlier version of the cell
            started. By default such a run is an error.

        Returns
        -------
        Run
            A context manager with ``wait``, ``drain``, ``stop``, ``status`` and more; see ``hr.runs``.

        Raises
        ------
        PlanError
            If the app can't be planned, or doesn't fit its kept state.
        UsageError
            If the app is already running in this process.
        """
        from headrace.run.progress import progress_line
        from headrace.run.run import RunOptions, begin, check_kind_of_run, make_room

        check_kind_of_run(batch=False, backfill=backfill, until=until, again=False, tables=tables)
        options = RunOptions.of(
            local,
            master,
            containers,
            conf,
            stages,
            drop_state,
            rename,
            listen,
            advertise,
            savepoint,
            beside=True,
            app=self.name,
        )
        first = self._history(options, until, tables, progress=progress) if backfill else None
        make_room(self.name, str(Path(self.settings.home).absolute()), set(options.stages), replace=replace)
        return begin(self._launch(options, first), progress_line(beside=True) if progress else None)

    def _history(
        self, options: RunOptions, until: str | None, tables: Mapping[str, DataFrame | str] | None, *, progress: bool
    ) -> Callable[[MetadataStore], None]:
        from headrace.run.planning import at_home
        from headrace.run.run import refuse
        from headrace.spark.batch.backfill import Backfill, begin_with_backfill

        refuse("a run that begins with a backfill", None, options.stages or None, False, "")
        batch = _batch_options(options.master, options.conf, until, again=False, progress=progress)
        asked = Backfill.of(until, tables)
        return lambda metadata: begin_with_backfill(at_home(self.graph()), metadata, batch, asked)

    def _launch(self, options: RunOptions, before: Callable[[MetadataStore], None] | None = None) -> Launch:
        from headrace.run.planning import at_home
        from headrace.run.run import Launch, make_room

        self._check_loaded()
        graph = at_home(self.graph())
        make_room(graph.app, graph.settings.home, set(options.stages), replace=False)
        return Launch(graph, self.settings.metadata, options, before)

    def _check_loaded(self) -> None:
        if getattr(sys.modules.get(PROGRAM_MODULE), "__headrace_loading__", False):
            raise UsageError(
                f"the file of app {self.name!r} runs the app while the file is being loaded",
                hint='put app.run() under `if __name__ == "__main__":`',
            )

    def backfill(
        self,
        until: str,
        *,
        tables: Mapping[str, DataFrame | str] | None = None,
        savepoint: str = "backfill",
        publish: bool = True,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        again: bool = False,
        progress: bool = True,
    ) -> None:
        """Compute the app's history in a Spark job, ending with a savepoint from which a live run continues.

        The job publishes the windows that have ended; the others stay open in the savepoint. Restore it with
        ``hr.restore_savepoint``. ``run(backfill=True)`` does both. See the page "From history to live".

        Parameters
        ----------
        until
            Where the history of inputs ends, as for ``run``.
        tables
            Inputs whose history is in a table: a Spark DataFrame, the name of a table in Spark's catalog, or
            ``"parquet:/path"``. The job reads the rows with an event time before ``until`` from the table; the live run
            reads later rows from the input.
        savepoint
            The name of the savepoint.
        publish
            Whether to publish the results. With False, the app may be running meanwhile.
        master, conf, again, progress
            As for ``run``.

        Raises
        ------
        PlanError
            If an input can't be read in a batch, or its history can't come from a table.
        UsageError
            If the app has run before and ``publish`` is true, or if a savepoint of this name exists.
        """
        from headrace.life.metadata import open_metadata
        from headrace.run.planning import at_home
        from headrace.spark.batch.backfill import Backfill, backfill

        graph = at_home(self.graph())
        asked = Backfill.of(until, tables, savepoint, publish=publish)
        options = _batch_options(self._master(master), conf, until, again=again or not publish, progress=progress)
        with closing(open_metadata(Path(graph.settings.home), self.settings.metadata)) as metadata:
            backfill(graph, metadata, options, asked)

    def to_dataframe(self, output: str, spark: SparkSession | None = None, *, until: str | None = None) -> DataFrame:
        """The results that the app would write to an ``output``, as a lazy Spark DataFrame.

        The app runs as an ordinary Spark job over the present contents of its inputs, and publishes nothing. ``spark``
        is the session, by default the active one, or a new one. ``until`` says where to stop reading inputs that don't
        end: ``"now"``, or a time such as ``"2026-01-31T12:00Z"``. See the page "Batch".
        """
        from headrace.run.batch_ends import Until
        from headrace.spark.batch.runner import to_dataframe

        self._warn_of_startpoints()
        return to_dataframe(self.graph(), output, spark, None if until is None else Until.of(until))

    def _warn_of_startpoints(self) -> None:
        from headrace.coordinator.startpoints import warn_of_unapplied
        from headrace.life.metadata import existing_metadata

        with existing_metadata(Path(self.settings.home), self.settings.metadata) as metadata:
            warn_of_unapplied(metadata, self.name, "a batch job")

    def _run_batch(
        self, master: str | None, conf: Mapping[str, str] | None, until: str | None, *, again: bool, progress: bool
    ) -> None:
        from headrace.run.planning import at_home
        from headrace.spark.batch.runner import run_batch

        self._warn_of_startpoints()
        options = _batch_options(self._master(master), conf, until, again=again, progress=progress)
        run_batch(at_home(self.graph()), options)

    def _master(self, given: str | None) -> str | None:
        master: str | None = setting("master", given, self.name)
        return master

    def _repr_html_(self) -> str:
        try:
            return self.plan()._repr_html_()
        except (HeadraceError, OSError) as error:
            return f"<div><p><b>{escape(repr(self))}</b></p><pre>{escape(str(error))}</pre></div>"


def sql_app(file: str | Path, *, functions: Mapping[str, Callable[..., pl.Expr]] | None = None, **settings: Any) -> App:
    """The app that a ``file`` of SQL declares; its name is that of the file, and ``settings`` are those of ``hr.App``.

    ``functions`` are as for ``App.sql``. ``headrace run counts.sql`` does the same.

    Examples
    --------
    >>> from pathlib import Path
    >>> file = Path("counts.sql")
    >>> _ = file.write_text("CREATE TABLE clicks (url STRING); INSERT INTO counts SELECT url FROM clicks")
    >>> hr.sql_app(file).name
    'counts'
    """
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", hint="name a file of SQL statements") from None
    settings.setdefault("name", path.stem)
    app = App(**settings)
    app._sql(text, None, functions, None, str(path))
    return app


def _batch_options(
    master: str | None, conf: Mapping[str, str] | None, until: str | None, *, again: bool, progress: bool
) -> BatchOptions:
    from headrace.run.batch_ends import Until
    from headrace.spark.batch.runner import BatchOptions
    from headrace.streams.ranges import stream_of_results

    def say(line: str) -> None:
        if progress:
            print(line, file=sys.stderr)  # noqa: T201

    return BatchOptions(
        open_stream=stream_of_results,
        master=master,
        conf=conf or {},
        until=None if until is None else Until.of(until),
        again=again,
        say=say,
    )
