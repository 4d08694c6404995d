"""A task's journal: what its state and positions were at its last checkpoint, kept in a changelog stream.

One partition a task. A checkpoint is a series of change frames (store id and a change that only that store
reads) and then one commit frame with the record: changes count only once a commit follows them. Every so
often a checkpoint is *full*: its changes rebuild every store from nothing, and what lies before it is trimmed.
So restoring reads at most a few times the size of the state, and a checkpoint writes what changed.

Several lives of a task may have written, the last ones perhaps at once. A frame counts only if its (generation,
seq) is above that of every frame before it, and changes only if a commit of their own generation follows: so what
a life left unfinished is not taken for its successor's, and what it writes after its successor is void.

Blocking: ``restore`` reads to the end the changelog has when it starts; ``commit`` waits for acknowledgement.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from headrace.core.errors import CorruptLogError, DeclarationError, FencedError, FrameError
from headrace.core.frame import Header, Kind, body_of, decode_header, encode
from headrace.core.ids import SSP, Offset
from headrace.runtime.watermark import TimesCheckpoint
from headrace.stores.base import StateStore
from headrace.systems.base import Admin, Consumer, Edge, Producer, Records

FORMAT = 1
_ID_SIZE = struct.Struct(">H")
_FULL_AFTER_BYTES_MIN = 8 << 20


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of a commit frame: everything beside the stores that a restart needs."""

    format: int = FORMAT
    generation: int
    positions: dict[str, Offset]
    times: TimesCheckpoint
    full: bool
    finished: bool


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(TaskRecord)


def encode_change(store: str, change: bytes) -> bytes:
    """The body of a change frame."""
    name = store.encode()
    return _ID_SIZE.pack(len(name)) + name + change


def decode_change(body: memoryview) -> tuple[str, bytes]:
    """Store id and change of a change frame's body; raises ``FrameError`` for what isn't one."""
    try:
        (size,) = _ID_SIZE.unpack_from(body)
        return bytes(body[2 : 2 + size]).decode(), bytes(body[2 + size :])
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"an unreadable change: {error}") from error


class Journal:
    """The changelog partition of one task."""

    def __init__(self, ssp: SSP, admin: Admin, producer: Producer, *, producer_id: int, generation: int) -> None:
        """``generation`` must be above that of every earlier life of the task."""
        self._ssp = ssp
        self._admin = admin
        self._producer = producer
        self._producer_id = producer_id
        self._generation = generation
        self._seq = 0
        self._since_full = 0
        self._full_size = 0
        self.bytes_written = 0

    def restore(self, consumer: Consumer, stores: Mapping[str, StateStore]) -> TaskRecord | None:
        """Fill the stores from the last checkpoint and return its record; None when there is none.

        Raises ``FencedError`` when a life of this generation or a later one has written.
        """
        end = self._end()
        consumer.register(self._ssp, Edge.OLDEST)
        record: TaskRecord | None = None
        pending: list[tuple[str, bytes]] = []
        last = (0, 0)
        while consumer.position(self._ssp) < end:
            for polled in consumer.poll([self._ssp], 8 << 20):
                if not isinstance(polled, Records):
                    raise CorruptLogError(f"{self._ssp}: a changelog can't end or hold rows, this one does")
                for offset, payload in zip(polled.offsets, polled.payloads, strict=True):
                    header, change, commit = self._read(offset, payload)
                    mark = (header.generation, header.seq)
                    if mark <= last:
                        continue
                    if header.generation > last[0]:
                        pending = []
                    last = mark
                    self._since_full += len(payload)
                    if change is not None:
                        pending.append(change)
                    if commit is not None:
                        record = commit
                        self._apply(stores, pending, full=record.full)
                        if record.full:
                            self._full_size, self._since_full = sum(len(change) for _, change in pending), 0
                        pending = []
        consumer.unregister(self._ssp)
        self._check_newest(last[0])
        return record

    def commit(
        self,
        stores: Mapping[str, StateStore],
        positions: Mapping[SSP, Offset],
        times: TimesCheckpoint,
        *,
        finished: bool,
    ) -> None:
        """Make the present state the one that a restart goes on from. When this returns it is durable."""
        full = self._since_full > max(_FULL_AFTER_BYTES_MIN, 2 * self._full_size)
        before = self._end() if full else 0
        size = 0
        for id_, store in stores.items():
            changes = store.take_changes()
            for change in store.snapshot() if full else changes:
                size += self._append(Kind.CHANGE, encode_change(id_, change))
        record = TaskRecord(
            generation=self._generation,
            positions={str(ssp): offset for ssp, offset in positions.items()},
            times=times,
            full=full,
            finished=finished,
        )
        self._append(Kind.COMMIT, _ENCODER.encode(record))
        self._producer.flush()
        if full:
            self._full_size, self._since_full = size, 0
            self._admin.trim(self._ssp, before)
        else:
            self._since_full += size

    def _append(self, kind: Kind, body: bytes) -> int:
        self._seq += 1
        frame = encode(Header(kind, producer=self._producer_id, generation=self._generation, seq=self._seq), body)
        self._producer.send(self._ssp.stream.name, self._ssp.partition, frame)
        self.bytes_written += len(frame)
        return len(frame)

    def _end(self) -> Offset:
        return self._admin.extents(self._ssp.stream.name)[self._ssp.partition].upcoming

    def _check_newest(self, generation: int) -> None:
        if generation >= self._generation:
            raise FencedError(
                f"{self._ssp}: generation {generation} of this task has written already, and this is generation "
                f"{self._generation}",
                hint="another container runs the task now; if none does, the app's metadata was deleted while its "
                "streams were kept: delete both or neither",
            )

    def _read(self, offset: Offset, payload: bytes) -> tuple[Header, tuple[str, bytes] | None, TaskRecord | None]:
        """A frame's header, and the change or commit that it is."""
        where = f"{self._ssp} at offset {offset}"
        try:
            header = decode_header(payload)
            match header.kind:
                case Kind.CHANGE:
                    return header, decode_change(body_of(payload)), None
                case Kind.COMMIT:
                    record = _DECODER.decode(body_of(payload))
                case _:
                    raise CorruptLogError(f"{where}: a frame of kind {header.kind.name} has no place in a changelog")
        except FrameError as error:
            raise CorruptLogError(f"{where}: {error.message}", hint=error.hint) from error
        except msgspec.MsgspecError as error:
            raise CorruptLogError(f"{where}: unreadable commit record: {error}") from error
        if record.format != FORMAT:
            raise CorruptLogError(
                f"{where}: commit record of format {record.format}; this Headrace reads {FORMAT}",
                hint="upgrade Headrace, or start the app under another name",
            )
        return header, None, record

    def _apply(self, stores: Mapping[str, StateStore], changes: list[tuple[str, bytes]], *, full: bool) -> None:
        if full:
            for store in stores.values():
                store.clear()
        for id_, change in changes:
            if id_ not in stores:
                raise DeclarationError(
                    f"{self._ssp} holds state of step {id_!r}, which the app doesn't have any more",
                    hint="give the step its id back, or start the app under another name (its state begins anew)",
                )
            stores[id_].apply(change)
