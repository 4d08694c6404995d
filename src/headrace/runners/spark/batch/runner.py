"""Run an app as a batch job on Spark, or return its results as DataFrames.

A run has two steps. First Spark computes everything that leaves the app, and keeps it in the app's home. Then this
process publishes it, output by output. If the run dies in the first step, nothing is published, and the next run starts
over; in the second, the next run continues. The journal says which it is.

A backfill is such a run with a ``Handover``: a savepoint comes last.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from headrace.api.specs import Graph, Role
from headrace.core import errors
from headrace.core.clock import WallClock
from headrace.core.errors import HeadraceError, InfrastructureError, PlanError, UsageError
from headrace.core.log import current_settings
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.runners.batch_ends import Until, ends_of
from headrace.runners.facts import gather_facts
from headrace.runners.interrupts import Interrupts
from headrace.runners.no_shared_disk import shares_no_disk
from headrace.runners.prepare import at_home, prepare_outputs
from headrace.runners.progress import set_aside
from headrace.runners.run_arguments import check_not_connect
from headrace.runners.spark.batch.job import BatchJob
from headrace.runners.spark.batch.journal import Entry, Journal
from headrace.runners.spark.batch.publishing import Open, pieces_of, publish
from headrace.runners.spark.batch.work import BatchPayload
from headrace.runners.spark.dataframes import dataframe_of
from headrace.runners.spark.parcel import user_folders
from headrace.runners.spark.session import close_context, open_session, prepare_session
from headrace.runners.spark.settings import is_on_this_machine
from headrace.runners.spark.shipping import ship
from headrace.runners.spark.watched_job import run_watched
from headrace.runtime.batch.notes import COUNTED, FOR_DRIVER, LEFT, counts_in
from headrace.runtime.batch.seam import Seam
from headrace.serdes.pieces import Piece

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Where and how to run a batch job. ``again``: although a run has been published. ``say`` shows progress.

    ``open_stream`` opens outputs that are streams of frames.
    """

    open_stream: Open

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    until: Until | None = None
    again: bool = False
    say: Say = lambda line: None


class Handover(ABC):
    """What a live run is to go on from, when the results are published.

    ``savepoint`` is its name. ``publishes``: the results are published, too.
    """

    savepoint: str
    publishes: bool

    @abstractmethod
    def given(self, spark: SparkSession, interrupts: Interrupts) -> Mapping[str, DataFrame] | None:
        """The history of inputs that isn't read from themselves, by id. None if a signal has ended that."""
        ...

    @abstractmethod
    def seam(self, folder: Path) -> Seam:
        """Where the batch stops; tasks leave their state in the folder."""
        ...

    @abstractmethod
    def finish(self, pieces: Iterable[Piece]) -> None:
        """Make the savepoint from the tasks' final state, unless it exists already."""
        ...


def run_batch(graph: Graph, options: BatchOptions) -> None:
    """Compute what the app makes of all that its inputs hold, and publish it."""
    run_planned(_planned(graph), options, None)


def run_planned(planned: Plan, options: BatchOptions, handover: Handover | None) -> None:
    """Run a batch job by its journal."""
    app = planned.graph.app
    journal = Journal(Path(planned.graph.settings.home), app)
    with journal.held():
        words = str(options.until or "their ends")
        entry = journal.begin(words, again=options.again, savepoint="" if handover is None else handover.savepoint)
        outputs = _outputs(planned)
        if entry.state == "begun":
            entry = _compute(planned, journal, entry, options, outputs, handover)
        else:
            options.say(f"run {entry.run} of {app} is computed already; publishing the rest of it")
        try:
            if handover is None or handover.publishes:
                _publish(planned, journal, entry, options, outputs)
            if handover is not None:
                handover.finish(pieces_of(journal.results(entry), LEFT))
        except HeadraceError as error:
            again = "run it again: it continues to publish the computed results"
            error.hint = again if error.hint is None else f"{error.hint}; then {again}"
            raise
        if words := set_aside(counters_of(journal.results(entry))):
            options.say(f"of the messages, {words}")
        journal.note(entry, "published")


def counters_of(results: Path) -> Counter[str]:
    """What the tasks and readers of a run have counted. What Spark has done twice counts once."""
    counted = {piece.writer: counts_in(piece) for piece in pieces_of(results, COUNTED)}
    return sum((Counter(counts) for counts in counted.values()), Counter())


def _publish(planned: Plan, journal: Journal, entry: Entry, options: BatchOptions, outputs: list[str]) -> None:
    prepare_outputs(planned)
    for output in outputs:
        rows = publish(planned, output, entry.run, journal.results(entry), options.open_stream)
        options.say(f"published {rows:,} rows to {planned.streams[output].spec.stream}")


def to_dataframe(graph: Graph, output: str, spark: SparkSession | None, until: Until | None) -> DataFrame:
    """What the app writes to an output, as a DataFrame that is computed when it is used."""
    planned = _planned(at_home(graph))
    outputs = _outputs(planned)
    if output not in outputs:
        raise UsageError(f"the app has no output {output!r}", hint=f"it has {', '.join(outputs) or 'none'}")
    check_not_connect(spark)
    session = spark or open_session(f"headrace {graph.app}")
    return _job(planned, session, until, _held(planned)).rows(output)


def _planned(graph: Graph) -> Plan:
    """The plan of an app for the streams that exist now: that of a live run, so that both place keys alike."""
    return plan(graph, gather_facts(graph))


