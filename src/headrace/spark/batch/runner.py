"""Run an app as a batch job on Spark, or return its results as DataFrames.

First Spark computes everything that leaves the app, and keeps it in the app's home. Then this process publishes it,
output by output. If the run dies in the first step, nothing is published, and the next run starts over; in the second,
the next run continues. A journal in the home says which it is::

    {"format":1,"run":3,"state":"computed","until":"now","savepoint":""}

A run is ``begun``, ``computed``, and ``published`` when its folder can be deleted. Results are published in portions:
each is a version of the writer ``<app>/batch/<output>``. They are files that stay as they are, so the portions are
always the same. A target knows the last one that it has. A backfill is such a run with a ``Handover``: a savepoint
comes last.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import pyarrow.dataset as ds
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from typing_extensions import override

from headrace.api.specs import Graph, Role, StreamSpec
from headrace.core import errors
from headrace.core.errors import (
    HeadraceError,
    InfrastructureError,
    PlanError,
    StateLockedError,
    UnavailableError,
    UsageError,
)
from headrace.core.files import decode_record, make_private_folder, replace_file
from headrace.plan.model import Plan
from headrace.plan.planner import plan
from headrace.rows.pieces import SCHEMA, TIME, Piece, pieces_in
from headrace.run.batch_ends import Until
from headrace.run.coordinated import Interrupts
from headrace.run.no_shared_disk import shares_no_disk
from headrace.run.planning import at_home, gather_facts, prepare_outputs
from headrace.run.progress import set_aside
from headrace.run.run import check_not_connect, check_not_live
from headrace.run.spark.dataframes import dataframe_of
from headrace.run.spark.hosting import run_watched
from headrace.run.spark.session import close_context, open_session
from headrace.run.spark.settings import is_on_this_machine
from headrace.spark.batch.handover import Handover
from headrace.spark.batch.job import batch_job
from headrace.stores.database import FolderLock
from headrace.systems.base import Target
from headrace.systems.registry import keeps_rows
from headrace.task.batch import COUNTED, FOR_DRIVER, LEFT, counts_in
from headrace.task.connections import Connections

FORMAT = 1
State = Literal["begun", "computed", "published"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the last run. ``until`` says, in words, up to where it reads inputs that don't end."""

    format: int = FORMAT
    run: int
    state: State
    until: str
    savepoint: str = ""


_DECODER = msgspec.json.Decoder(Entry)


