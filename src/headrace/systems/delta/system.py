"""A Delta table as a row system: written with one commit a version, never read as a stream.

Each commit also stores the writer's position, as a transaction identifier of Delta's own (``txn``).
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
from typing_extensions import override

from headrace.core.errors import DeclarationError, UsageError
from headrace.core.extras import needing
from headrace.core.secret_options import SecretOptions
from headrace.serdes.rows import concat_rows
from headrace.systems.base import Consumer, Creation, RowSystem, StreamInfo, Target
from headrace.systems.delta.columns import misfit_error, misfits, stored_columns, stored_rows
from headrace.systems.option_names import check_option_names
from headrace.systems.write_only import WriteOnlyAdmin

if TYPE_CHECKING:
    from headrace.systems.delta.client import DeltaClient, Shape

_OPTIONS = ("path", "partition_by", "create", "new_columns", "storage")


@dataclass(frozen=True)
class DeltaSystem(RowSystem):
    """One Delta table, whatever the name of the stream.

    ``path`` is a folder, or the URL of one in an object store, which ``storage`` says how to reach. ``create`` says
    whether to create a table that doesn't exist. ``new_columns`` is ``"refuse"`` or ``"add"``.
    """

    path: str
    partition_by: tuple[str, ...] = ()
    create: bool = True
    new_columns: str = "refuse"
    storage: SecretOptions = field(default_factory=SecretOptions)

    @override
    def admin(self) -> DeltaAdmin:
        return DeltaAdmin(self)

    @override
    def consumer(self, columns: Mapping[str, pl.DataType] | None = None, *, whole: bool = False) -> Consumer:
        """Refuse: the rows of a table have no order in which to resume reading."""
        raise _refused(f"the Delta table {self.path} can't be read as a stream")

    @override
    def target(self, stream: str) -> DeltaTarget:
        del stream
        return DeltaTarget(self.client(), self.partition_by)

    def client(self) -> DeltaClient:
        """Return a new client of the table."""
        with needing("deltalake", "Delta Lake", "delta", "wherever containers run"):
            from headrace.systems.delta.client import DeltaClient
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


class DeltaAdmin(WriteOnlyAdmin):
    """The admin of one table. What needs offsets is refused."""

    def __init__(self, system: DeltaSystem) -> None:
        self._system = system
        self._what = f"the Delta table {system.path}"

    @override
    def list(self) -> builtins.list[str]:
        """Return the table, if it exists."""
        return [self._system.path] if self._system.client().shape() is not None else []

    @override
    def describe(self, stream: str) -> StreamInfo | None:
        """Return one partition, and the columns of the table as types of Polars, if it exists."""
        shape = self._system.client().shape()
        return None if shape is None else StreamInfo(stream, 1, shape.columns)

    @override
    def create(
        self, stream: str, partitions: int, columns: dict[str, pl.DataType] | None = None, key: Sequence[str] = ()
    ) -> StreamInfo:
        """Create the table if it doesn't exist; else check that the columns fit, and add new ones if asked to."""
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
            raise DeclarationError(
                f"{self._what} is partitioned by {_listed(shape.partition_by)}, not by {_listed(system.partition_by)}",
                hint="set partition_by= to the table's partition columns, or write to another table",
            )
        return Creation(partitions, added=added)

    def _missing(self, shape: Shape, stored: Mapping[str, pl.DataType]) -> tuple[str, ...]:
        """Return the columns that the table lacks and may gain. Raises ``DeclarationError`` for others."""
        wrong = misfits(stored, shape.columns)
        missing = tuple(name for name in stored if name not in shape.columns)
        lower = {name.lower(): name for name in shape.columns}
        wrong += [f"its column {lower[name.lower()]!r} differs in case" for name in missing if name.lower() in lower]
        if wrong:
            raise misfit_error(self._what, wrong)
        if missing and self._system.new_columns != "add":
            raise DeclarationError(
                f"{self._what} has no column {missing[0]!r}; it has {', '.join(shape.columns)}",
                hint='hr.io.delta(..., new_columns="add") adds it, with null in earlier rows',
            )
        return missing

    @override
    def refused(self, why: str) -> UsageError:
        return _refused(f"{self._what} {why}")


def _refused(what: str) -> UsageError:
    return UsageError(what, hint="a Delta table is an output only; export it to files to read it")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def open_delta(name: str, options: Mapping[str, Any]) -> DeltaSystem:
    """Open the table of a ``SystemSpec`` of kind ``delta``. Options: ``path``; optional the rest of ``DeltaSystem``."""
    check_option_names(name, "delta", options, _OPTIONS, "path")
    given = dict(options)
    given["partition_by"] = tuple(given.get("partition_by", ()))
    storage = given.get("storage", SecretOptions())
    given["storage"] = storage if isinstance(storage, SecretOptions) else SecretOptions.of(storage)
    return DeltaSystem(**given)
