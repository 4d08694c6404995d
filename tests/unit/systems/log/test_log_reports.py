"""The log reports what it handles by itself: torn appends, disks that keep trimmed blocks, no inotify."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_harness import append, log_file, new_log, read_all, ssp

from headrace.core.log import Throttle, logger
from headrace.systems.log import consumer as file_watcher
from headrace.systems.log import layout as holes
from headrace.systems.log.consumer import FileWatcher


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="headrace.systems.log")


@pytest.fixture
def no_more_files() -> Iterator[None]:
    """The limit of open files is used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_torn_append_is_reported_where_it_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    system = new_log(tmp_path, [b"first"])
    size = log_file(tmp_path).stat().st_size
    append(system, [b"torn away"])
    with log_file(tmp_path).open("r+b") as file:
        file.truncate(size + 7)
    append(system, [b"second"])
    assert read_all(system) == ([b"first", b"second"], 7)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("INFO", "skipped the rest of an unfinished append")
    assert (vars(record)["partition"], vars(record)["offset"], vars(record)["bytes"]) == (str(ssp()), size, 7)


def test_blocks_that_stay_on_the_disk_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    system = new_log(tmp_path, [bytes(100_000)] * 4)
    monkeypatch.setattr(holes, "_throttle", Throttle(logger(holes.__name__)))
    monkeypatch.setattr(holes.sys, "platform", "plan9")
    system.admin().trim(ssp(), 32 + 100_024)
    system.admin().trim(ssp(), 32 + 2 * 100_024)
    (record,) = caplog.records
    assert record.getMessage().endswith("trimmed records: they stay on the disk")


@pytest.mark.usefixtures("no_more_files")
def test_readers_without_inotify_say_so_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(file_watcher, "_throttle", Throttle(logger(file_watcher.__name__)))
    assert FileWatcher.open() is None
    assert FileWatcher.open() is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "raise the sysctl fs.inotify.max_user_instances" in record.getMessage()
    assert vars(record)["error"] == "Too many open files"