def _outputs(planned: Plan) -> list[str]:
    """What leaves the app. Raises ``PlanError`` for what a batch job can't write."""
    outputs = sorted(spec.id for spec in planned.graph.streams.values() if spec.role is Role.SINK)
    for table in planned.graph.tables.values():
        if table.id in outputs:
            raise PlanError(
                f"a batch job can't write to the remote table {table.id!r} ({table.location})",
                hint="run the app live, or leave the step out",
            )
    return outputs


def _held(planned: Plan) -> dict[str, DataFrame]:
    """The inputs that are DataFrames."""
    inputs = {id_: dataframe_of(spec) for id_, spec in planned.graph.streams.items()}
    return {id_: frame for id_, frame in inputs.items() if frame is not None}


def _job(
    planned: Plan, spark: SparkSession, until: Until | None, given: Mapping[str, DataFrame], seam: Seam | None = None
) -> BatchJob:
    prepare_session(spark)
    payload = BatchPayload(
        plan=planned,
        ends=ends_of(planned, until, frozenset(given)),
        now_ms=WallClock().now_ms(),
        python_path=user_folders(),
        log=current_settings(),
        seam=seam,
    )
    return BatchJob(spark, planned, ship(payload), given, seam=seam is not None)


def _compute(
    planned: Plan,
    journal: Journal,
    entry: Entry,
    options: BatchOptions,
    outputs: list[str],
    handover: Handover | None,
) -> Entry:
    """Compute a run's results, all of them or nothing. Raises ``KeyboardInterrupt`` if a signal has ended it."""
    began = time.monotonic()
    with Interrupts() as interrupts:
        try:
            run = _Run(planned, journal.results(entry), journal.left(entry), options, handover)
            done = run.compute(outputs, interrupts)
        except HeadraceError:
            if not interrupts.requested:
                raise
            done = False  # the signal has ended Spark, too
    if not done:
        options.say("interrupted: nothing is published, and the next run starts over")
        raise KeyboardInterrupt
    options.say(f"{planned.graph.app} computed in {time.monotonic() - began:.1f} s")
    return journal.note(entry, "computed")


@dataclass(frozen=True, slots=True)
class _Run:
    """The first step of a run: results go into the folder ``results``, the states of tasks into ``left``."""

    planned: Plan
    results: Path
    left: Path
    options: BatchOptions
    handover: Handover | None

    def compute(self, outputs: list[str], interrupts: Interrupts) -> bool:
        """Write the results. False if a signal has ended it."""
        theirs = SparkContext._active_spark_context
        named = f"headrace {self.planned.graph.app}"
        spark = open_session(named, self.options.master, self.options.conf)
        try:
            self._check_disk(str(spark.sparkContext.master))
            job = self._job(spark, interrupts)
            if job is None:
                return False
            pieces = job.pieces(outputs) if self.handover is None else job.last_pieces(outputs)
            writer = _by_output(pieces, self.planned, outputs).write.mode("overwrite")
            try:
                write = partial(writer.parquet, self.results.as_uri())
                return run_watched(spark.sparkContext, f"{named}: batch", write, _as_ours, interrupts)
            finally:
                job.close()
        finally:
            if theirs is None:
                close_context(spark.sparkContext)

    def _check_disk(self, master: str) -> None:
        """Raise ``UsageError`` if executors can't write into the driver's home."""
        graph = self.planned.graph
        if shares_no_disk(graph.settings) and not is_on_this_machine(master):
            raise UsageError(
                f"app {graph.app!r} can't run as a batch job: its machines share no disk, since its snapshots "
                f"are in {graph.settings.snapshots}, but a batch job keeps its results in the home",
                hint="run it with a local master, or with a shared home and without snapshots=",
            )

    def _job(self, spark: SparkSession, interrupts: Interrupts) -> BatchJob | None:
        until = self.options.until
        if self.handover is None:
            return _job(self.planned, spark, until, _held(self.planned))
        history = self.handover.given(spark, interrupts)
        return None if history is None else _job(self.planned, spark, until, history, self.handover.seam(self.left))


def _by_output(pieces: DataFrame, planned: Plan, outputs: list[str]) -> DataFrame:
    """Pieces in the order in which they are published: each partition of an output has a Spark partition."""
    places = [(id_, number) for id_ in outputs for number in range(planned.streams[id_].partitions)]
    places += [(note, 0) for note in FOR_DRIVER]
    known = sf.create_map(
        *(part for place, (id_, number) in enumerate(places) for part in (sf.lit(f"{id_}/{number}"), sf.lit(place)))
    )
    place = sf.element_at(known, sf.concat_ws("/", sf.col("stream"), sf.col("partition")))
    return pieces.repartitionById(len(places), place).sortWithinPartitions("first", "writer", "number")


_RAISED = re.compile(r"headrace\.core\.errors\.(\w+): (.*?)\n(?: SQLSTATE|\n|Driver stack)", re.S)


def _as_ours(said: str) -> HeadraceError:
    """The error of our own that a worker has raised; else what Spark says."""
    found = _RAISED.search(f"{said}\n\n")
    kind = getattr(errors, found[1], None) if found is not None else None
    if found is None or not isinstance(kind, type) or not issubclass(kind, HeadraceError):
        missing = "No module named 'headrace'" in said
        hint = "see Spark's log lines above" if not missing else "executors need Headrace: see docs/deploying.md"
        return InfrastructureError(f"Spark couldn't compute the results: {said[:1000]}", hint=hint)
    message, _, hint = found[2].partition("\n  hint: ")
    return kind(message, hint=hint or None)
