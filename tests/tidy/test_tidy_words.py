"""Words: no banned ones, no path of a machine, and only known addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

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

_WORDS = re.compile(r"(?<![\w-])(" + "|".join(re.escape(word) for word in BANNED) + r")(?![\w-])", re.IGNORECASE)

_MARKS = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
"""Open work goes into an issue, not into a comment."""

_PATH = re.compile(r"(?<![\w.~$}/*:<-])/(?:work|home|root|Users|private|tmp|workspace)/\w")
"""An absolute path of one machine, which means nothing on another."""

_ADDRESS = re.compile(r"\b(?:https?|ftp|ssh|git\+\w+|s3)://([^\s/\"'`)>\]:]*)")

HOSTS = {
    "keepachangelog.com",
    "semver.org",
    "www.w3.org",
    "www.apache.org",
    "example.com",
    "localhost",
    "127.0.0.1",
    "host",
    "x",
}
"""Hosts that may be named: those of standards, and examples."""

_DOWNLOADS = re.compile(
    r"--(?:extra-)?index-url|--find-links|--trusted-host|^registry\s*=|<repository>|\bresolved\b.*://", re.MULTILINE
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
        (_PATH, 'home="/data/page-views"'),
        (_PATH, "<home>/apps/<app>"),
        (_PATH, "at work/main"),
    ],
)
def test_the_patterns_leave_the_rest_in_peace(pattern: re.Pattern[str], text: str) -> None:
    assert not pattern.search(text)


def test_texts_are_found() -> None:
    assert {"README.md", "pyproject.toml", "Makefile", "src/headrace/app.py", "docs/plan.md", HERE} <= texts().keys()
