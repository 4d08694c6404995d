"""The descriptor of a Spark DataFrame: ``dataframe(...)``. It recognises one without an import of PySpark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from headrace.api.checks import Declaring, SchemaLike, key_names, unknown_column
from headrace.api.descriptors import InputUse, check_partitions
from headrace.core.errors import DeclarationError
from headrace.rows.dtypes import Columns, columns_to_json
from headrace.rows.hashing import hash_rows
from headrace.rows.schema import Schema
from headrace.systems.registry import SystemSpec

PARTITIONS = 4
"""The default partition count of an input."""

_PLAIN: Mapping[str, pl.DataType] = {
    "boolean": pl.Boolean(),
    "byte": pl.Int8(),
    "short": pl.Int16(),
    "integer": pl.Int32(),
    "long": pl.Int64(),
    "float": pl.Float32(),
    "double": pl.Float64(),
    "string": pl.String(),
    "binary": pl.Binary(),
    "date": pl.Date(),
    "timestamp": pl.Datetime("us", "UTC"),
    "timestamp_ntz": pl.Datetime("us"),
}
"""Spark's types without parameters, by their names in JSON."""
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_TEXT = re.compile(r"(var)?char\(\d+\)")
_REMEDIES = {
    "void": 'give it a type: .withColumn("{0}", F.col("{0}").cast("string"))',
    "variant": 'make it text: .withColumn("{0}", F.to_json("{0}"))',
    "interval": 'make it a number: .withColumn("{0}", F.col("{0}").cast("bigint"))',
    "time": 'make it text: .withColumn("{0}", F.col("{0}").cast("string"))',
    "map": "only a column may be a map: make it an array of entries with F.map_entries(...)",
}
_SORTABLE = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Date)


@dataclass(frozen=True, slots=True)
class DataFrameInput:
    """A Spark DataFrame; see ``dataframe``."""

    dataframe: Any = field(repr=False)
    columns: Columns = field(hash=False)
    partitions: int = PARTITIONS
    key: tuple[str, ...] = ()

    def system(self, stream_id: str) -> SystemSpec:
        """Refuse, because only ``input_system`` knows enough of the input."""
        raise DeclarationError(
            f"a DataFrame can only be an input, but {stream_id!r} isn't one",
            hint="write an output to files, hr.io.files(folder): spark.read.parquet(folder) reads them",
        )

    def output_system(self, stream_id: str) -> SystemSpec:
        """Refuse, because a DataFrame can't be an output."""
        return self.system(stream_id)

    def input_schema(self, schema: SchemaLike | None) -> Schema:
        """The columns that the app declares, by default all of the DataFrame."""
        declared = Schema.of(self.columns if schema is None else schema)
        for name in declared.columns:
            if name not in self.columns:
                raise unknown_column(name, self.columns, " in the DataFrame")
        for name in self.key:
            if name not in declared.columns:
                raise unknown_column(name, declared.columns, " in the input, by which its rows are to be placed")
            here, there = self.columns[name], declared.columns[name]
            if here != there and not (here.is_integer() and there.is_integer()):  # else the hash may differ
                raise DeclarationError(
                    f"rows are placed by column {name!r}, which is {here} in the DataFrame and declared as {there}",
                    hint=f"declare it as {here}, or cast it in the DataFrame",
                )
        return declared

    def input_system(self, stream_id: str, use: InputUse) -> SystemSpec:
        """The system of an input: files in the app's home, which Spark writes when the app starts."""
        if use.start != "oldest":
            raise DeclarationError(f"start={use.start!r}: a DataFrame gets no rows later", hint="leave start= out")
        for name in use.event_time:
            dtype = self.columns[name]
            if not (isinstance(dtype, pl.Datetime) or dtype in _SORTABLE):
                raise DeclarationError(
                    f"the event time column {name!r} of the DataFrame is {dtype}, which may not sort by time",
                    hint=f'convert it to a time first: .withColumn("{name}", F.to_timestamp("{name}"))',
                )
        place = f"{use.home}/dataframes/{use.app}/{stream_id}"
        options: dict[str, Any] = {
            "path": place,
            "format": "parquet",
            "partitions": self.partitions,
            "columns": columns_to_json(self.columns),
            "awaited": True,
            "list_file": f"{place}.jsonl",
        }
        if use.event_time:
            options["event_time"] = columns_to_json(use.event_time)
        return SystemSpec(f"dataframe-{stream_id}".replace(".", "-"), "files", options, held=self)


