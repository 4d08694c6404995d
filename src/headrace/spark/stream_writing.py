"""A streaming query into a stream: each of Spark's batches is a version, and is written once however often it runs.

Spark tells only ``commit`` the number of the batch, and calls it on a new object in a process of its own. After a crash
it runs the last batch again, with the same number: the writer's record says then that it is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from typing_extensions import override

from headrace.core.errors import DataError
from headrace.spark.write_options import WriteOptions
from headrace.spark.writing import Destination, StagedRows
from headrace.streams.committed_writer import open_committed_writer


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``: a version for each batch, under the option ``writer`` or the name of the query."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._to = Destination(WriteOptions.of(options, streaming=True, overwrite=overwrite), schema)

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        return self._to.stage(iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        options = self._to.options
        try:
            name = options.writer or writer_of(options.checkpoint_location or "")
            with open_committed_writer(options.home, options.stream, name) as writer:
                self._to.publish(writer, batchId, messages)
        finally:
            self._to.clean(messages)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._to.clean(messages)


def writer_of(location: str) -> str:
    """Return the name of the query with this ``checkpointLocation``.

    It has the query's id if the location is a folder of this machine. So a query that starts over, because its
    checkpoint was deleted, is another one. Elsewhere it is a hash of the location.
    """
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        path = Path(location if not parts.scheme else unquote(parts.path)) / "metadata"
        try:
            return f"query-{json.loads(path.read_bytes())['id']}"
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} doesn't name the query it belongs to: {error}",
                hint='name the query yourself: option("writer", ...)',
            ) from error
    return f"checkpoint-{blake2b(location.rstrip('/').encode(), digest_size=16).hexdigest()}"
