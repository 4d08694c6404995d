"""Where a stream's files lie, and the small files that are replaced whole.

::

    <root>/<stream>/stream.json          partition count and columns; made once
    <root>/<stream>/p00000.log           one file a partition (``segment`` says what is in it)
    <root>/<stream>/p00000.trim          the trim point: what lies below is given up
    <root>/<stream>/seal.json            the stream has an end; where, once all partitions have it
    <root>/<stream>/positions/<group>    8 bytes a partition: how far a reader group is

A stream is made in a hidden folder and renamed into place, so that it is there whole or not at all and one of
several racing creators wins. Everything here is a local file operation; nothing waits for another process.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from headrace.core.errors import (
    CorruptLogError,
    DataError,
    DeclarationError,
    StorageError,
    StreamExistsError,
    StreamNotFoundError,
)
from headrace.core.ids import Offset, check_id
from headrace.serdes.dtypes import columns_from_json, columns_to_json, instantiate
from headrace.systems.base import StreamInfo
from headrace.systems.log import segment

FORMAT_VERSION = 1
MAX_PARTITIONS = 100_000
_POSITION = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Seal:
    """The stream is ended. ``ends`` is where, by partition; None while the one who seals is still at it."""

    ends: tuple[Offset, ...] | None


class StreamFolder:
    """The paths and small files of one stream."""

    def __init__(self, root: Path, stream: str) -> None:
        self.name = check_id("stream", stream)
        self.path = root / stream

    def log(self, partition: int) -> Path:
        """The records of a partition."""
        return self.path / f"p{partition:05d}.log"

    def trim(self, partition: int) -> Path:
        """The trim point of a partition; no such file: nothing was trimmed."""
        return self.path / f"p{partition:05d}.trim"

    @property
    def seal(self) -> Path:
        """Is there from the moment on that the stream takes no more records."""
        return self.path / "seal.json"

    # -- stream.json -----------------------------------------------------------------------------------

    def read_info(self) -> StreamInfo | None:
        """What ``stream.json`` says; None when there is no such stream."""
        path = self.path / "stream.json"
        try:
            data = _read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            columns = data["columns"]
            return StreamInfo(
                self.name, int(data["partitions"]), None if columns is None else columns_from_json(columns)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: unreadable: {error!r}") from error

    def require_info(self) -> StreamInfo:
        """As ``read_info``, but a missing stream is an error."""
        info = self.read_info()
        if info is None:
            raise StreamNotFoundError(
                f"no stream {self.name!r} in {self.path.parent}",
                hint=f"create it (headrace stream create {self.name}), or check name and folder",
            )
        return info

    def require_partition(self, partition: int) -> StreamInfo:
        """The stream's info; raises ``StreamNotFoundError`` when it has no such partition."""
        info = self.require_info()
        if not 0 <= partition < info.partitions:
            raise StreamNotFoundError(
                f"stream {self.name!r} has partitions 0 to {info.partitions - 1}, not {partition}"
            )
        return info

    def create(self, partitions: int, columns: dict[str, pl.DataType] | None) -> StreamInfo:
        """Make the stream, or return the one that is there; see ``Admin.create``."""
        wanted = wanted_info(self.name, partitions, columns)
        there = self.read_info()
        if there is not None:
            return agree(there, wanted)
        root = self.path.parent
        making = root / f".{self.name}-{uuid.uuid4().hex}"
        try:
            root.mkdir(parents=True, exist_ok=True)
            making.mkdir()
            self._fill(making, wanted)
            making.rename(self.path)
        except OSError as error:
            shutil.rmtree(making, ignore_errors=True)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise StorageError(f"can't create stream {self.name!r} in {root}: {error}") from error
        # Whoever's rename came first made the stream: what is there now may be another's.
        return agree(self.require_info(), wanted)

    def _fill(self, folder: Path, info: StreamInfo) -> None:
        (folder / "positions").mkdir()
        for partition in range(info.partitions):
            salt = int.from_bytes(os.urandom(8), "big")
            (folder / self.log(partition).name).write_bytes(segment.encode_file_header(salt))
        columns = None if info.columns is None else columns_to_json(info.columns)
        data = {"version": FORMAT_VERSION, "partitions": info.partitions, "columns": columns}
        (folder / "stream.json").write_text(json.dumps(data, indent=1) + "\n")

    # -- the trim point, the seal, reported positions ------------------------------------------------------

    def read_trim(self, partition: int) -> Offset:
        """The oldest offset kept."""
        path = self.trim(partition)
        try:
            text = path.read_text()
        except FileNotFoundError:
            return segment.FILE_HEADER_SIZE
        if not text.strip().isdigit():
            raise CorruptLogError(f"{path}: {text[:40]!r} is not an offset")
        return int(text)

    def write_trim(self, partition: int, before: Offset) -> None:
        """Move the trim point."""
        replace_file(self.trim(partition), f"{before}\n")

    def read_seal(self) -> Seal | None:
        """Whether the stream has ended."""
        try:
            ends = _read_json(self.seal)["ends"]
        except FileNotFoundError:
            return None
        return Seal(None if ends is None else tuple(ends))

    def write_seal(self, seal: Seal) -> None:
        """Say that the stream has ended."""
        ends = None if seal.ends is None else list(seal.ends)
        replace_file(self.seal, json.dumps({"version": FORMAT_VERSION, "ends": ends}) + "\n")

    def write_position(self, partition: int, group: str, position: Offset) -> None:
        """One write of 8 bytes; 0 stands for nothing reported, so offsets are kept plus one."""
        path = self.path / "positions" / check_id("group", group)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.pwrite(fd, _POSITION.pack(position + 1), partition * _POSITION.size)
            finally:
                os.close(fd)
        except FileNotFoundError:
            raise _gone(self.name, self.path) from None
        except OSError as error:
            raise StorageError(f"can't report the position of {group!r} in {path}: {error}") from error

    def read_positions(self, group: str) -> dict[int, Offset]:
        """What was reported, by partition."""
        try:
            data = (self.path / "positions" / check_id("group", group)).read_bytes()
        except FileNotFoundError:
            return {}
        whole = data[: len(data) - len(data) % _POSITION.size]
        return {n: value - 1 for n, (value,) in enumerate(_POSITION.iter_unpack(whole)) if value}


