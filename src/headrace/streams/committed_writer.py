"""A writer outside of an app that publishes *versions* into a stream: committed readers see each exactly once, whole.

It follows the protocol of a task. Its name gives it a producer id, each attempt is a generation, and a record in a
metadata store takes the place of the changelog:

=====  ==========================================  =====================================================================
step   what happens                                if the process dies right after it
=====  ==========================================  =====================================================================
1      the record gets a new generation            nothing is in the stream; older attempts can't commit any more
2      a restore frame goes to each partition      readers drop what earlier attempts have left
3      the version's frames are appended           readers hold them; the next attempt's restore frames void them
4      everything is flushed                       the same
5      the record gets the version, and the seqs   the version is published: the next attempt's restore frames say so
       of its last frames: this decides
6      a checkpoint frame goes to each partition   readers have it
7      the record is settled                       nothing is left to do
=====  ==========================================  =====================================================================

Steps 1, 5 and 7 are compare-and-set. An attempt that was frozen, and replaced by another one, fails at step 5 and has
changed nothing: the restore frames of its replacement void its frames, whether they were appended before or after.

``publish`` blocks for the disk; nothing here waits for another process. One thread uses a writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from headrace.checkpoint.frame_stamper import FrameStamper
from headrace.checkpoint.instructions import ControlFrame
from headrace.core.errors import FencedError, HeadraceError, UnavailableError, UsageError
from headrace.core.frame import Kind, encode, encode_control
from headrace.core.ids import StreamId
from headrace.core.log import logger
from headrace.streams.place import open_log
from headrace.streams.writer_records import Known, WriterRecords, next_generation, task_of
from headrace.systems.base import Producer, System
from headrace.systems.finding import require_stream
from headrace.systems.home_log import LOG
from headrace.systems.log.system import LogSystem

VERSION_MAX = 2**62
_MOST_ATTEMPTS = 100

Frames = Iterable[tuple[int, bytes]]
"""Bodies of user frames, each with its partition; those of one partition in order."""

_log = logger(__name__)


class CommittedWriter:
    """The writer ``name`` of a stream. Several may exist at a time: the one that began last can publish."""

    def __init__(self, system: System, stream: StreamId, name: str, records: WriterRecords) -> None:
        if not name:
            raise UsageError(f"a writer of {stream} needs a name")
        self.stream = stream
        self.name = name
        self._system = system
        self._records = records

    def position(self) -> int:
        """Return the last version that this writer has published; -1 if there is none."""
        return self._records.read(self.name).record.version

    def publish(self, version: int, frames: Frames) -> bool:
        """Publish a version. When this returns, committed readers have all of it.

        False: this version, or a later one, was published before. Then ``frames`` isn't looked at. If this raises, the
        version may have been published nevertheless: ``position`` says so, and the same call may be repeated.

        Raises ``FencedError`` if another process has begun to publish as this writer.
        """
        if not 0 <= version <= VERSION_MAX:
            raise UsageError(f"writer {self.name!r} of {self.stream}: versions are 0 to {VERSION_MAX}, not {version}")
        known = self._records.read(self.name)
        if version <= known.record.version:
            self.settle()
            return False
        try:
            return self._attempt(version, frames)
        except FencedError:
            raise
        except Exception:
            self._settle_if_possible()
            raise

    def settle(self) -> None:
        """Tell readers what has happened to the last attempt, if it died before it could: published, or void."""
        if not self._records.read(self.name).record.settled:
            self._attempt(None, ())

    def close(self) -> None:
        """Release the records. Called once."""
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- an attempt ------------------------------------------------------------------------------------

    def _attempt(self, version: int | None, frames: Frames) -> bool:
        """Publish a version; None: just settle what earlier attempts have left."""
        known = self._take_generation()
        published = known.record.version
        wanted = version is not None and version > published
        partitions = len(self._system.admin().extents(self.stream.name))
        stamper = FrameStamper(task_of(self.name), 1, known.record.producer, {self.stream: partitions}, barriers=True)
        stamper.load(known.record.outputs)
        stamper.generation = known.record.generation
        producer = self._system.producer()
        try:
            stamper.label = version if version is not None and wanted else published + 1
            self._send(producer, stamper.restores(published, stamper.label))
            if wanted:
                self._append(producer, stamper, partitions, frames)
            producer.flush()
            producer.sync()
            if wanted:
                known = self._commit(known, stamper)
                self._send(producer, stamper.checkpoints(stamper.label, stamper.label + 1))
                producer.flush()
                producer.sync()
        finally:
            producer.close()
        # A newer attempt settles its own record, and what this one has done is in it.
        self._records.replace(known, msgspec.structs.replace(known.record, settled=True))
        return wanted

    def _take_generation(self) -> Known:
        for _ in range(_MOST_ATTEMPTS):
            known = self._records.read(self.name)
            begun = msgspec.structs.replace(known.record, generation=next_generation(known.record), settled=False)
            taken = self._records.replace(known, begun)
            if taken is not None:
                return taken
        raise UnavailableError(
            f"writer {self.name!r} of {self.stream}: other processes took its generation first, {_MOST_ATTEMPTS} times "
            "in a row",
            hint="find out which other processes write under this name, and give each a name of its own",
        )

    def _send(self, producer: Producer, frames: Iterable[ControlFrame]) -> None:
        for frame in frames:
            producer.send(frame.stream.name, frame.partition, encode_control(frame.header, frame.message))

    def _append(self, producer: Producer, stamper: FrameStamper, partitions: int, frames: Frames) -> None:
        for partition, body in frames:
            if not 0 <= partition < partitions:
                raise UsageError(
                    f"writer {self.name!r}: a frame is for partition {partition}, but {self.stream} has {partitions}"
                )
            header = stamper.stamp(self.stream, partition, Kind.USER)
            producer.send(self.stream.name, partition, encode(header, body))

    def _commit(self, known: Known, stamper: FrameStamper) -> Known:
        """Replace the record: this decides whether the version has happened."""
        record = msgspec.structs.replace(known.record, version=stamper.label, outputs=stamper.save())
        committed = self._records.replace(known, record)
        if committed is None:
            newer = self._records.read(self.name).record.generation
            raise FencedError(
                f"writer {self.name!r} of {self.stream}: generation {record.generation} was replaced by generation "
                f"{newer} before it could publish version {record.version}",
                hint="another process writes under this name: give each writer a name of its own",
            )
        return committed

    def _settle_if_possible(self) -> None:
        """Clean up after a failure, so that readers needn't hold frames until the next write under this name."""
        try:
            self.settle()
        except HeadraceError as error:
            _log.warning(
                "the frames of a failed attempt stay in the stream until this writer's next one",
                stream=str(self.stream),
                writer=self.name,
                reason=error.message,
            )


def open_committed_writer(home: str | Path, stream: str, name: str) -> CommittedWriter:
    """Open a writer of a stream of a home's log. Raises ``StreamNotFoundError``.

    Its frames are on the disk before its record says that they are published.
    """
    id_ = StreamId(LOG, stream)
    require_stream(open_log(home), id_, home)
    return committed_writer_in(open_log(home).root, id_, name)


def committed_writer_in(root: Path, stream: StreamId, name: str) -> CommittedWriter:
    """Open a writer of a stream that is in the log in this folder."""
    records = WriterRecords.beside(root / stream.name, str(stream))
    return CommittedWriter(LogSystem(root), stream, name, records)
