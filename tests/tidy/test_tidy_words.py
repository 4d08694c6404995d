"""Words: no banned ones, no path of a machine, and only known addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest
from tidy_repository import texts

HERE = "tests/tidy/test_tidy_words.py"

BANNED = {
    "utilize": "use",
    "leverage": "use",
    "whitelist": "list of what is allowed",
    "blacklist": "list of what is refused",
    "sanity": "say what is checked",
    "obviously": "leave it out",
    "easily": "leave it out",
    "seamless": "say what the reader doesn't have to do",
    "seamlessly": "say what the reader doesn't have to do",
    "robust": "say what it survives",
    "powerful": "say what it can do",
    "blazing": "say how fast, against what",
    "blazingly": "say how fast, against what",
    "lightning-fast": "say how fast, against what",
    "cutting-edge": "leave it out",
    "state-of-the-art": "leave it out",
    "world-class": "leave it out",
    "best-in-class": "leave it out",
    "enterprise-grade": "leave it out",
    "battle-tested": "say what it went through",
    "under the hood": "inside",
    "out of the box": "say what needs no set-up",
    "please note": "leave it out",
    "chatbot": "write only about the project",
    "language model": "write only about the project",
}
"""Words that are not used here, and what to write instead."""

PHRASES = {
    "mend": "fix",
    "mends": "fixes",
    "mended": "fixed",
    "mending": "fixing",
    "for ever": "forever",
    "anew": "again; restart",
    "hear of": "receive, learn",
    "hears of": "receives, learns",
    "heard of": "received, learned",
    "tell of": "report, say",
    "tells of": "reports, says",
    "told of": "given, notified of",
    "become of": "happen to",
    "becomes of": "happens to",
    "became of": "happened to",
    "surroundings": "name them: the machine, the disk, the process",
    "the like": "name it, or leave it out",
    "in silence": "silently",
    "how-manieth": "the number of",
    "those who": "name them: readers, users, tasks",
    "that which": "what",
    "as far as to": "until, up to",
    "as far as through": "through",
    "once more": "again",
    "at hand": "available, current",
    "no word of": "nothing about",
    "besides": "also; other than",
    "in the midst": "in the middle",
    "of no known": "unknown",
    "is no way to": "can't; is not one of the choices",
    "this Headrace": "this version of Headrace",
    "newer Headrace": "newer version of Headrace",
}
"""Phrases that are not idiomatic in technical English, and what to write instead."""

SOURCE_PHRASES = {
    "nobody": "name who: no task, no reader, no process",
    "somebody": "name who: a user, another process",
    "anybody": "name who: any user, any process",
    "for good": "permanently",
    "without a word": "silently",
    "what is there decides": "say what Headrace checks, and what it does",
    "nothing is done twice": "this is safe to repeat",
    "nothing to do:": "wait: ..., or ignore this: ...",
    "has no say": "doesn't affect",
}
"""The same, checked in ``src/headrace/`` alone: texts that users read at run time, and the reference of the API."""

PHRASES_CHECKED = (
    "src/headrace/",
    "simulator/",
    "chaos/",
    "fuzz/",
    "seams/",
    "bench/",
    "docs/",
    "README.md",
    "ARCHITECTURE.md",
    "HACKING.md",
)

PHRASES_ALLOWED: dict[str, str] = {}
"""``"docs/page.md: the phrase"`` where one of the phrases is right after all, and why."""


def any_of(phrases: Iterable[str]) -> re.Pattern[str]:
    """A pattern for whole phrases. A phrase may be wrapped, also in a comment."""
    gap = r"\s+(?:#\s*)?"
    alternatives = "|".join(gap.join(re.escape(word) for word in phrase.split()) for phrase in phrases)
    return re.compile(rf"(?<![\w-])({alternatives})(?![\w-])", re.IGNORECASE)


_WORDS = any_of(BANNED)
_PHRASES = any_of(PHRASES)
_SOURCE_PHRASES = any_of(SOURCE_PHRASES)

_IS_NO = re.compile(
    r"(?<!there )\b(?:is|are) no (?:offset|number|time|text|record|window|input|output|startpoint|key|column|file)s?\b"
)
"""``'abc' is no offset``: write ``'abc' isn't an offset``."""

_MARKS = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
"""Open work goes into an issue, not into a comment."""

_PATH = re.compile(r"(?<![\w.~$}/*:<-])/(?:work|home|root|Users|private|tmp|workspace)/\w")
"""An absolute path of one machine, which means nothing on another."""

_ADDRESS = re.compile(r"\b(?:https?|ftp|ssh|git\+\w+|s3)://([^\s/\"'`)>\]:]*)")

