"""Delta tables, through deltalake. Only this module imports it, and it is imported when a table is first used.

deltalake raises errors of its own classes, ``OSError`` for a store that doesn't answer, and ``Exception`` itself. After
any error the table is loaded again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaProtocolError, SchemaMismatchError, TableNotFoundError

from headrace.connectors.delta import system
from headrace.connectors.delta.system import fitted
from headrace.core.errors import (
    DataError,
    DeclarationError,
    HeadraceError,
    InfrastructureError,
    StorageError,
    StreamNotFoundError,
    UnavailableError,
)
from headrace.core.secrets import SecretOptions

_WAITS = {"connect_timeout": "3s", "timeout": "10s", "max_retries": "2", "retry_timeout": "10s"}
"""How long a store is waited for, unless the user says otherwise: a target must not block for more than seconds."""
_FORGETS = "delta.setTransactionRetentionDuration"
_MAPPING = "delta.columnMapping.mode"
_DENIED = (
    "PermissionDenied", "Unauthenticated", "lacked the necessary privileges", "lacked valid authentication",
    "no credentials found", "NoSuchBucket",
)  # fmt: skip
_NOISE = re.compile(r"\x1b\[[0-9;]*m|↳|\s\d+: <unknown>.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table, and those that it is partitioned by."""

    columns: dict[str, pl.DataType]
    partition_by: tuple[str, ...]


class DeltaClient:
    """A client of one table. It loads the table when it is first used; one thread uses it."""

    def __init__(self, path: str, storage: SecretOptions) -> None:
        self._path = path
        self._where = f"the Delta table {path}"
        self._folder = None if "://" in path else Path(path).absolute()
        if self._folder is not None:
            system.check_folder(self._folder)
        self._storage = storage
        self._loaded: tuple[DeltaTable, system.Stamp | None] | None = None

    def shape(self) -> Shape | None:
        try:
            table = self._current()
        except StreamNotFoundError:
            return None
        with self._translating():
            return Shape(_columns(table), tuple(table.metadata().partition_columns))

    def create(self, columns: Mapping[str, pl.DataType], partition_by: Sequence[str]) -> None:
        """Create the table. Does nothing if another program has created it meanwhile."""
        with self._translating():
            schema, by = Schema.from_arrow(pl.Schema(columns)), list(partition_by)
            if self._folder is not None:
                with system.created(self._folder) as making:
                    DeltaTable.create(making, schema, partition_by=by)
            else:
                DeltaTable.create(self._path, schema, "ignore", by, storage_options=self._options())

    def add_columns(self, columns: Mapping[str, pl.DataType]) -> None:
        table = self._current()
        with self._translating():
            table.alter.add_columns(list(Schema.from_arrow(pl.Schema(columns)).fields))
            self._sync(table)

    def position(self, writer: str) -> int:
        table = self._current()
        with self._translating():
            position = _position(table, writer)
            self._has(table, writer, position)
            return position

    def publish(self, writer: str, version: int, rows: pl.DataFrame) -> None:
        """As ``Target.publish``, in one commit, which Delta refuses if the writer's position has changed in between."""
        table = self._current()
        with self._translating():
            if self._has(table, writer, version):
                return
            data = fitted(rows, _columns(table), self._where)
            position = CommitProperties(app_transactions=[Transaction(writer, version)])
            try:
                write_deltalake(table, data, mode="append", commit_properties=position)
            except CommitFailedError:
                self.close()
                if self._has(self._current(), writer, version):
                    return
                raise
            self._sync(table)

    def close(self) -> None:
        self._loaded = None

    def _has(self, table: DeltaTable, writer: str, version: int) -> bool:
        """Return whether the version is durably in the table. Its writer may have died before it was durable."""
        there = 0 <= version <= _position(table, writer)
        if there and self._folder is not None:
            system.sync_recent(self._folder, table.version(), writer)
        return there

    def _current(self) -> DeltaTable:
        with self._translating():
            table = self._updated() or DeltaTable(self._folder or self._path, storage_options=self._options())
            self._keep(table)
            self._check_properties(table)
            return table

    def _updated(self) -> DeltaTable | None:
        """None if it has to be loaded: another table in its place has its own versions."""
        if self._loaded is None:
            return None
        table, stamp = self._loaded
        if self._folder is not None and (stamp is None or system.stamp(self._folder, table.version()) != stamp):
            return None
        try:
            table.update_incremental()
        except Exception:  # noqa: BLE001 - deltalake raises this class itself; loading says what is wrong
            return None
        return table

    def _keep(self, table: DeltaTable) -> None:
        self._loaded = table, None if self._folder is None else system.stamp(self._folder, table.version())

    def _sync(self, table: DeltaTable) -> None:
        if self._folder is not None:
            system.sync_commit(self._folder, table.version())
        self._keep(table)

    def _check_properties(self, table: DeltaTable) -> None:
        properties = table.metadata().configuration
        if _FORGETS in properties:
            raise DeclarationError(
                f"{self._where} has the property {_FORGETS}: it forgets the positions of its writers, "
                "so rows could be added twice",
                hint="remove the property, or write to another table",
            )
        if properties.get(_MAPPING, "none") != "none":
            hint = "write to a table without column mapping"
            raise DeclarationError(f"{self._where} has the property {_MAPPING}, which isn't supported", hint=hint)

    def _options(self) -> dict[str, str] | None:
        return None if self._folder is not None else {**_WAITS, **self._storage.reveal()}

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError:
            self.close()
            raise
        except Exception as error:  # noqa: BLE001 - deltalake raises this class itself
            self.close()
            # The cause is left out, because its message may contain secrets or rows.
            raise self._translated(error) from None

    def _translated(self, error: Exception) -> HeadraceError:
        full = " ".join(_NOISE.sub(" ", str(error)).split())
        text = self._storage.clean(full.partition("Preview of invalid data")[0].strip())[:400]
        where = f"{self._where}: {text}"
        if isinstance(error, TableNotFoundError):
            return StreamNotFoundError(f"{self._where} doesn't exist", hint="start the app again to create it")
        if isinstance(error, CommitFailedError):
            hint = "if this happens often, write to it from fewer tasks, or with a longer checkpoint_interval"
            return UnavailableError(f"{self._where}: other writers changed it first: {text}", hint=hint)
        if isinstance(error, DeltaProtocolError):
            return DeclarationError(where, hint="the table has a feature that deltalake can't write; use another table")
        if "Invalid data found" in full:
            hint = "rows violate NOT NULL or a constraint of the table: filter such rows, or drop the constraint"
            return DataError(where, hint=hint)
        if isinstance(error, SchemaMismatchError):
            return DeclarationError(where, hint="the output and the table must have the same columns")
        if self._folder is not None:
            if isinstance(error, OSError) or "os error" in full:
                return StorageError(where, hint="free up disk space, or check who owns the folder")
            return InfrastructureError(where, hint="check whether deltalake's DeltaTable(path) can read it")
        if any(sign in full for sign in _DENIED):
            hint = "check the bucket, storage_options, and the credentials in the environment"
            return InfrastructureError(where, hint=hint)
        return UnavailableError(where, hint="check storage_options, and that this machine can reach the store")


def _columns(table: DeltaTable) -> dict[str, pl.DataType]:
    return dict(pl.Schema(table.schema().to_arrow()))


def _position(table: DeltaTable, writer: str) -> int:
    version = table.transaction_version(writer)
    return -1 if version is None else int(version)
