"""Settings of a deployment in those of Spark: what spark-submit was given, and what a running session has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext
from two_stages import spark_home

import headrace as hr
from headrace.core.deployment import find
from headrace.run.spark.session import open_session

PROGRAM = """
import headrace as hr

app = hr.App("copies")
app.input("numbers", {"n": int}).send_to(app.output("copies"))
if __name__ == "__main__":
    print(app.settings.home, app.settings.checkpoint_interval_ms, flush=True)
    app.run(progress=False)
"""


def submit(folder: Path, **conf: str) -> subprocess.CompletedProcess[str]:
    (folder / "pipeline.py").write_text(PROGRAM)
    (folder / "headrace.toml").write_text('containers = 2\nlog_level = "info"\n[app.copies]\nhome = "unused"\n')
    said = [word for name, value in conf.items() for word in ("--conf", f"spark.headrace.{name}={value}")]
    return subprocess.run(
        [str(spark_home() / "bin" / "spark-submit"), "--master", "local[3]", *said, str(folder / "pipeline.py")],
        env={name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_spark_submit_says_settings_and_the_file_beside_the_program_the_others(tmp_path: Path) -> None:
    home = tmp_path / "home"
    hr.streams.create_stream("numbers", 2, {"n": int}, home=home)
    with hr.streams.StreamWriter("numbers", home=home) as writer:
        writer.write([{"n": 1}])
        writer.seal()
    ran = submit(tmp_path, home=str(home), checkpoint_interval="300ms")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"{home} 300\n")
    assert hr.streams.read_stream("copies", home=home)["n"].to_list() == [1]
    registered = {line.partition(" container=")[2][:1] for line in ran.stderr.splitlines() if "has registered" in line}
    assert registered == {"0", "1"}
    assert not (tmp_path / "unused").exists()


def test_a_running_session_says_settings(spark_context: SparkContext) -> None:
    spark = open_session("headrace tests")
    try:
        spark.conf.set("spark.headrace.standby", "2")
        found = find("standby", app="shop")
        assert (found.value, found.place) == (2, "spark.headrace.standby")
        assert hr.App("shop").settings.standby == 2
        spark.conf.set("spark.headrace.standby", "two")
        with pytest.raises(hr.errors.UsageError, match=r"spark\.headrace\.standby is 'two', but it has to be a whole"):
            hr.App("shop")
    finally:
        spark.conf.unset("spark.headrace.standby")


@pytest.mark.soak
def test_spark_submit_with_a_setting_that_there_is_not(tmp_path: Path) -> None:
    """What the program writes is on the standard output of spark-submit."""
    home = tmp_path / "home"
    hr.streams.create_stream("numbers", 2, {"n": int}, home=home)
    ran = submit(tmp_path, home=str(home), continers="2")
    assert ran.returncode != 0
    assert "spark.headrace.continers: there is no such setting\n  hint: did you mean 'containers'?" in ran.stdout
