"""A Delta table as a row system: written with one commit a version, never read as a stream.

Each commit also stores the writer's position, as a transaction identifier of Delta's own (``txn``). Unsigned numbers
become the next wider type; instants are in UTC, in microseconds; categories are text; arrays are lists. A type that
Delta doesn't have is refused before the app runs. A value that can't be stored is found before its commit.

deltalake syncs nothing. So what a commit has added to a folder is synced after it: the data files, then the entry of
the log. A table is created in a folder beside it, and renamed into place: of several creators one wins.
"""

from __future__ import annotations

import builtins
import json
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import polars as pl
from typing_extensions import override

from headrace.core.errors import DataError, DeclarationError, UsageError, needing
from headrace.core.files import sync_file, sync_folder
from headrace.core.secrets import SecretOptions
from headrace.rows.casting import CastSafety, cast_safety
from headrace.rows.dtypes import instantiate, written
from headrace.rows.given import concat_rows
from headrace.systems.base import Consumer, Creation, RowSystem, StreamInfo, Target, WriteOnlyAdmin
from headrace.systems.registry import check_option_names

if TYPE_CHECKING:
    from headrace.connectors.delta.client import DeltaClient, Shape

_AS_IT_IS = (
    pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64, pl.Boolean, pl.String, pl.Binary, pl.Date,
    pl.Decimal,
)  # fmt: skip
_WIDENED: dict[type[pl.DataType], pl.DataType] = {
    pl.UInt8: pl.Int16(), pl.UInt16: pl.Int32(), pl.UInt32: pl.Int64(), pl.UInt64: pl.Decimal(20, 0),
    pl.Enum: pl.String(), pl.Categorical: pl.String(),
}  # fmt: skip
_REMEDIES: dict[type[pl.DataType], str] = {
    pl.Duration: 'write a number: pl.col("x").dt.total_microseconds()',
    pl.Time: 'write text: pl.col("x").cast(pl.String)',
    pl.Null: "give it a type: pl.lit(None, dtype=pl.String)",
}
_PARTITIONING = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Boolean, pl.String, pl.Date)
_TIME_MAX = {"ms": 8_150_000_000_000_000, "us": 8_150_000_000_000_000_000, "ns": 2**63 - 1}
"""Times have to be this near to 1970: no calendar of the libraries in between goes further."""


def stored_columns(columns: Mapping[str, pl.DataType], partition_by: Sequence[str] = ()) -> dict[str, pl.DataType]:
    """The columns in a Delta table, as types of Polars. Raises ``DeclarationError`` for what Delta can't have."""
    seen: dict[str, str] = {}
    for name in columns:
        if other := seen.get(name.lower()):
            said = f"the columns {other!r} and {name!r} are the same to Delta, which ignores case"
            raise DeclarationError(said, hint="rename one of them")
        seen[name.lower()] = name
    stored = {name: _stored(name, dtype) for name, dtype in columns.items()}
    for name in partition_by:
        if name not in stored:
            said = f"partition_by: the output has no column {name!r}; it has {', '.join(columns)}"
            raise DeclarationError(said, hint="name columns of the output")
        if not isinstance(stored[name], _PARTITIONING):
            hint = 'partition by dates, whole numbers, text or booleans, such as pl.col("ts").dt.date()'
            raise DeclarationError(f"partition_by: column {name!r} is of type {written(columns[name])}", hint=hint)
    if partition_by and len(partition_by) == len(stored):
        raise DeclarationError("partition_by: the table needs at least one other column")
    return stored


def stored_rows(rows: pl.DataFrame, partition_by: Sequence[str] = ()) -> pl.DataFrame:
    """Return the rows in the types of ``stored_columns``. Raises ``DataError`` for a value that can't be stored."""
    wanted = stored_columns(dict(rows.schema))
    for name, dtype in rows.schema.items():
        if isinstance(dtype, pl.Datetime):
            near = rows[name].to_physical().is_between(-_TIME_MAX[dtype.time_unit], _TIME_MAX[dtype.time_unit])
            _refuse(~near, name, "is a time beyond the year 260,000", "filter or fix such rows")
    stored = rows.cast({name: dtype for name, dtype in wanted.items() if rows.schema[name] != dtype})
    for name in partition_by:
        if wanted.get(name) == pl.String:
            lost = stored[name].is_in(("", "__HIVE_DEFAULT_PARTITION__")).fill_null(value=False)
            hint = "replace it with null or with other text before the output"
            _refuse(lost, name, "is text that readers take for null in a partition column", hint)
    return stored


def fitted(rows: pl.DataFrame, table: Mapping[str, pl.DataType], where: str) -> pl.DataFrame:
    """Stored rows with exactly the columns of the table, null where they have none. Raises ``DeclarationError``."""
    wrong = misfits(rows.schema, table)
    if missing := [name for name in rows.columns if name not in table]:
        wrong += [f"it has no column {name!r}" for name in missing]
    if wrong:
        raise _misfit_error(where, wrong)
    return rows.select(
        pl.col(name).cast(dtype) if name in rows.columns else pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in table.items()
    )


