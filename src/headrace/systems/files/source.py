"""The bytes of an entry of a file list: from its start to its end, decompressed, as UTF-8."""

from __future__ import annotations

import codecs
from typing import BinaryIO, Protocol

import pyarrow as pa
from typing_extensions import override

from headrace.core.errors import StorageError
from headrace.systems.files.file_list import Entry
from headrace.systems.files.place import compression_of
from headrace.systems.files.storage import Storage

UTF_8 = "utf-8"
_CHUNK_BYTES = 1 << 20


class SourceBroken(Exception):
    """The rest of a file can't be read: it is cut off, or isn't what its name says."""


class Source(Protocol):
    """Bytes to read once."""

    def read(self, size: int) -> bytes:
        """The next bytes, ``size`` at most; none at the end. Raises ``SourceBroken``."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


def open_source(storage: Storage, entry: Entry, encoding: str = UTF_8) -> Source:
    """The text of an entry."""
    file = storage.open(entry.path)
    compression = compression_of(entry.path)
    source: Source = _Stretch(entry, file) if compression is None else _Decompressed(entry.path, file, compression)
    return source if encoding == UTF_8 else _Recoded(source, encoding)


class _Stretch(Source):
    def __init__(self, entry: Entry, file: BinaryIO) -> None:
        self._path = entry.path
        self._file = file
        self._left = entry.end - entry.start
        if entry.start:
            file.seek(entry.start)

    @override
    def read(self, size: int) -> bytes:
        try:
            data = self._file.read(min(size, self._left))
        except OSError as error:
            raise StorageError(f"can't read {self._path}: {error}", hint="check that it can be reached") from error
        self._left -= len(data)
        if not data and self._left and size:
            raise SourceBroken(f"it is {self._left} bytes shorter than when it was listed")
        return data

    @override
    def close(self) -> None:
        self._file.close()


class _Watched:
    """A file that remembers its error, so that an error of the storage isn't mistaken for one of the data."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.closed = False
        self.error: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except (OSError, pa.ArrowException) as error:
            self.error = error
            raise

    def close(self) -> None:
        self.closed = True
        self._file.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False


class _Decompressed(Source):
    def __init__(self, path: str, file: BinaryIO, compression: str) -> None:
        self._path = path
        self._file = _Watched(file)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._file, "r"), compression)

    @override
    def read(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size))
        except (OSError, pa.ArrowException) as error:
            if self._file.error is not None:
                raise StorageError(f"can't read {self._path}: {error}", hint="check that it can be reached") from error
            raise SourceBroken(f"it can't be decompressed: {error}") from error

    @override
    def close(self) -> None:
        self._stream.close()
        if not self._file.closed:
            self._file.close()


class _Recoded(Source):
    """Text of another encoding. Invalid bytes stay unchanged, and make their row unreadable."""

    def __init__(self, source: Source, encoding: str) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
        self._rest = b""

    @override
    def read(self, size: int) -> bytes:
        while not self._rest:
            data = self._source.read(_CHUNK_BYTES)
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise SourceBroken(f"its encoding is wrong: {error}") from error
            self._rest = text.encode(errors="surrogateescape")
            if not data:
                break
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    @override
    def close(self) -> None:
        self._source.close()
