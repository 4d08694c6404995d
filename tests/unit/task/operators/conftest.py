"""An app with one input, as most tests of operators begin."""

import polars as pl
import pytest

import headrace as hr


@pytest.fixture
def app() -> hr.App:
    return hr.App("page-views")


@pytest.fixture
def views(app: hr.App) -> hr.Stream:
    return app.input("views", {"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}, event_time="ts")


@pytest.fixture
def keyed_views(app: hr.App) -> hr.Stream:
    return app.input("views", {"member": pl.String, "ms": pl.Int64, "ts": pl.Int64}, key="member", event_time="ts")


@pytest.fixture
def out(app: hr.App) -> hr.Output:
    return app.output("out")