class Journal:
    """The runs of one app. One process has it at a time."""

    def __init__(self, home: Path, app: str) -> None:
        self._app = app
        self._folder = home / "batches" / app
        self._file = self._folder / "journal.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have it for the block. Raises ``UnavailableError`` if another run has it."""
        try:
            lock = FolderLock(self._folder / "runs")
        except StateLockedError as error:
            raise UnavailableError(
                f"another batch run of app {self._app!r} is running in this home", hint="wait until it has ended"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def read(self) -> Entry | None:
        """The last run; None before there was one. Raises ``DataError`` if it can't be read."""
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:
            return None
        return decode_record(_DECODER, data, f"{self._file}, the record of batch runs,", FORMAT)

    def begin(self, until: str, *, again: bool, savepoint: str = "") -> Entry:
        """Begin a run, or continue one that is computed. Raises ``UsageError`` if that would publish results twice."""
        last = self.read()
        if last is not None and last.state == "computed":
            if last.savepoint != savepoint:
                raise UsageError(
                    f"run {last.run} of app {self._app!r} ({_kind(last.savepoint)}, until {last.until}) is computed "
                    f"and not yet published: {_kind(savepoint)} can't begin before that",
                    hint="repeat the former command: it only publishes the computed results",
                )
            return last
        if last is not None and last.state == "published" and not again:
            raise UsageError(
                f"app {self._app!r} has published a batch run already (run {last.run}, until {last.until}): "
                "another one would publish its results a second time",
                hint="to publish them again, use --again or again=True",
            )
        run = 1 if last is None else last.run + (last.state == "published")
        entry = Entry(run=run, state="begun", until=until, savepoint=savepoint)
        self._discard()
        self._write(entry)
        return entry

    def note(self, entry: Entry, state: State) -> Entry:
        noted = msgspec.structs.replace(entry, state=state)
        self._write(noted)
        if state == "published":
            self._discard()
        return noted

    def results(self, entry: Entry) -> Path:
        return self._folder / "runs" / str(entry.run)

    def left(self, entry: Entry) -> Path:
        return self._folder / "runs" / f"{entry.run}-left"

    def _write(self, entry: Entry) -> None:
        make_private_folder(self._folder)
        replace_file(self._file, msgspec.json.encode(entry))

    def _discard(self) -> None:
        shutil.rmtree(self._folder / "runs", ignore_errors=True)


def _kind(savepoint: str) -> str:
    return f"the backfill for savepoint {savepoint!r}" if savepoint else "a batch run"


PORTION_ROWS = 1 << 20
_PORTIONS_MAX = 1 << 32
"""A run has fewer portions than that. Run and portion make one number, which rises."""


def pieces_of(folder: Path, output: str) -> Iterator[Piece]:
    """The pieces of an output in the results of a run: by partition, in order of time. Spark has sorted the files."""
    for file in sorted(folder.glob("*.parquet")):
        for batch in ds.dataset(file, schema=SCHEMA).to_batches(batch_size=8):
            yield from (piece for piece in pieces_in(batch) if piece.stream == output)


def portions(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Pieces, some at a time; of one partition."""
    some: list[Piece] = []
    rows = 0
    for piece in pieces:
        if some and (rows >= PORTION_ROWS or piece.partition != some[0].partition):
            yield some
            some, rows = [], 0
        some.append(piece)
        rows += piece.rows
    if some:
        yield some


class _Into(Protocol):
    """Where an output goes. A version that was published before, or a later one, changes nothing."""

    def publish(self, version: int, pieces: Sequence[Piece]) -> object:
        """Publish pieces as a version: all of them or nothing."""
        ...

    def close(self) -> None:
        """Release it. Called once."""
        ...


Open = Callable[[StreamSpec, str], _Into]
"""Opens a stream of frames for the writer of this name."""


def publish(plan: Plan, output: str, run: int, folder: Path, open_stream: Open) -> int:
    """Publish the results of a run in one output, and return their number. Already published results stay."""
    spec = plan.streams[output].spec
    writer = f"{plan.graph.app}/batch/{output}"
    into = _IntoTarget(spec, writer) if keeps_rows(spec.system) else open_stream(spec, writer)
    rows = 0
    try:
        for number, some in enumerate(portions(pieces_of(folder, spec.id))):
            into.publish(run * _PORTIONS_MAX + number, some)
            rows += sum(piece.rows for piece in some)
    finally:
        into.close()
    return rows


class _IntoTarget(_Into):
    """A target: a foreign system that keeps the writer's position."""

    def __init__(self, spec: StreamSpec, writer: str) -> None:
        self._writer = writer
        self._connections = Connections()
        self._target: Target = self._connections.target(spec.system, spec.stream)
        self._known = self._target.position(writer)

    @override
    def publish(self, version: int, pieces: Sequence[Piece]) -> None:
        if version > self._known:
            rows = [self._target.accept(piece.frame.drop(TIME)) for piece in pieces]
            while (pause_ms := self._target.publish(self._writer, version, rows)) is not None:
                time.sleep(pause_ms / 1000)  # a target without transactions takes it in parts, at its own rate
            self._known = version

    @override
    def close(self) -> None:
        self._connections.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Where and how to run a batch job. ``again``: although a run has been published. ``say`` shows progress."""

    open_stream: Open

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    until: Until | None = None
    again: bool = False
    say: Callable[[str], None] = lambda line: None


def run_batch(graph: Graph, options: BatchOptions) -> None:
    """Compute and publish an app's results. Raises ``UsageError`` if they are there already, unless ``again``."""
    if not options.again:
        check_not_live(graph)
    run_planned(_planned(graph), options, None)


def run_planned(planned: Plan, options: BatchOptions, handover: Handover | None) -> None:
    app = planned.graph.app
    journal = Journal(Path(planned.graph.settings.home), app)
    with journal.held():
        words = str(options.until or "their ends")
        entry = journal.begin(words, again=options.again, savepoint="" if handover is None else handover.savepoint)
        outputs = _outputs(planned)
        if entry.state == "begun":
            entry = _compute(planned, journal, entry, options, handover)
        else:
            options.say(f"run {entry.run} of {app} is computed already; publishing the rest of it")
        try:
            if handover is None or handover.publishes:
                prepare_outputs(planned)
                for output in outputs:
                    rows = publish(planned, output, entry.run, journal.results(entry), options.open_stream)
                    options.say(f"published {rows:,} rows to {planned.streams[output].spec.stream}")
            if handover is not None:
                handover.finish(pieces_of(journal.results(entry), LEFT))
        except HeadraceError as error:
            again = "run it again: it continues to publish the computed results"
            error.hint = again if error.hint is None else f"{error.hint}; then {again}"
            raise
        # What Spark has done twice counts once.
        counted = {piece.writer: counts_in(piece) for piece in pieces_of(journal.results(entry), COUNTED)}
        if words := set_aside(sum((Counter(counts) for counts in counted.values()), Counter[str]())):
            options.say(f"of the messages, {words}")
        journal.note(entry, "published")


def to_dataframe(graph: Graph, output: str, spark: SparkSession | None, until: Until | None) -> DataFrame:
    """What the app writes to an output, as a DataFrame that is computed when it is used."""
    planned = _planned(at_home(graph))
    outputs = _outputs(planned)
    if output not in outputs:
        raise UsageError(f"the app has no output {output!r}", hint=f"it has {', '.join(outputs) or 'none'}")
    check_not_connect(spark)
    session = spark or open_session(f"headrace {graph.app}")
    return batch_job(planned, session, until, _held(planned)).rows(output)


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
    inputs = {id_: dataframe_of(spec) for id_, spec in planned.graph.streams.items()}
    return {id_: frame for id_, frame in inputs.items() if frame is not None}


def _compute(planned: Plan, journal: Journal, entry: Entry, options: BatchOptions, handover: Handover | None) -> Entry:
    """Compute a run's results, all of them or nothing. Raises ``KeyboardInterrupt`` if a signal has ended it."""
    began = time.monotonic()
    options.say(f"{planned.graph.app}: computing on Spark")
    with Interrupts() as interrupts:
        try:
            done = _write_results(planned, journal, entry, options, handover, interrupts)
        except HeadraceError:
            if not interrupts.requested:
                raise
            done = False  # the signal has ended Spark, too
    if not done:
        options.say("interrupted: nothing is published, and the next run starts over")
        raise KeyboardInterrupt
    options.say(f"{planned.graph.app} computed in {time.monotonic() - began:.1f} s")
    return journal.note(entry, "computed")


def _write_results(
    planned: Plan, journal: Journal, entry: Entry, options: BatchOptions, handover: Handover | None, stop: Interrupts
) -> bool:
    theirs = SparkContext._active_spark_context
    outputs = _outputs(planned)
    named = f"headrace {planned.graph.app}"
    spark = open_session(named, options.master, options.conf)
    try:
        _check_disk(planned.graph, str(spark.sparkContext.master))
        if handover is None:
            job = batch_job(planned, spark, options.until, _held(planned))
            pieces = job.pieces(outputs)
        else:
            history = handover.given(spark, stop)
            if history is None:
                return False
            job = batch_job(planned, spark, options.until, history, handover.seam(journal.left(entry)))
            pieces = job.last_pieces(outputs)
        writer = _by_output(pieces, planned, outputs).write.mode("overwrite")
        try:
            write = partial(writer.parquet, journal.results(entry).as_uri())
            return run_watched(spark.sparkContext, f"{named}: batch", write, _as_ours, stop)
        finally:
            job.close()
    finally:
        if theirs is None:
            close_context(spark.sparkContext)


def _check_disk(graph: Graph, master: str) -> None:
    if shares_no_disk(graph.settings) and not is_on_this_machine(master):
        raise UsageError(
            f"app {graph.app!r} can't run as a batch job: its machines share no disk, since its snapshots "
            f"are in {graph.settings.snapshots}, but a batch job keeps its results in the home",
            hint="run it with a local master, or with a shared home and without snapshots=",
        )


def _by_output(pieces: DataFrame, planned: Plan, outputs: list[str]) -> DataFrame:
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
