"""The seam where a batch job stops and a live run continues.

A backfill reads a part of each input, and its tasks don't end after that. Event time stops where it would be in a live
task at these positions: at the lowest of the partitions' watermarks, less the lateness. So open windows stay open. Each
task leaves its state and its commit, as for a savepoint (``notes.Left``). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from headrace.api.specs import StreamSpec
from headrace.core.ids import SSP
from headrace.runtime.batch.notes import Said
from headrace.runtime.event_time.columns import time_ms


@dataclass(frozen=True, slots=True)
class Seam:
    """A seam. Tasks commit ``version`` there, and leave their state below ``folder``, which all of them can reach.

    ``given`` are the source partitions that aren't read, because their history comes from elsewhere.
    """

    version: int
    folder: str
    given: Mapping[SSP, Said] = field(default_factory=dict)

    def before(self, ssp: SSP, spec: StreamSpec, rows: pl.DataFrame) -> pl.DataFrame:
        """Those rows of the history of a partition that aren't read live."""
        time, said = spec.event_time, self.given.get(ssp)
        if time is None or spec.schema is None or said is None:
            return rows
        return rows.filter(time_ms(time, spec.schema.columns[time.column]) < said.progress.watermark)