def dataframe(df: Any, *, partitions: int = PARTITIONS, key: str | Sequence[str] | None = None) -> DataFrameInput:
    """A Spark DataFrame, ``df``: an input that ends, with the columns of ``df`` or those that the input declares.

    When the app first starts, Spark writes the rows as Parquet files into the app's home. The app reads this copy from
    then on, also after a restart. Spark copies only the columns that the input declares, in the order of its event time
    if it has one. Declaring it, planning the app and testing it run no Spark job.

    The rows are in as many ``partitions``, by ``key`` (one column or several) as with ``partition_by``. The side input
    of a local table needs this. By default a row may be in any partition. Raises ``DeclarationError`` if it isn't a
    Spark DataFrame, is a streaming one, or has a column of a type that a stream can't hold.

    Examples
    --------
    >>> def members(spark):  # called with a session of Spark
    ...     return app.input("members", system=hr.io.dataframe(spark.read.table("members")))
    """
    with Declaring("dataframe"):
        check_partitions(partitions)
        if partitions is None:
            raise DeclarationError("partitions=None is not a number of partitions", hint="leave it out")
        _check_dataframe(df)
        columns = columns_of(df.schema.jsonValue())
        keys = key_names(key)
        for name in keys:
            if name not in columns:
                raise unknown_column(name, columns, " in the DataFrame")
        if keys:
            hash_rows(pl.DataFrame(schema=columns), keys)  # raises for a type that can't be a key
        return DataFrameInput(df, columns, partitions, keys)


def columns_of(schema: Mapping[str, Any]) -> dict[str, pl.DataType]:
    """The columns of a Spark schema in JSON. Raises ``DeclarationError`` for a type that a stream can't hold."""
    fields = schema["fields"]
    counts = Counter(one["name"].lower() for one in fields)
    for one in fields:
        if counts[one["name"].lower()] > 1:
            raise DeclarationError(
                f"the DataFrame has several columns named {one['name']!r}",
                hint="rename or drop all but one; Spark ignores case",
            )
    if not fields:
        raise DeclarationError("the DataFrame has no columns", hint="select some")
    return {one["name"]: _column(one["name"], one["type"]) for one in fields}


def _column(name: str, spark: Any) -> pl.DataType:
    """A column may be a map, which becomes a list of entries when the rows are copied."""
    if isinstance(spark, dict) and spark["type"] == "map":
        entry = {"key": spark["keyType"], "value": spark["valueType"]}
        return pl.List(pl.Struct({part: _type(name, of) for part, of in entry.items()}))
    return _type(name, spark)


def _type(column: str, spark: Any) -> pl.DataType:
    if isinstance(spark, str):
        if found := _DECIMAL.fullmatch(spark):
            return pl.Decimal(int(found[1]), int(found[2]))
        plain = pl.String() if _TEXT.fullmatch(spark) else _PLAIN.get(spark)
        if plain is not None:
            return plain
        raise _refused(column, spark)
    if spark["type"] == "array":
        return pl.List(_type(column, spark["elementType"]))
    if spark["type"] == "struct" and spark["fields"]:
        return pl.Struct({one["name"]: _type(f"{column}.{one['name']}", one["type"]) for one in spark["fields"]})
    raise _refused(column, spark["type"])


def _refused(column: str, kind: str) -> DeclarationError:
    word = re.split(r"[ (]", kind)[0]
    remedy = _REMEDIES.get(word, 'drop it: .drop("{0}"), or make it another type')
    return DeclarationError(
        f"column {column!r} of the DataFrame has Spark's type {kind}, which a stream can't hold",
        hint=remedy.format(column),
    )


def _check_dataframe(df: object) -> None:
    kinds = [base.__module__ for base in type(df).__mro__ if base.__name__ == "DataFrame"]
    if any(kind.startswith("pyspark.sql.connect") for kind in kinds):
        raise DeclarationError(
            "the DataFrame belongs to a Spark Connect session, which can't host containers",
            hint="make it with a session of the driver's own: SparkSession.builder.master(...).getOrCreate()",
        )
    if not any(kind.startswith("pyspark.sql") for kind in kinds):
        library = kinds[-1].partition(".")[0] if kinds else ""
        raise DeclarationError(
            f"{type(df).__name__}{f' of {library}' if library else ''} {df!s:.60} is not a DataFrame of Spark",
            hint=_instead_of(library),
        )
    if getattr(df, "isStreaming", False):
        raise DeclarationError(
            "a streaming DataFrame never ends, but this input is copied as a whole",
            hint="have its query write to files, and read them with hr.io.files(folder, new_files='follow')",
        )


def _instead_of(library: str) -> str:
    if library in ("polars", "pandas"):
        return "write it to Parquet, and read that with hr.io.files(path)"
    return "write hr.io.dataframe(spark.read.parquet(path)), or spark.read.table(name)"