def require_there(path: Path, opened: os.stat_result, what: str) -> None:
    """Raise ``StreamNotFoundError`` when ``path`` isn't the file ``opened`` any more: it was taken away meanwhile."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise _gone(what, path) from None
    if not os.path.samestat(found, opened):
        raise StreamNotFoundError(
            f"{what} was replaced while it was in use: another stream of that name is there now ({path})",
            hint="put the folder of the old one back, and start again; "
            "an app that shall go on with the new one has to begin anew, under another app name",
        )


def _gone(what: str, path: Path) -> StreamNotFoundError:
    return StreamNotFoundError(
        f"{what} was deleted or moved away while it was in use: {path} isn't there any more",
        hint="put the folder of the stream back as it was, and start again; "
        "an app that shall do without what was in it has to begin anew, under another app name",
    )


def stream_names(root: Path) -> list[str]:
    """The streams of a log, sorted."""
    if not root.is_dir():
        return []
    return sorted(path.parent.name for path in root.glob("[!.]*/stream.json"))


def wanted_info(name: str, partitions: int, columns: dict[str, pl.DataType] | None) -> StreamInfo:
    """The shape a caller asks for; raises ``DeclarationError`` when there is no such shape."""
    if type(partitions) is not int or not 1 <= partitions <= MAX_PARTITIONS:
        raise DeclarationError(f"stream {name!r}: {partitions!r} partitions; use 1 to {MAX_PARTITIONS}")
    typed = None if columns is None else {column: instantiate(dtype, column) for column, dtype in columns.items()}
    return StreamInfo(name, partitions, typed)


def agree(there: StreamInfo, wanted: StreamInfo) -> StreamInfo:
    """``there``, if it is what is wanted; a caller who names no columns accepts any."""
    if there.partitions != wanted.partitions:
        raise StreamExistsError(
            f"stream {there.name!r} is there with {there.partitions} partitions, not {wanted.partitions}",
            hint="use another name, or the same partition count",
        )
    if wanted.columns is not None and there.columns != wanted.columns:
        raise StreamExistsError(
            f"stream {there.name!r} is there with columns {_columns(there)}, not {_columns(wanted)}",
            hint="use another name, or the same columns",
        )
    return there


def _columns(info: StreamInfo) -> str:
    return ", ".join(f"{name}: {dtype}" for name, dtype in (info.columns or {}).items()) or "(none)"


def replace_file(path: Path, text: str) -> None:
    """Replace a file so that readers see the old text or the new one, also after a crash of the machine."""
    making = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with making.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        making.replace(path)
    except OSError as error:
        making.unlink(missing_ok=True)
        raise StorageError(f"can't write {path}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    version = data.get("version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path}: format version {version!r}; this Headrace reads {FORMAT_VERSION}",
            hint="upgrade the reader before the writer",
        )
    return dict(data)
