"""``headrace doctor`` on this machine, and where something is wrong with it."""

from __future__ import annotations

import re
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
    return {one["subject"]: one["verdict"] for one in outcome.json()["checks"]}


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
    remedy = next(one["remedy"] for one in outcome.json()["checks"] if one["subject"] == subject)
    assert remedy


def test_no_java_is_a_warning_because_local_runs_need_none(cli, monkeypatch):
    monkeypatch.setattr("headrace.run.spark.launch.find_java", doctor_without_java)
    outcome = cli("doctor")
    assert outcome.code == 0
    assert "warning  Java: Spark needs Java 17" in outcome.out


def doctor_without_java(_):
    raise hr.errors.InfrastructureError("Spark needs Java 17 or newer: none", hint="install one")


def said(outcome) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["value"], one["from"]) for one in outcome.json()["settings"]}


def test_the_settings_in_force_and_where_each_is_said(cli, tmp_path, monkeypatch, home, clean_modules):
    monkeypatch.setenv("HEADRACE_METRICS_TOKEN", "s3cret")
    monkeypatch.setenv("HEADRACE_CONTINERS", "4")
    (tmp_path / "app").mkdir()
    Path("app/headrace.toml").write_text('standby = 1\n[app.clicks]\ncontainers = 3\ncheckpoint_interval = "2s"\n')
    Path("app/pipeline.py").write_text(APP.format(system="").replace('"clicks")', '"clicks", drain_timeout="30s")', 1))
    here = said(cli("doctor", "--json", "--metadata", "postgresql://ann:s3cret@127.0.0.1:1/x"))
    assert here["home"] == (str(home), "HEADRACE_HOME")
    assert here["metadata"] == ("postgresql://ann:***@127.0.0.1:1/x", "--metadata")
    assert here["metrics_token"] == ("***", "HEADRACE_METRICS_TOKEN")
    assert here["containers"] == ("one for each free slot", "default")
    text = cli("doctor").out
    assert "HEADRACE_CONTINERS is set, but no setting has this name\n         did you mean HEADRACE_CONTAINERS?" in text
    assert [line.split() for line in text.splitlines() if line.startswith("standby ")] == [["standby", "0", "default"]]
    outcome = cli("doctor", "app/pipeline.py", "--json", "--home", "mine")
    found = said(outcome)
    assert found["home"] == ("mine", "--home")
    assert found["containers"] == ("3", f"{tmp_path}/app/headrace.toml: app.clicks.containers")
    assert found["standby"] == ("1", f"{tmp_path}/app/headrace.toml: standby")
    assert found["checkpoint_interval"] == ("2s", f"{tmp_path}/app/headrace.toml: app.clicks.checkpoint_interval")
    assert found["drain_timeout"] == ("30s", "the app's code")
    assert found["durability"] == ("commit", "default")
    assert "s3cret" not in outcome.out


def test_a_wrong_file_of_settings_is_one_problem(cli):
    Path("headrace.toml").write_text("containers = 0")
    outcome = cli("doctor", "--json")
    problems = [one for one in outcome.json()["checks"] if one["verdict"] == "problem"]
    assert (outcome.code, outcome.json()["settings"]) == (1, [])
    assert [(one["subject"], one["remedy"]) for one in problems] == [("settings", "such as 2")]
    other = cli("status")
    assert (other.code, other.err) == (
        2,
        "error: headrace.toml: containers is 0, but it has to be a whole number, 1 or more\n  hint: such as 2\n",
    )


@pytest.mark.parametrize("words", [("status", "shop"), ("offsets", "shop"), ("status",)])
def test_commands_look_where_the_file_says(cli, monkeypatch, words):
    monkeypatch.delenv("HEADRACE_HOME")
    Path("headrace.toml").write_text('home = "of-all"\n[app.shop]\nhome = "of-shop"\n')
    said = cli(*words)
    place = "of-all" if words == ("status",) else "of-shop"
    assert re.search(rf"(in|on) {place}\b", said.err)
    assert re.search(r"(in|on) given\b", cli(*words, "--home", "given").err)
