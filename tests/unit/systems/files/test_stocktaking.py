"""What counts as new, grown, changed or the same."""

from __future__ import annotations

import pytest

from headrace.core.errors import DataError
from headrace.systems.files.stock import ChangedFiles, Entry, FileList, Look, Policy, additions
from headrace.systems.files.storage import Found


class Contents(Look):
    """Files as texts: a row may end in any place where there is a semicolon."""

    def __init__(self, texts: dict[str, str], unfinished: bool = False) -> None:
        self.texts = texts
        self.unfinished = unfinished

    def sample(self, path: str, size: int) -> str:
        return f"<{self.texts[path][:size]}>"

    def appendable(self, path: str, end: int) -> bool:
        return path.endswith(".csv") and self.texts[path][:end].endswith(";")

    def end(self, file: Found, start: int) -> int:
        return self.texts[file.path].rfind(";") + 1 if self.unfinished else file.size


def listed(*entries: Entry, partitions: int = 2) -> FileList:
    there = FileList()
    there.start(partitions)
    for entry in entries:
        there.add(entry)
    return there


def of(path: str, text: str, start: int = 0, end: int | None = None, time: int = 1, partition: int = 0) -> Entry:
    end = len(text) if end is None else end
    return Entry(
        path=path, partition=partition, start=start, end=end, size=len(text), modified=time, sample=f"<{text}>"
    )


def test_new_files_are_dealt_in_order_after_those_there_are() -> None:
    texts = {"b.csv": "1;", "c.csv": "2;", "d.csv": "3;"}
    found = [Found(path, len(text), 1) for path, text in texts.items()]
    added = additions(listed(of("a.csv", "0;")), found, Contents(texts), Policy("*.csv"))
    assert [(entry.path, entry.partition) for entry in added] == [("b.csv", 1), ("c.csv", 0), ("d.csv", 1)]


@pytest.mark.parametrize(
    ("what", "before", "now", "time", "stretches"),
    [
        ("the same size and time", of("a.csv", "ab;"), "xx;", 1, []),
        ("copied", of("a.csv", "ab;"), "ab;", 2, []),
        ("grown", of("a.csv", "ab;"), "ab;cd;", 2, [(3, 6)]),
        ("grown again", of("a.csv", "ab;cd;", start=3), "ab;cd;e;", 3, [(6, 8)]),
        ("grown within a row", of("a.csv", "ab"), "abc;", 2, None),
        ("shorter", of("a.csv", "ab;"), "a;", 2, None),
        ("emptied", of("a.csv", "ab;"), "", 2, None),
        ("replaced by a longer one", of("a.csv", "ab;"), "xy;cd;", 2, None),
        ("replaced by one of its size", of("a.csv", "ab;"), "xy;", 2, None),
        ("grown, but of no kind that grows", of("a.parquet", "ab;"), "ab;cd;", 2, None),
    ],
)
def test_a_listed_file(what: str, before: Entry, now: str, time: int, stretches: list[tuple[int, int]] | None) -> None:
    found, look = [Found(before.path, len(now), time)], Contents({before.path: now})

    def added(changed_files: ChangedFiles) -> list[Entry]:
        return additions(listed(before), found, look, Policy("*", "next_run", changed_files))

    if stretches is not None:
        assert [(entry.start, entry.end) for entry in added("refuse")] == stretches, what
        return
    with pytest.raises(DataError, match=rf"{before.path} has changed since the app listed it"):
        added("refuse")
    again = [(entry.start, entry.end, entry.size, entry.partition) for entry in added("read_again")]
    assert again == ([(0, len(now), len(now), 0)] if now else []), what


def test_a_row_that_may_be_unfinished_is_left_for_later() -> None:
    look = Contents({"a.csv": "ab;c"}, unfinished=True)
    there = listed()
    found = Found("a.csv", 4, 1)
    for entry in additions(there, [found], look, Policy("*", "follow")):
        there.add(entry)
    assert [(entry.start, entry.end, entry.size) for entry in there.places[0]] == [(0, 3, 4)]
    assert additions(there, [found], look, Policy("*", "follow")) == []
    look.unfinished = False  # nothing has written it for a while
    (rest,) = additions(there, [found], look, Policy("*", "follow"))
    assert (rest.start, rest.end, rest.partition) == (3, 4, 0)


def test_files_without_content_are_left_out() -> None:
    assert additions(listed(), [Found("a.csv", 0, 1)], Contents({"a.csv": ""}), Policy("*")) == []
