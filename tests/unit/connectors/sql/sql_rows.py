"""Rows of every type that a SQL table can hold, with the difficult values of each."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import polars as pl

ROWS = pl.DataFrame(
    {
        "id": [1, 2, 3],
        "text": ["", r"\N", 'quote " comma , line\nend \\. null'],
        "maybe": [None, "x", ""],
        "small": pl.Series([-128, None, 127], dtype=pl.Int8),
        "wide": pl.Series([2**63 - 1, -(2**63), None], dtype=pl.Int64),
        "unsigned": pl.Series([0, 2**32 - 1, None], dtype=pl.UInt32),
        "number": [1.5, -0.0, None],
        "truth": [True, False, None],
        "bytes": [b"", b"\x00\xff\\x", None],
        "day": [date(1, 1, 1), date(9999, 12, 31), None],
        "at": [time(0, 0), time(23, 59, 59, 999_999), None],
        "when": pl.Series([datetime(2020, 2, 29, 1, 2, 3, 456), datetime(1969, 12, 31), None], dtype=pl.Datetime("us")),
        "zoned": pl.Series(
            [datetime(2020, 7, 1, 12, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC), None],
            dtype=pl.Datetime("ms", "UTC"),
        ).dt.convert_time_zone("Europe/Berlin"),
        "took": pl.Series(
            [timedelta(days=2, microseconds=5), timedelta(microseconds=-1), None], dtype=pl.Duration("us")
        ),
        "money": pl.Series([Decimal("12345678901234.50"), Decimal("-0.01"), None], dtype=pl.Decimal(18, 2)),
        "colour": pl.Series(["red", "blue", None], dtype=pl.Enum(["red", "blue"])),
        "list": [[1, None], [], None],
        "pair": pl.Series(
            [{"a": 'x"', "b": [1.5]}, {"a": None, "b": []}, None],
            dtype=pl.Struct({"a": pl.String, "b": pl.List(pl.Float64)}),
        ),
    }
)