def misfits(stored: Mapping[str, pl.DataType], table: Mapping[str, pl.DataType]) -> list[str]:
    wrong: list[str] = []
    for name, dtype in stored.items():
        if name not in table or cast_safety(dtype, table[name]) in (CastSafety.SAME, CastSafety.LOSSLESS):
            continue
        wrong.append(f"its column {name!r} is {written(table[name])}, not {written(dtype)}")
        if isinstance(dtype, pl.Datetime) and isinstance(table[name], pl.Datetime):
            wrong[-1] += " (a time with a zone is an instant; .dt.replace_time_zone() adds or removes the zone)"
    return wrong


def _misfit_error(where: str, wrong: Sequence[str]) -> DeclarationError:
    hint = "change the columns before the output, or write to another table"
    return DeclarationError(f"{where} doesn't fit the output: {'; '.join(wrong)}", hint=hint)


def _stored(column: str, dtype: pl.DataType) -> pl.DataType:
    if type(dtype) in _WIDENED:
        return _WIDENED[type(dtype)]
    match dtype:
        case pl.List() | pl.Array():
            return pl.List(_stored(column, instantiate(dtype.inner, column)))
        case pl.Struct():
            return pl.Struct({one.name: _stored(column, instantiate(one.dtype, column)) for one in dtype.fields})
        case pl.Datetime() if dtype.time_unit != "ns":
            return pl.Datetime("us", "UTC" if dtype.time_zone else None)
        case pl.Datetime():
            said = f"column {column!r}: Delta's times have microseconds, but {written(dtype)} is finer"
            raise DeclarationError(said, hint=f'round it before the output: pl.col("{column}").dt.cast_time_unit("us")')
        case _ if isinstance(dtype, _AS_IT_IS):
            return dtype
        case _:
            hint = _REMEDIES.get(type(dtype), "cast it to another type")
            raise DeclarationError(f"column {column!r}: Delta has no type for {dtype}", hint=hint)


def _refuse(rows: pl.Series, column: str, what: str, hint: str) -> None:
    if count := rows.sum():
        raise DataError(f"column {column!r} of {count} rows {what}", hint=hint)


@dataclass(frozen=True)
class DeltaSystem(RowSystem):
    """One Delta table, whatever the name of the stream. ``new_columns`` is ``"refuse"`` or ``"add"``."""

    path: str
    partition_by: tuple[str, ...] = ()
    create: bool = True
    new_columns: str = "refuse"
    storage: SecretOptions = field(default_factory=SecretOptions)

    @override
    def admin(self) -> _DeltaAdmin:
        return _DeltaAdmin(self)

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> Consumer:
        raise _refused(f"the Delta table {self.path} can't be read as a stream")

    @override
    def target(self, stream: str) -> DeltaTarget:
        return DeltaTarget(self.client(), self.partition_by)

    def client(self) -> DeltaClient:
        with needing("deltalake", "Delta Lake", "delta", "wherever containers run"):
            from headrace.connectors.delta.client import DeltaClient
        return DeltaClient(self.path, self.storage)


class DeltaTarget(Target):
    """The table as a target. Rows are only added."""

    def __init__(self, client: DeltaClient, partition_by: Sequence[str]) -> None:
        self._client = client
        self._partition_by = partition_by

    @override
    def accept(self, rows: pl.DataFrame) -> pl.DataFrame:
        return stored_rows(rows, self._partition_by)

    @override
    def position(self, writer: str) -> int:
        return self._client.position(writer)

    @override
    def publish(self, writer: str, version: int, rows: Sequence[pl.DataFrame]) -> None:
        self._client.publish(writer, version, concat_rows(list(rows)))

    @override
    def close(self) -> None:
        self._client.close()


