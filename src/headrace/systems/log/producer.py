"""The producer of the log: it buffers records by partition, and a flush appends each buffer with one write call.

There is no lock: on a local file system the kernel keeps write calls with O_APPEND apart. If a call writes only part of
its bytes, the record at the cut stays in the file as a torn append, which readers skip, and the buffer keeps the
records that aren't completely in the file. The records of one write call have its time, so headers are made right
before.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from typing_extensions import override

from headrace.core.clock import Clock, WallClock
from headrace.core.errors import HeadraceError, StorageError, StreamSealedError
from headrace.core.ids import Offset
from headrace.core.log import logger
from headrace.systems.base import Producer, Unsynced
from headrace.systems.log.layout import OpenFiles, StreamFolder
from headrace.systems.log.partition import PartitionFile, unsynced_partition
from headrace.systems.log.segment import HEADER_SIZE, check_fits, check_of, encode_records, landmark
from headrace.systems.log.time_index import TimeNotes

BUFFER_BYTES = 4 << 20
_IOV_MAX = 1024
_log = logger(__name__)
_COPY_BELOW = 16 << 10  # up to this mean size, joining the parts is cheaper than passing the kernel a long list of them


class _Appender:
    def __init__(self, folder: StreamFolder, partition: int, clock: Clock, files: OpenFiles) -> None:
        folder.require_partition(partition)
        self._clock = clock
        self.what = f"{folder.name}[{partition}]"
        self._seal = folder.seal
        self._file = PartitionFile(folder.log(partition), self.what, appends=True)
        try:
            # The order matters: without a seal file after the size was read, no seal is below that size.
            self._unsealed_to = self._file.size()
            self._refuse_if_sealed()
        except HeadraceError:
            self._file.close()
            raise
        self._notes = TimeNotes(folder, partition)
        self.bodies: list[bytes] = []
        self.bytes = 0
        self.end: Offset = 0
        self.landmark = ""  # that of the last record that was written
        self.touched = False
        self.unsynced = False
        self._file.shared(files, lambda: self.unsynced)

    def write(self) -> None:
        """Append what is buffered. If this raises, the buffer keeps the records that aren't in the file."""
        if not self.bodies:
            return
        self._refuse_if_sealed()
        self._file.used()
        self.unsynced = True
        while self.bodies:
            now = self._clock.now_ms()
            parts = encode_records(self.bodies, self._file.seed, now)
            last = HEADER_SIZE + len(self.bodies[-1])
            try:
                written = self._append(parts)
                if written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                what = f"{self.what}: {len(self.bodies)} records ({self.bytes} bytes) could not be written: {error}"
                raise StorageError(what, hint="free up space on the disk" if full else None) from error
            if written < self.bytes:
                _log.info("an append was cut short; writing the rest", partition=self.what, bytes=written)
            self._drop(written)
        # This comes after the write: bytes in a deleted file must not count as written.
        self._file.size_there()
        # With O_APPEND, a write call sets the descriptor's position to the end of its own bytes.
        self.end = os.lseek(self._file.fd, 0, os.SEEK_CUR)
        self.touched = True
        self.landmark = landmark(self.end - last, check_of(parts[-2], 0))
        self._notes.appended(self.end - written, self.end, now, parts[0])
        if not self._seal.exists():
            self._unsealed_to = self.end
            return
        seal = self._file.find_seal(self._unsealed_to)
        if seal is not None and seal < self.end:  # it was written before these records
            raise self._sealed()

    def _append(self, parts: list[bytes]) -> int:
        count = len(parts)
        if count <= _IOV_MAX and self.bytes > count * _COPY_BELOW:
            return os.writev(self._file.fd, parts)
        return os.write(self._file.fd, b"".join(parts))

    def _drop(self, written: int) -> None:
        if written >= self.bytes:
            self.bodies, self.bytes = [], 0
            return
        whole = 0
        while (record := HEADER_SIZE + len(self.bodies[whole])) <= written:
            written -= record
            self.bytes -= record
            whole += 1
        del self.bodies[:whole]

    def _refuse_if_sealed(self) -> None:
        if self._seal.exists():
            raise self._sealed()

    def _sealed(self) -> StreamSealedError:
        what = f"{self.what} was sealed: it takes no more records"
        return StreamSealedError(what, hint="a seal is permanent: write to another stream")

    def discard(self) -> None:
        self.bodies, self.bytes, self.touched = [], 0, False

    def not_on_disk(self) -> Unsynced:
        return unsynced_partition(self._file.fd, self.what, partial(setattr, self, "unsynced", False))

    def close(self) -> None:
        self._file.close()


class LogProducer(Producer):
    """Writes to the log in the folder ``root``. What is flushed survives the death of any process."""

    def __init__(self, root: Path, buffer_bytes: int = BUFFER_BYTES, clock: Clock | None = None) -> None:
        self._root = root
        self._clock = clock or WallClock()
        self._buffer_bytes = buffer_bytes
        self._files = OpenFiles()
        self._appenders: dict[tuple[str, int], _Appender] = {}
        # Of thousands of partitions, most have nothing to write: a flush visits only those that have.
        self._unflushed: dict[tuple[str, int], _Appender] = {}
        self._unsynced: dict[tuple[str, int], _Appender] = {}

    @override
    def send(self, stream: str, partition: int, payload: bytes) -> None:
        """Buffer a record, after writing the buffer if it is full. If that raises, ``payload`` was not taken."""
        key = (stream, partition)
        appender = self._appenders.get(key)
        if appender is None:
            folder = StreamFolder(self._root, stream)
            appender = self._appenders[key] = _Appender(folder, partition, self._clock, self._files)
        self._unflushed[key] = self._unsynced[key] = appender
        body = bytes(payload)  # no copy if it already is bytes
        check_fits(body)
        size = HEADER_SIZE + len(body)
        if appender.bodies and appender.bytes + size > self._buffer_bytes:
            self._write(appender)
        appender.bodies.append(body)
        appender.bytes += size

    def _write(self, appender: _Appender) -> None:
        try:
            appender.write()
        except StreamSealedError:
            # Nothing will ever take these records, so keeping them would only make every later flush fail.
            appender.discard()
            raise

    @override
    def flush(self) -> dict[tuple[str, int], Offset]:
        """Write all partitions, then raise the first error if there is one."""
        failure: HeadraceError | None = None
        for appender in self._unflushed.values():
            try:
                self._write(appender)
            except HeadraceError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        unflushed, self._unflushed = self._unflushed, {}
        ends = {key: appender.end for key, appender in unflushed.items() if appender.touched}
        for appender in unflushed.values():
            appender.touched = False
        return ends

    @override
    def landmark(self, stream: str, partition: int) -> str:
        appender = self._appenders.get((stream, partition))
        return "" if appender is None else appender.landmark

    @override
    def unsynced(self) -> Iterable[Unsynced]:
        written = {key: each for key, each in self._unsynced.items() if each.unsynced}
        self._unsynced = written | self._unflushed
        self._files.trim()
        return [appender.not_on_disk() for appender in written.values()]

    @override
    def close(self) -> None:
        try:
            self.flush()
        finally:
            for appender in self._appenders.values():
                appender.close()
            self._appenders, self._unflushed, self._unsynced = {}, {}, {}
