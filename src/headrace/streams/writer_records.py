"""The records of a stream's committed writers: one for each writer, in the metadata store that lies beside the stream.

A record is to a committed writer what the changelog is to a task: it decides which attempts have happened. It is
replaced only by compare-and-set, so of several attempts with one record only one goes on.

A record's key is the writer's producer id: a hash of its name or, if another writer has that number, the next one that
is free. Records are never deleted, so a name always leads to the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.checkpoint.record import OutputSeq
from headrace.core.errors import ProtocolError
from headrace.core.ids import TaskName
from headrace.core.records import decode_record
from headrace.metadata.generations import HIGHEST
from headrace.metadata.sqlite import SqliteMetadata
from headrace.metadata.store import MetadataStore, Version
from headrace.plan.tasks import PRODUCER_MAX, producer_ids

RECORD_FORMAT = 1
FILE = "writers.db"
"""Its name in the folder of the stream, so that deleting the stream deletes its writers."""

_NAMESPACE = "writers"
_PROBES_MAX = 1000


class WriterRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The progress of a writer in a stream.

    ``generation`` is that of its last attempt, ``version`` the last one that it has published (-1: none), and
    ``outputs`` are the seqs of the last frames that this covers. ``settled``: readers know that, because the last
    attempt got to its end.
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

    @classmethod
    def beside(cls, folder: Path, place: str) -> WriterRecords:
        """Open those of the stream in this folder."""
        return cls(SqliteMetadata(folder / FILE), place)

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
        raise ProtocolError(
            f"{self._place}: {_PROBES_MAX} writers have the producer ids from that of {name!r} on",
            hint="give the writer another name",
        )

    def replace(self, known: Known, new: WriterRecord) -> Known | None:
        """Replace a record unless another process has since it was read; None if one has.

        Raises ``StorageError``, ``UnavailableError``, or ``IndeterminateWriteError`` if it may have been replaced.
        """
        at = self._store.put_if(_NAMESPACE, _key(new.producer), new.encode(), known.at)
        return None if at is None else Known(new, at)

    def close(self) -> None:
        """Release the store."""
        self._store.close()


def next_generation(record: WriterRecord) -> int:
    """Return the generation of a new attempt."""
    if record.generation >= HIGHEST:
        raise ProtocolError(
            f"writer {record.name!r} has used up all {HIGHEST} generations", hint="give the writer another name"
        )
    return record.generation + 1


def task_of(name: str) -> TaskName:
    """Return the name of a writer as frames have it: as if it were a stage of one task."""
    return TaskName(name, 0)


def _key(producer: int) -> str:
    return f"{producer:010d}"
