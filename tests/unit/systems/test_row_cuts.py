"""Rows up to an offset, with gaps and with bad records among them."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ids import SSP, StreamId
from headrace.systems.base import BadRecord, Rows, height_before, rows_before

ORDERS = SSP(StreamId("kafka-orders", "orders"), 0)


@given(st.data(), st.booleans())
def test_rows_before_an_offset(data: st.DataObject, dense: bool) -> None:
    kinds = data.draw(st.lists(st.sampled_from(["row", "bad", "row"] if dense else ["row", "bad", "gap"]), max_size=20))
    offsets = {kind: [50 + i for i, one in enumerate(kinds) if one == kind] for kind in ("row", "bad")}
    rows = Rows(
        ORDERS,
        pl.DataFrame({"at": pl.Series(offsets["row"], dtype=pl.Int64)}),
        50,
        50 + len(kinds),
        [BadRecord(ORDERS, offset, "", b"") for offset in offsets["bad"]],
        offsets=None if dense else np.array(offsets["row"], dtype=np.int64),
    )
    limit = data.draw(st.integers(50, 75))
    cut = rows_before(rows, limit)
    before = [offset for offset in offsets["row"] if offset < limit]
    assert cut.frame["at"].to_list() == before
    assert height_before(rows, limit) == len(before)
    assert [bad.offset for bad in cut.bad] == [offset for offset in offsets["bad"] if offset < limit]
    assert cut.next == min(limit, rows.next)
    assert cut.offsets is None or cut.offsets.tolist() == before
