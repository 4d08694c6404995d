"""The journal says what a batch run has done, and refuses what would publish results twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import DataError, UnavailableError, UsageError
from headrace.spark.batch.runner import Journal


def test_the_format_is_durable(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "shop")
    journal.begin("now", again=False)
    file = tmp_path / "batches" / "shop" / "journal.json"
    assert file.read_bytes() == b'{"format":1,"run":1,"state":"begun","until":"now","savepoint":""}'


def test_a_run_that_died_starts_over_and_a_computed_one_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "shop")
    begun = journal.begin("now", again=False)
    left = journal.results(begun) / "part-0.parquet"
    left.parent.mkdir(parents=True)
    left.touch()
    over = journal.begin("now", again=False)
    assert (over.run, over.state, left.exists()) == (1, "begun", False)
    journal.note(over, "computed")
    left.parent.mkdir(parents=True)
    left.touch()
    assert journal.begin("2026-01-31 12:00:00Z", again=True) == journal.read()
    assert left.exists()


def test_what_is_published_is_published_again_on_request_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "shop")
    entry = journal.note(journal.begin("now", again=False), "computed")
    journal.results(entry).mkdir(parents=True)
    journal.note(entry, "published")
    assert not journal.results(entry).exists()
    with pytest.raises(UsageError, match=r"already \(run 1, until now\)"):
        journal.begin("now", again=False)
    assert journal.begin("now", again=True).run == 2


def test_one_process_has_it_at_a_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "shop")
    with journal.held(), pytest.raises(UnavailableError, match="another batch run of app 'shop' is running"):
        journal.held().__enter__()
    with journal.held():
        pass


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            b'{"format":2,"run":1,"state":"begun","until":"now","savepoint":""}',
            "is of format 2; this version of Headrace reads 1",
        ),
        (b"{}", "is unreadable: "),
    ],
)
def test_a_journal_that_it_does_not_know_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    journal = Journal(tmp_path, "shop")
    journal.begin("now", again=False)
    (tmp_path / "batches" / "shop" / "journal.json").write_bytes(data)
    with pytest.raises(DataError, match=says):
        journal.begin("now", again=False)
