"""Streams of the log as outputs of batch jobs: pieces become the frames of a version, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.api.specs import StreamSpec
from headrace.core.errors import PlanError
from headrace.serdes.ipc import encode_rows
from headrace.serdes.pieces import TIME, Piece
from headrace.streams.committed_writer import CommittedWriter, committed_writer_in


class StreamOfResults:
    """One output."""

    def __init__(self, writer: CommittedWriter) -> None:
        self._writer = writer

    def publish(self, version: int, pieces: Sequence[Piece]) -> None:
        """Publish pieces as a version, unless it or a later one exists already."""
        self._writer.publish(version, ((piece.partition, encode_rows(piece.frame.drop(TIME))) for piece in pieces))

    def close(self) -> None:
        """Release it."""
        self._writer.close()


def stream_of_results(spec: StreamSpec, writer: str) -> StreamOfResults:
    """Open an output for a writer. Raises ``PlanError`` if it isn't in a log."""
    if spec.system.kind != "log":
        raise PlanError(
            f"a batch job can't write output {spec.id!r} ({spec.location}) to a system of kind {spec.system.kind!r}",
            hint="write it to a log, to files or to a table; or take it as a DataFrame: app.to_dataframe(...)",
        )
    return StreamOfResults(committed_writer_in(Path(spec.system.options["root"]), spec.stream, writer))
