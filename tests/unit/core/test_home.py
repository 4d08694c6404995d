"""One rule decides the home folder everywhere."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import headrace as hr
from headrace.core.deployment import home_of, metadata_url_of


@pytest.mark.parametrize(
    ("given", "variable", "home"),
    [
        (None, None, ".headrace"),
        (None, "", ".headrace"),
        (None, "/data/a", "/data/a"),
        ("/data/b", "/data/a", "/data/b"),
        (Path("c"), None, "c"),
    ],
)
def test_what_is_given_comes_before_the_variable(
    monkeypatch: pytest.MonkeyPatch, given: str | Path | None, variable: str | None, home: str
) -> None:
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    if variable is not None:
        monkeypatch.setenv("HEADRACE_HOME", variable)
    assert home_of(given) == Path(home)
    assert hr.App("shop", home=given).settings.home == home


def test_streams_are_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "here"))
    hr.streams.create_stream("numbers", 1, {"n": pl.Int64})
    with hr.streams.StreamWriter("numbers") as writer:
        writer.write([{"n": 1}])
    assert hr.streams.read_stream("numbers")["n"].to_list() == [1]
    assert hr.streams.StreamReader("numbers").partitions == 1
    assert (tmp_path / "here" / "streams" / "numbers").is_dir()
    assert not (tmp_path / ".headrace").exists()
    with pytest.raises(hr.errors.InfrastructureError, match=f"no app 'shop' has ever run in {tmp_path / 'here'}"):
        hr.tables.open_table("shop", "prices")


def test_what_is_no_folder_is_said() -> None:
    with pytest.raises(hr.errors.UsageError, match="home=5 is not a folder"):
        hr.streams.read_stream("numbers", home=5)  # type: ignore[arg-type]


URL = "postgresql://ann:s3cret@db/headrace"


@pytest.mark.parametrize(
    ("given", "variable", "url"),
    [(None, None, None), (None, "", None), (None, URL, URL), ("postgres://other/db", URL, "postgres://other/db")],
)
def test_the_metadata_store_is_where_one_says(
    monkeypatch: pytest.MonkeyPatch, given: str | None, variable: str | None, url: str | None
) -> None:
    monkeypatch.delenv("HEADRACE_METADATA", raising=False)
    if variable is not None:
        monkeypatch.setenv("HEADRACE_METADATA", variable)
    found = metadata_url_of(given)
    assert (found.text if found else None) == url
    settings = hr.App("shop", metadata=given).settings
    assert settings.metadata == found
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in str(settings)


@pytest.mark.parametrize("given", ["sqlite:///s3cret.db", "host=db password=s3cret", "ann:s3cret@db", 5])
def test_what_is_no_database_is_refused_without_being_shown(given: str) -> None:
    with pytest.raises(hr.errors.UsageError, match="metadata isn't the URL of a PostgreSQL database") as caught:
        hr.App("shop", metadata=given)
    assert "s3cret" not in str(caught.value)