class _DeltaAdmin(WriteOnlyAdmin):
    def __init__(self, system: DeltaSystem) -> None:
        self._system = system
        self._what = f"the Delta table {system.path}"

    @override
    def list(self) -> builtins.list[str]:
        return [self._system.path] if self._system.client().shape() is not None else []

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        shape = self._system.client().shape()
        return None if shape is None else StreamInfo(stream, 1, shape.columns)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        stored = self._stored(columns)
        client = self._system.client()
        due = self._due(client.shape(), partitions, stored)
        if due.new:
            client.create(stored or {}, self._system.partition_by)
            due = self._due(client.shape(), partitions, stored)  # another program may have created it
        if due.added:
            client.add_columns({name: (stored or {})[name] for name in due.added})
        return StreamInfo(stream, partitions, columns)

    @override
    def would_create(self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None) -> Creation:
        return self._due(self._system.client().shape(), partitions, self._stored(columns))

    def _stored(self, columns: Mapping[str, pl.DataType] | None) -> dict[str, pl.DataType] | None:
        return None if columns is None else stored_columns(columns, self._system.partition_by)

    def _due(self, shape: Shape | None, partitions: int, stored: Mapping[str, pl.DataType] | None) -> Creation:
        """Return what a table of this shape (None: no table) lacks. Raises ``DeclarationError`` if it can't be."""
        system = self._system
        if shape is None:
            if not system.create or stored is None:
                raise DeclarationError(f"{self._what} doesn't exist", hint="create it, or leave out create_table=False")
            return Creation(partitions, new=True)
        added = () if stored is None else self._missing(shape, stored)
        if shape.partition_by != system.partition_by:
            theirs, ours = (", ".join(names) or "nothing" for names in (shape.partition_by, system.partition_by))
            hint = "set partition_by= to the table's partition columns, or write to another table"
            raise DeclarationError(f"{self._what} is partitioned by {theirs}, not by {ours}", hint=hint)
        return Creation(partitions, added=added)

    def _missing(self, shape: Shape, stored: Mapping[str, pl.DataType]) -> tuple[str, ...]:
        wrong = misfits(stored, shape.columns)
        missing = tuple(name for name in stored if name not in shape.columns)
        lower = {name.lower(): name for name in shape.columns}
        wrong += [f"its column {lower[name.lower()]!r} differs in case" for name in missing if name.lower() in lower]
        if wrong:
            raise _misfit_error(self._what, wrong)
        if missing and self._system.new_columns != "add":
            said = f"{self._what} has no column {missing[0]!r}; it has {', '.join(shape.columns)}"
            raise DeclarationError(said, hint='hr.io.delta(..., new_columns="add") adds it, with null in earlier rows')
        return missing

    @override
    def refused(self, why: str) -> UsageError:
        return _refused(f"{self._what} {why}")


def _refused(what: str) -> UsageError:
    return UsageError(what, hint="a Delta table is an output only; export it to files to read it")


def open_delta(name: str, options: Mapping[str, Any]) -> DeltaSystem:
    check_option_names(name, "delta", options, (one.name for one in fields(DeltaSystem)), "path")
    given = dict(options)
    given["partition_by"] = tuple(given.get("partition_by", ()))
    storage = given.get("storage", SecretOptions())
    given["storage"] = storage if isinstance(storage, SecretOptions) else SecretOptions.of(storage)
    return DeltaSystem(**given)


# -- local -------------------------------------------------------------------------------------------
LOG = "_delta_log"
Stamp = tuple[int, int, int]


def check_folder(folder: Path) -> None:
    name = str(folder)
    wrong = [char for char in name if char in "[]\\^|" or ord(char) < 32]
    if wrong or unquote(name) != name:
        found = repr(wrong[0]) if wrong else "a % with two digits"
        said = f"the folder {name!r} can't hold a Delta table: deltalake can't use a name with {found} in it"
        raise DeclarationError(said, hint="use another folder")


def stamp(folder: Path, version: int) -> Stamp | None:
    """Return the identity of the log's entry, which differs in a replaced table; None if the entry is missing."""
    try:
        found = _entry(folder, version).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def created(folder: Path) -> Iterator[Path]:
    """A folder for a new table, which the block creates. At its end the table is in place, unless there is one."""
    _check_empty(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.making")
    try:
        making.mkdir()
        yield making
        sync_file(_entry(making, 0))
        sync_folder(making / LOG)
        folder.mkdir(exist_ok=True)
        try:
            (making / LOG).rename(folder / LOG)
        except OSError:
            if not (folder / LOG).is_dir():
                raise
        sync_folder(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def sync_commit(folder: Path, version: int) -> None:
    folders = {folder}
    for action in _actions(folder, version):
        if "add" not in action:
            continue
        file = folder / unquote(action["add"]["path"])
        if file.exists():  # else it was compacted, and removed, meanwhile
            sync_file(file)
            folders |= {parent for parent in file.parents if parent.is_relative_to(folder)}
    for changed in sorted(folders):
        sync_folder(changed)
    for name in (f"{version:020d}.json", f"{version:020d}.checkpoint.parquet", "_last_checkpoint"):
        if (file := folder / LOG / name).exists():
            sync_file(file)
    sync_folder(folder / LOG)


def sync_recent(folder: Path, version: int, writer: str) -> None:
    """Make the recent commits of a writer durable, up to this one, because a dead process may not have done so."""
    while (found := stamp(folder, version)) is not None and time.time() - found[1] / 1e9 < 300:
        actions = _actions(folder, version)
        if any(action.get("txn", {}).get("appId") == writer for action in actions):
            sync_commit(folder, version)
        version -= 1


def _check_empty(folder: Path) -> None:
    """Raise ``DeclarationError`` if there are files of others: the table's ``vacuum`` would remove them."""
    others = [] if not folder.is_dir() else sorted(one.name for one in folder.iterdir() if one.name[0] not in "._")
    if others and not (folder / LOG).exists():
        raise DeclarationError(
            f"the folder {folder} can't become a Delta table, because cleaning the table would remove its other "
            f"files, such as {others[0]}",
            hint="use another folder, or convert the files with convert_to_deltalake of deltalake",
        )


def _entry(folder: Path, version: int) -> Path:
    return folder / LOG / f"{version:020d}.json"


def _actions(folder: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _entry(folder, version).read_bytes().splitlines() if line.strip()]
