"""An app with one input, as most tests of the API begin."""

import polars as pl
import pytest

import headrace as hr


@pytest.fixture
def app() -> hr.App:
    return hr.App("page-views")


@pytest.fixture
def views(app: hr.App) -> hr.Stream:
    return app.input(
        "views",
        {"member": pl.String, "url": pl.String, "ms": pl.Int64, "ts": pl.Int64},
        event_time="ts",
        lateness="5s",
    )
