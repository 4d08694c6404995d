"""A folder as a target: one file for each version that a writer publishes, which appears atomically.

A file is written under a hidden name (a draft), synced, and renamed: under its own name it is complete. The name
contains writer and version, so publishing a version again gives the same file. The writer's position is in a small file
beside it, which is renamed into place after the data: so files that were removed downstream don't come back. If the
machine lost the newest position, the names of the files have it; they are listed once, when a target is first used.

For the moment between the two renames, a third file names the draft that is about to be renamed. If that draft is gone,
it was renamed. So a draft that another process may look for is never removed before the file that names it.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError, StorageError
from headrace.core.files import sync_folder
from headrace.core.log import logger
from headrace.rows.given import concat_rows
from headrace.rows.text import encode_lines
from headrace.systems.base import Target

_POSITIONS = ".positions"
_NAME_CHARS_MAX = 160
_ABANDONED_S = 3600
_log = logger(__name__)


class FilesTarget(Target):
    """Publishes versions as files of a folder."""

    def __init__(self, folder: Path, format: str) -> None:
        self._folder = folder
        self._format = format
        self._listed: dict[str, int] = {}
        self._me = uuid.uuid4().hex[:8]  # a stale copy of the writer may write the same file

    @override
    def position(self, writer: str) -> int:
        name = _file_name(writer)
        try:
            if name not in self._listed:
                self._listed[name] = self._list(name)
            return max(self._listed[name], self._noted(name), self._begun(name))
        except OSError as error:
            raise StorageError(f"can't read the folder {self._folder}: {error}") from error

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        if version <= self.position(writer):
            return
        name = _file_name(writer)
        done = self._folder / f"{name}~{version:019d}.{self._format}"
        making = self._folder / f".{done.name}.{uuid.uuid4().hex[:8]}.making"  # another one at each try
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with making.open("wb") as file:
                self._encode(concat_rows(list(rows)), file)
                os.fsync(file.fileno())
            sync_folder(self._folder)  # the draft named next must not be missing for any other reason
            self._put(self._begun_file(name), f"{version} {making.name}")
            making.rename(done)
            sync_folder(self._folder)
            if self._noted(name) < version:  # even here a stale copy of the writer may be late
                self._put(self._folder / _POSITIONS / name, str(version))
                self._listed[name] = max(version, self._listed.get(name, -1))
        except OSError as error:
            self._withdraw(name, making)
            what = f"can't write {done}: {error}"
            raise StorageError(what, hint="free up disk space, or check who owns the folder") from error
        except pl.exceptions.PolarsError as error:
            _remove(making)
            raise DataError(f"{done}: these rows can't be written as {self._format}: {error}") from error

    @override
    def close(self) -> None:
        """There is nothing to release."""

    def _list(self, name: str) -> int:
        """The highest version in the names of the writer's files. Removes old drafts that a dead process left."""
        if not self._folder.is_dir():
            return -1
        pattern = re.compile(r"\.?" + re.escape(name) + r"~(\d{19})\.\w+(\.\w+\.making)?")
        highest, noted = -1, self._noted(name)
        drafts: list[tuple[int, os.DirEntry[str]]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                match = pattern.fullmatch(entry.name)
                if match and match[2] is None:
                    highest = max(highest, int(match[1]))
                elif match:
                    drafts.append((int(match[1]), entry))
        for version, draft in drafts:
            if version <= max(highest, noted) and time.time() - draft.stat().st_mtime > _ABANDONED_S:
                _remove(Path(draft.path))
                _log.info("deleted a draft that a dead process left", file=draft.path)
        return highest

    def _noted(self, name: str) -> int:
        try:
            return int((self._folder / _POSITIONS / name).read_text())
        except (FileNotFoundError, ValueError):
            return -1  # not noted yet, or lost with the power: the listing knows

    def _begun(self, name: str) -> int:
        """The version whose draft was about to be renamed, if the draft no longer exists; otherwise -1."""
        file = self._begun_file(name)
        while True:
            try:
                text = file.read_text()
                version, draft = text.split(" ", 1)
                if (self._folder / draft).exists():
                    return -1
                if file.read_text() == text:  # else a stale copy withdrew its draft, or began another one
                    return int(version)
            except (FileNotFoundError, ValueError):
                return -1

    def _begun_file(self, name: str) -> Path:
        return self._folder / _POSITIONS / f".{name}.begun"

    def _withdraw(self, name: str, making: Path) -> None:
        try:
            file = self._begun_file(name)
            if making.exists() and file.exists() and file.read_text().endswith(f" {making.name}"):
                file.unlink()
        except OSError:
            return  # the draft stays, too
        _remove(making)

    def _put(self, file: Path, text: str) -> None:
        file.parent.mkdir(exist_ok=True)
        making = file.with_name(f".{file.name}.{self._me}.making")
        making.write_text(text)
        making.rename(file)

    def _encode(self, rows: pl.DataFrame, file: BinaryIO) -> None:
        match self._format:
            case "parquet":
                rows.write_parquet(file.name)
            case "jsonl":
                file.write(encode_lines(rows))
                file.flush()
            case "csv":
                spelled = pl.selectors.binary().bin.encode("base64"), pl.selectors.duration().dt.to_string("iso")
                rows.with_columns(*spelled).write_csv(file.name)
            case other:
                raise DeclarationError(f"{file.name}: unknown format {other!r}")


def _file_name(writer: str) -> str:
    """Different writers have different names."""
    name = "~".join(quote(part, safe="").replace("~", "%7E") for part in writer.split("/"))
    if len(name) <= _NAME_CHARS_MAX:
        return name
    return f"{name[:_NAME_CHARS_MAX]}%{hashlib.sha256(writer.encode()).hexdigest()[:16]}"


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the folder can't be reached; the error under way says so
