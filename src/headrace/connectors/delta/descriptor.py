"""The descriptor of a Delta table: ``delta(...)``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from headrace.api.checks import Declaring, one_of
from headrace.api.descriptors import NewColumns, OutputOnly
from headrace.core.errors import DeclarationError
from headrace.core.secrets import SecretOptions, check_no_credentials
from headrace.systems.registry import SystemSpec

STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")


@dataclass(frozen=True, slots=True)
class Delta(OutputOnly):
    """A Delta table; see ``delta``."""

    path: str
    partition_by: tuple[str, ...] = ()
    create_table: bool = True
    new_columns: NewColumns = "refuse"
    storage_options: SecretOptions = field(default_factory=SecretOptions)

    def system(self, stream_id: str) -> SystemSpec:
        options: dict[str, Any] = {
            "path": self.path,
            "partition_by": self.partition_by,
            "create": self.create_table,
            "new_columns": self.new_columns,
            "storage": self.storage_options,
        }
        return SystemSpec(f"delta-{stream_id}".replace(".", "-"), "delta", options)

    @override
    def no_input(self) -> DeclarationError:
        hint = "a Delta table is an output only: it has no order in which reading could resume; export it to files"
        return DeclarationError(f"the Delta table {self.path} can't be an input", hint=hint)


def delta(
    path: str | os.PathLike[str],
    *,
    partition_by: str | Sequence[str] | None = None,
    create_table: bool = True,
    new_columns: NewColumns = "refuse",
    storage_options: Mapping[str, str] | None = None,
) -> Delta:
    """A Delta table: an output, exactly once, without Spark or a JVM.

    It needs ``pip install "headrace[delta]"``. Each checkpoint of a task becomes one commit, which also stores the
    writer's position. Rows are only added. Spark, Polars and everything else that reads Delta can read the table.

    Parameters
    ----------
    path
        The table's folder, which all containers must reach; or its URL in an object store, such as
        ``s3://bucket/views``.
    partition_by
        One column or several by which the table is partitioned: dates, whole numbers, text or booleans. An existing
        table must be partitioned by the same columns.
    create_table
        Create the table, with the output's columns, if it doesn't exist.
    new_columns
        What happens if the output has columns that the table lacks: ``"refuse"`` stops the app before it runs,
        ``"add"`` adds them with null in earlier rows. Types never change, and columns are never removed.
    storage_options
        For an object store: options of deltalake, such as ``{"aws_region": "eu-west-1"}``. Their values are never
        shown. Prefer credentials from the environment.

    Examples
    --------
    >>> hr.io.delta("lake/views", partition_by="day").partition_by
    ('day',)
    >>> hr.io.delta("s3://bucket/views", storage_options={"aws_secret_access_key": "s3cret"}).storage_options
    SecretOptions(aws_secret_access_key=***)
    """
    with Declaring("delta"):
        place = os.fspath(path)
        scheme, remote, _ = place.partition("://")
        if remote and scheme.lower() not in STORES:
            hint = f"write the path of a folder, or a URL that begins with {', '.join(STORES)}"
            raise DeclarationError(f"a Delta table can't be written to {scheme}://...", hint=hint)
        if not place:
            raise DeclarationError("the path of the table is empty", hint='write "lake/views"')
        check_no_credentials(place)
        one_of("new_columns", new_columns, NewColumns)
        by = () if partition_by is None else (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        if len(set(by)) < len(by):
            raise DeclarationError(f"partition_by={list(by)!r} names a column twice", hint="name each column once")
        return Delta(place, by, bool(create_table), new_columns, _secret(storage_options, local=not remote))


def _secret(options: Mapping[str, str] | None, *, local: bool) -> SecretOptions:
    if options and local:
        raise DeclarationError("storage_options are for object stores, not for folders", hint="leave them out")
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise DeclarationError(
                f"storage_options: the value of {name!r} isn't text", hint='write text, such as {"allow_http": "true"}'
            )
    return SecretOptions.of(options or {})
