"""``headrace doctor`` on this machine, and where something is wrong with it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import headrace as hr

APP = """
import headrace as hr
app = hr.App("clicks")
app.input("clicks", {{"member": str}}{system}).send_to(app.output("copies"))
"""


@pytest.fixture(autouse=True)
def java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at a Java starts it."""
    monkeypatch.setattr(
        "headrace.run.spark.launch.find_java", lambda _: SimpleNamespace(version=17, source="PATH", path="/java")
    )


def verdicts(outcome) -> dict[str, str]:
    return {one["subject"]: one["verdict"] for one in outcome.json()}


def test_a_good_machine(cli, tmp_path):
    outcome = cli("doctor")
    assert (outcome.code, outcome.err) == (0, "")
    assert "ok       Java: 17, from PATH: /java\n" in outcome.out
    assert [path.name for path in tmp_path.iterdir()] == []  # it leaves nothing behind
    assert verdicts(cli("doctor", "--json")).keys() >= {
        "Python",
        "Spark",
        "disk",
        "syncing",
        "clock",
        "host name",
        "ports",
    }


def test_the_streams_of_an_app(cli, tmp_path, home, clean_modules):
    hr.streams.create_stream("clicks", 3, {"member": str}, home=home)
    Path("pipeline.py").write_text(APP.format(system=""))
    outcome = cli("doctor", "pipeline.py")
    assert "ok       stream clicks: log answers: clicks has 3 partitions\n" in outcome.out
    assert "ok       stream copies: log answers: copies isn't there yet\n" in outcome.out
    assert "ok       metadata: " in outcome.out


def test_what_is_missing_is_a_warning_and_what_cannot_be_read_a_problem(cli, home, clean_modules):
    Path("pipeline.py").write_text(APP.format(system=""))
    missing = cli("doctor", "pipeline.py", "--json")
    assert (missing.code, verdicts(missing)["stream clicks"]) == (0, "warning")
    hr.streams.create_stream("clicks", 3, {"member": str}, home=home)
    (damaged,) = (path for path in home.rglob("*.json") if path.parent.name == "clicks")
    damaged.write_text("{")
    outcome = cli("doctor", "pipeline.py", "--json")
    assert (outcome.code, verdicts(outcome)["stream clicks"]) == (1, "problem")


def test_a_pipeline_that_cannot_be_loaded_is_a_problem(cli):
    outcome = cli("doctor", "nowhere.py", "--json")
    assert (outcome.code, verdicts(outcome)["app"]) == (1, "problem")


def unknown(_: str) -> str:
    raise OSError("no such host")


@pytest.mark.parametrize(
    ("name", "value", "subject", "verdict"),
    [
        ("headrace.operate.doctor.SPACE_LEAST", 1 << 62, "disk", "warning"),
        ("headrace.operate.doctor.SYNC_SLOW_MS", 0.0, "syncing", "warning"),
        ("headrace.operate.doctor.MEMORY_LEAST", 1 << 62, "memory", "warning"),
        ("headrace.operate.doctor.FILES_LEAST", 1 << 40, "open files", "warning"),
        ("headrace.operate.doctor.SKEW_MS_MAX", -1.0, "clock", "problem"),
        ("socket.gethostbyname", unknown, "host name", "problem"),
        ("importlib.metadata.version", lambda _: "3.5.0", "Spark", "problem"),
    ],
)
def test_what_is_wrong_with_a_machine(cli, tmp_path, monkeypatch, name, value, subject, verdict):
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "RELEASE").write_text("Spark 4.3.0 built for Hadoop 3.5.0\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr("resource.getrlimit", lambda _: (4096, 4096))
    monkeypatch.setattr(name, value)
    outcome = cli("doctor", "--json")
    assert verdicts(outcome)[subject] == verdict
    assert outcome.code == (1 if verdict == "problem" else 0)
    remedy = next(one["remedy"] for one in outcome.json() if one["subject"] == subject)
    assert remedy


def test_no_java_is_a_warning_because_local_runs_need_none(cli, monkeypatch):
    monkeypatch.setattr("headrace.run.spark.launch.find_java", doctor_without_java)
    outcome = cli("doctor")
    assert outcome.code == 0
    assert "warning  Java: Spark needs Java 17" in outcome.out


def doctor_without_java(_):
    raise hr.errors.InfrastructureError("Spark needs Java 17 or newer: none", hint="install one")
