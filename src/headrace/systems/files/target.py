"""A folder as a target: one file for each version that a writer publishes, whole or not at all.

A file is written under a hidden name, brought to the disk, and renamed: under its own name it is complete. The name
carries writer and version, so publishing a version again gives the same file. The writer's position stands in a small
file beside, renamed into place after the data: so it costs the same however many files there are, and files that were
taken away downstream don't come back. If it is behind, because the process died between the two renames or
the machine lost it, the names of the files say better; they are listed once, when a target is first used.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import polars as pl

from headrace.core.errors import DataError, DeclarationError, StorageError
from headrace.serdes.ipc import concat_rows

_POSITIONS = ".positions"
_NAME_CHARS_MAX = 160
_ABANDONED_S = 3600


class FilesTarget:
    """See ``Target``."""

    def __init__(self, folder: Path, format: str) -> None:
        self._folder = folder
        self._format = format
        self._listed: dict[str, int] = {}
        self._me = uuid.uuid4().hex[:8]  # a stale copy of the writer may be writing the same file now

    def position(self, writer: str) -> int:
        """See ``Target``."""
        name = _file_name(writer)
        try:
            if name not in self._listed:
                self._listed[name] = self._list(name)
            return max(self._listed[name], self._noted(name))
        except OSError as error:
            raise StorageError(f"can't read the folder {self._folder}: {error}") from error

    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        """See ``Target``."""
        if version <= self.position(writer):
            return
        name = _file_name(writer)
        done = self._folder / f"{name}~{version:019d}.{self._format}"
        making = self._folder / f".{done.name}.{self._me}.making"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with making.open("wb") as file:
                self._encode(concat_rows(list(rows)), file.name)
                os.fsync(file.fileno())
            making.rename(done)
            _sync_folder(self._folder)
            if self._noted(name) < version:  # a stale copy of the writer may come late even here
                self._note(name, version)
        except OSError as error:
            _remove(making)
            raise StorageError(f"can't write {done}: {error}", hint="make room; see who owns the folder") from error
        except pl.exceptions.PolarsError as error:
            _remove(making)
            raise DataError(f"{done}: these rows can't be written as {self._format}: {error}") from error

    def close(self) -> None:
        """See ``Target``; there is nothing to release."""

    def _list(self, name: str) -> int:
        """The highest version in the names of the writer's files. Drafts that a dead process left are removed."""
        if not self._folder.is_dir():
            return -1
        pattern = re.compile(r"\.?" + re.escape(name) + r"~(\d{19})\.\w+(\.\w+\.making)?")
        highest = -1
        with os.scandir(self._folder) as entries:
            for entry in entries:
                match = pattern.fullmatch(entry.name)
                if match and match[2] is None:
                    highest = max(highest, int(match[1]))
                elif match and time.time() - entry.stat().st_mtime > _ABANDONED_S:
                    _remove(Path(entry.path))
        return highest

    def _noted(self, name: str) -> int:
        try:
            return int((self._folder / _POSITIONS / name).read_text())
        except (FileNotFoundError, ValueError):
            return -1  # not noted yet, or lost with the power: the listing knows

    def _note(self, name: str, version: int) -> None:
        positions = self._folder / _POSITIONS
        positions.mkdir(exist_ok=True)
        making = positions / f".{name}.{self._me}.making"
        making.write_text(str(version))
        making.rename(positions / name)
        self._listed[name] = max(version, self._listed.get(name, -1))

    def _encode(self, rows: pl.DataFrame, path: str) -> None:
        match self._format:
            case "parquet":
                rows.write_parquet(path)
            case "jsonl":
                rows.write_ndjson(path)
            case "csv":
                rows.write_csv(path)
            case other:
                raise DeclarationError(f"{path}: unknown format {other!r}")


def _file_name(writer: str) -> str:
    """The writer as the beginning of a file name; different writers have different ones."""
    name = "~".join(quote(part, safe="").replace("~", "%7E") for part in writer.split("/"))
    if len(name) <= _NAME_CHARS_MAX:
        return name
    return f"{name[:_NAME_CHARS_MAX]}%{hashlib.sha256(writer.encode()).hexdigest()[:16]}"


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the folder itself is out of reach, and the error under way says so


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