HOSTS = {
    "json-schema.org",
    "keepachangelog.com",
    "semver.org",
    "www.w3.org",
    "www.apache.org",
    "example.com",
    "localhost",
    "127.0.0.1",
    "host",
    "bucket",
    "x",
}
"""Hosts that may be named: those of standards, and examples."""

_DOWNLOADS = re.compile(
    r"--(?:extra-)?index-url|--find-links|--trusted-host|^registry\s*=\s*.?http|<repository>|\bresolved\b.*://",
    re.MULTILINE,
)
"""Where packages are downloaded from is configured on the machine, not in the repository."""


def lines_with(pattern: re.Pattern[str]) -> Iterator[tuple[str, str, re.Match[str]]]:
    for name, text in texts().items():
        if name == HERE:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for match in pattern.finditer(line):
                yield f"{name}:{number}", line.strip(), match


def test_no_banned_word_is_used() -> None:
    found = [f"{where}: {m[1]!r}: {BANNED[m[1].lower()]}" for where, _, m in lines_with(_WORDS)]
    assert found == []


def unidiomatic() -> Iterator[tuple[str, int, str]]:
    """The file, line and phrase of everything that ``PHRASES`` and ``SOURCE_PHRASES`` list."""
    canonical = {phrase.lower(): phrase for phrase in PHRASES | SOURCE_PHRASES}
    for name, text in texts().items():
        patterns = [_PHRASES] if name.startswith(PHRASES_CHECKED) else []
        patterns += [_SOURCE_PHRASES] if name.startswith("src/headrace/") else []
        for match in (match for pattern in patterns for match in pattern.finditer(text)):
            words = match[1].replace("#", " ").lower().split()
            yield name, text.count("\n", 0, match.start()) + 1, canonical[" ".join(words)]


def test_phrases_are_idiomatic() -> None:
    found = [
        f"{name}:{line}: {phrase!r}: write {(PHRASES | SOURCE_PHRASES)[phrase]!r}"
        for name, line, phrase in unidiomatic()
        if f"{name}: {phrase}" not in PHRASES_ALLOWED
    ]
    assert found == []


def test_what_something_is_not_is_said_with_not() -> None:
    found = [f"{where}: {m[0]!r}" for where, _, m in lines_with(_IS_NO) if where.startswith("src/headrace/")]
    assert found == []


def test_exceptions_for_phrases_are_still_needed() -> None:
    found = list(unidiomatic())
    assert PHRASES_ALLOWED.keys() - {f"{name}: {phrase}" for name, _, phrase in found} == set()


def test_nothing_is_left_for_later() -> None:
    assert [f"{where}: {line}" for where, line, _ in lines_with(_MARKS)] == []


def test_no_path_of_a_machine_is_named() -> None:
    assert [f"{where}: {line}" for where, line, _ in lines_with(_PATH)] == []


def test_no_address_but_known_ones_is_named() -> None:
    found = [
        f"{where}: {m[0]}" for where, _, m in lines_with(_ADDRESS) if m[1] not in HOSTS and not m[1].startswith("{")
    ]
    assert [one for one in found if not one.endswith("://")] == []


def test_no_place_to_download_from_is_named() -> None:
    assert [f"{where}: {line}" for where, line, _ in lines_with(_DOWNLOADS)] == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (_WORDS, "we Leverage it"),
        (_PHRASES, "it begins Anew, and"),
        (_PHRASES, "# kept for\n    # ever"),
        (_PHRASES, "what becomes\nof it"),
        (_SOURCE_PHRASES, "it waits for nobody"),
        (_IS_NO, "'abc' is no offset"),
        (_MARKS, "# TODO: later"),
        (_PATH, 'open("/home/me/data")'),
        (_PATH, "see /home/ann/main"),
        (_ADDRESS, "at https://files.somewhere.net/x"),
        (_DOWNLOADS, "pip install --index-url x"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (_MARKS, "todo = []"),
        (_WORDS, "robustness"),
        (_PHRASES, "amended, for every one of them"),
        (_PHRASES, "forever and renewed"),
        (_IS_NO, "if there is no record"),
        (_PATH, 'home="/data/page-views"'),
        (_PATH, "<home>/apps/<app>"),
        (_PATH, "at work/main"),
    ],
)
def test_the_patterns_leave_the_rest_in_peace(pattern: re.Pattern[str], text: str) -> None:
    assert not pattern.search(text)


def test_texts_are_found() -> None:
    assert {"README.md", "pyproject.toml", "Makefile", "src/headrace/app.py", "docs/plan.md", HERE} <= texts().keys()
