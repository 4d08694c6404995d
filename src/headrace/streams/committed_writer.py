"""A writer outside of an app that publishes *versions* into a stream: committed readers see each exactly once, whole.

It follows the protocol of a task. A record in a metadata store beside the stream takes the place of the changelog:

1. The record gets a new generation: older attempts can't commit any more.
2. A restore frame goes to each partition: readers drop what earlier attempts have left.
3. The version's frames are appended, which readers hold, and flushed. If the process dies here, the restore frames of
   the next attempt void them.
4. The record gets the version, and the seqs of its last frames. This decides that the version is published.
5. A checkpoint frame goes to each partition: readers have the version. Else the next restore frames say so.
6. The record is settled: nothing is left to do.

The record is replaced only by compare-and-set: an attempt that another one has replaced fails at step 4, and the
restore frames of its replacement void its frames, whenever they were appended. A record's key is the producer id: a
hash of the writer's name or, if another writer has that number, the next one that is free. Records are never deleted.

Writers that have no name of their own borrow one, since a new name for each write would leave a record, and a producer
in the position of each reader, forever. A write gets the first name that is free, and also settles what the others have
left whose processes are gone. A lock file for each name, which ends with its process, says whether it is lent.

``publish`` blocks for the disk; nothing here waits for another process. One thread uses a writer.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from headrace.api.descriptors import SystemLike, internal_system
from headrace.core.errors import FencedError, HeadraceError, ProtocolError, UnavailableError, UsageError
from headrace.core.files import decode_record, make_private_folder, open_private, writing
from headrace.core.frame import Kind, encode, encode_control
from headrace.core.ids import StreamId, TaskName
from headrace.core.log import logger
from headrace.life.metadata import HIGHEST, MetadataStore, SqliteMetadata, Version
from headrace.plan.stages import PRODUCER_MAX, producer_ids
from headrace.protocol.frame_stamper import FrameStamper
from headrace.protocol.instructions import ControlFrame
from headrace.protocol.record import OutputSeq
from headrace.systems.base import Producer, System
from headrace.systems.log.system import LogSystem
from headrace.systems.registry import LOG, open_system, require_stream

RECORD_FORMAT = 1
FILE = "writers.db"  # its name in the folder of the stream, so that deleting the stream deletes its writers
_NAMESPACE = "writers"
_PROBES_MAX = 1000


class WriterRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The progress of a writer in a stream: ``generation`` of the last attempt, ``version`` published last (-1: none).

    ``outputs`` are the seqs of the last frames that this covers. ``settled``: readers know that.
    """

    format: int = RECORD_FORMAT
    name: str
    producer: int
    generation: int = 0
    version: int = -1
    settled: bool = True
    outputs: tuple[OutputSeq, ...] = ()

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return msgspec.json.encode(self)


_DECODER = msgspec.json.Decoder(WriterRecord)


@dataclass(frozen=True, slots=True)
class Known:
    """A record as it was read, and the version to give when replacing it; None: it isn't in the store yet."""

    record: WriterRecord
    at: Version | None


class WriterRecords:
    """The records of one stream. ``place`` names the stream in errors."""

    def __init__(self, store: MetadataStore, place: str) -> None:
        self._store = store
        self._place = place

    def read(self, name: str) -> Known:
        """Return the record of a writer: one of generation 0 if it has never tried to publish."""
        task = task_of(name)
        producer = producer_ids("writer", [task])[task]
        for _ in range(_PROBES_MAX):
            entry = self._store.get(_NAMESPACE, _key(producer))
            if entry is None:
                return Known(WriterRecord(name=name, producer=producer), None)
            what = f"the record of writer {producer} of {self._place} in {self._store.place}"
            record = decode_record(_DECODER, entry.value, what, RECORD_FORMAT)
            if record.name == name:
                return Known(record, entry.version)
            producer = producer % PRODUCER_MAX + 1
        said = f"{self._place}: {_PROBES_MAX} writers have the producer ids from that of {name!r} on"
        raise ProtocolError(said, hint="give the writer another name")

    def replace(self, known: Known, new: WriterRecord) -> Known | None:
        """Replace a record, or raise as ``MetadataStore.put_if``. None: another process has since it was read."""
        at = self._store.put_if(_NAMESPACE, _key(new.producer), new.encode(), known.at)
        return None if at is None else Known(new, at)

    def close(self) -> None:
        """Release the store."""
        self._store.close()


def next_generation(record: WriterRecord) -> int:
    """Return the generation of a new attempt."""
    if record.generation >= HIGHEST:
        what = f"writer {record.name!r} has used up all {HIGHEST} generations"
        raise ProtocolError(what, hint="give the writer another name")
    return record.generation + 1


def task_of(name: str) -> TaskName:
    """Return the name of a writer as frames have it: as if it were a stage of one task."""
    return TaskName(name, 0)


def _key(producer: int) -> str:
    return f"{producer:010d}"


def open_log(home: str | Path) -> LogSystem:
    """The embedded log of a home."""
    return LogSystem(Path(home) / "streams")


def opened(system: SystemLike | None, home: str | Path) -> tuple[str, System]:
    """The name of a record system and the system; None: the embedded log of a home."""
    if system is None:
        return LOG, open_log(home)
    spec = internal_system(system, "streams")
    return spec.name, open_system(spec)


VERSION_MAX = 2**62
_MOST_ATTEMPTS = 100
Frames = Iterable[tuple[int, bytes]]  # bodies of user frames, each with its partition; those of one partition in order
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
        """Publish a version. When this returns, committed readers have all of it; False: they had it before.

        If this raises, the version may have been published nevertheless: ``position`` says so, and the same call may be
        repeated. Raises ``FencedError`` if another process has begun to publish as this writer.
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

    def _attempt(self, version: int | None, frames: Frames) -> bool:
        """Publish a version; None: just settle what earlier attempts have left."""
        known = self._take_generation()
        published = known.record.version
        wanted = version is not None and version > published
        partitions = len(self._system.admin().extents(self.stream.name))
        stamper = FrameStamper(task_of(self.name), 1, known.record.producer, {self.stream: partitions}, barriers=True)
        stamper.load(known.record.outputs)
        stamper.generation = known.record.generation
        with closing(self._system.producer()) as producer:
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
                what = f"writer {self.name!r}: a frame is for partition {partition}, but {self.stream} has {partitions}"
                raise UsageError(what)
            header = stamper.stamp(self.stream, partition, Kind.USER)
            producer.send(self.stream.name, partition, encode(header, body))

    def _commit(self, known: Known, stamper: FrameStamper) -> Known:
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
            what = "the frames of a failed attempt stay in the stream until this writer's next one"
            _log.warning(what, stream=str(self.stream), writer=self.name, reason=error.message)


def open_committed_writer(home: str | Path, stream: str, name: str) -> CommittedWriter:
    """Open a writer of a stream of a home's log. Raises ``StreamNotFoundError``."""
    id_ = StreamId(LOG, stream)
    require_stream(open_log(home), id_, home)
    return committed_writer_in(open_log(home).root, id_, name)


def committed_writer_in(root: Path, stream: StreamId, name: str) -> CommittedWriter:
    """Open a writer of a stream that is in the log in this folder."""
    records = WriterRecords(SqliteMetadata(root / stream.name / FILE), str(stream))
    try:
        return CommittedWriter(LogSystem(root), stream, name, records)
    except BaseException:
        records.close()
        raise


SLOTS = 16  # how many writes without a name may be published at a time


@contextmanager
def borrowed_writer(home: str | Path, stream: str, locks: Path) -> Iterator[CommittedWriter]:
    """Lend a writer. ``locks`` is a folder for lock files. Raises ``UnavailableError`` if all are lent."""
    for number in range(SLOTS):
        with _lent(locks, number) as lent:
            if not lent:
                continue
            for other in range(SLOTS):
                if other != number:
                    _settle(home, stream, locks, other)
            with _open(home, stream, number) as writer:
                yield writer
            return
    what = f"{SLOTS} writes without a name are being published to {stream!r}, and that is the limit"
    hint = "try again when one of them has ended, or give the write a name: options writer and version"
    raise UnavailableError(what, hint=hint)


def _settle(home: str | Path, stream: str, locks: Path, number: int) -> None:
    if not _lock(locks, number).exists():
        return
    with _lent(locks, number) as lent:
        if lent:
            with _open(home, stream, number) as writer:
                writer.settle()


def _open(home: str | Path, stream: str, number: int) -> CommittedWriter:
    return open_committed_writer(home, stream, f"batch/{number}")  # names of users have no slash


def _lock(locks: Path, number: int) -> Path:
    return locks / f"batch-{number:02d}.lock"


@contextmanager
def _lent(locks: Path, number: int) -> Iterator[bool]:
    """Take a name for the block; False if another process has it."""
    path = _lock(locks, number)
    with writing(path):
        make_private_folder(locks)
        descriptor = open_private(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
