from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.errors import UsageError
from headrace.operate.cli.run import parse_conf

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

PIPELINE = """
import sys
import polars as pl
import headrace as hr

app = hr.App("doubles", home={home!r})
numbers = app.input("numbers", schema={{"n": pl.Int64}})
factor = int(sys.argv[1]) if len(sys.argv) > 1 else 2
numbers.select(pl.col("n") * factor).send_to(app.output("doubles"))
"""

RECORDER = """
import json
import headrace as hr

class Recorder(hr.App):
    def run(self, **options):
        print(json.dumps(options))

    def backfill(self, until, **options):
        print(json.dumps({"until": until, **options}))

app = Recorder("recorded")
"""


@pytest.fixture
def pipeline(tmp_path: Path, home: Path) -> Path:
    file = tmp_path / "pipeline.py"
    file.write_text(PIPELINE.format(home=str(home)))
    return file


@pytest.fixture
def numbers(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "numbers.jsonl").write_text('{"n":1}\n{"n":2}\n{"n":3}\n')
    cli("stream", "write", "numbers", "numbers.jsonl", "--create", "--partitions", 1)


@pytest.mark.usefixtures("clean_modules")
def test_options_reach_the_app(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "recorder.py").write_text(RECORDER)
    nothing = {"master": None, "containers": None, "stages": None, "local": False, "conf": None, "progress": True}
    nothing |= {"drop_state": [], "rename": {}, "savepoint": "", "batch": False, "until": None, "again": False}
    nothing |= {"listen": None, "advertise": None}
    nothing |= {"backfill": False, "tables": {}}
    assert cli("run", "recorder.py").json() == nothing
    words = ("--master", "local[2]", "--containers", 2, "--stage", "a", "--stage", "b", "--conf", "x.y=1=2", "--quiet")
    accepted = ("--drop-state", "w", "--drop-state", "v", "--rename", "old=new")
    addresses = ("--listen", "0.0.0.0:7090", "--advertise", "node")
    assert cli("run", "recorder.py", *words, *accepted, *addresses, "--savepoint", "monday").json() == {
        "master": "local[2]",
        "containers": 2,
        "stages": ["a", "b"],
        "local": False,
        "conf": {"x.y": "1=2"},
        "progress": False,
        "drop_state": ["w", "v"],
        "rename": {"new": "old"},
        "savepoint": "monday",
        "listen": "0.0.0.0:7090",
        "advertise": "node",
        "batch": False,
        "until": None,
        "again": False,
        "backfill": False,
        "tables": {},
    }
    tables = ("--from-tables", "views=db.views", "--from-tables", "orders=parquet:/a=b")
    history = {"backfill": True, "until": "now", "tables": {"views": "db.views", "orders": "parquet:/a=b"}}
    assert cli("run", "recorder.py", "--backfill", "--until", "now", *tables).json() == nothing | history
    assert cli("backfill", "recorder.py", "--until", "now", "--no-publish", "--quiet", *tables).json() == {
        "until": "now",
        "tables": history["tables"],
        "savepoint": "backfill",
        "publish": False,
        "master": None,
        "conf": None,
        "again": False,
        "progress": False,
    }
    batch = {**nothing, "batch": True, "until": "now", "again": True}
    assert cli("run", "recorder.py", "--batch", "--until", "now", "--again").json() == batch
    assert cli("run", "recorder.py", "--local", "--json").out.endswith('{\n  "app": "recorded",\n  "ended": true\n}\n')


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "--from-tables", "views=db.views"), "--from-tables applies only to a backfill"),
        (("run", "--backfill", "--from-tables", "views"), "--from-tables views: expected INPUT=TABLE"),
        (("run", "--backfill", "--from-tables", "v=a", "--from-tables", "v=b"), "gives 'v' two tables: 'a' and 'b'"),
        (("backfill",), "Missing option '--until'"),
    ],
)
def test_wrong_options_of_a_backfill_are_refused(cli: Cli, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "recorder.py").write_text(RECORDER)
    verb, *rest = words
    refused = cli(verb, "recorder.py", *rest)
    assert refused.code == 2
    assert said in refused.err


@pytest.mark.parametrize("other", [("--master", "local[2]"), ("--containers", "2"), ("--conf", "a=b")])
@pytest.mark.usefixtures("clean_modules")
def test_local_takes_no_options_of_spark(cli: Cli, pipeline: Path, other: tuple[str, ...]) -> None:
    refused = cli("run", pipeline, "--local", *other)
    assert refused.code == 2
    assert "--local runs without Spark" in refused.err


@pytest.mark.parametrize("other", [("--local",), ("--containers", "2"), ("--stage", "a"), ("--savepoint", "monday")])
@pytest.mark.usefixtures("clean_modules")
def test_a_batch_job_takes_no_options_of_containers(cli: Cli, pipeline: Path, other: tuple[str, ...]) -> None:
    refused = cli("run", pipeline, "--batch", *other)
    assert refused.code == 2
    assert "--batch runs one Spark job without containers" in refused.err


@pytest.mark.parametrize("other", [("--until", "now"), ("--again",)])
@pytest.mark.usefixtures("clean_modules")
def test_options_of_batch_jobs_need_one(cli: Cli, pipeline: Path, other: tuple[str, ...]) -> None:
    refused = cli("run", pipeline, *other)
    assert refused.code == 2
    assert "--until and --again apply only to batch jobs" in refused.err


@pytest.mark.parametrize(
    ("options", "given", "found"),
    [
        ((), "-Dx=y", "-XX:TieredStopAtLevel=1 -Dx=y"),
        ((), "-Dx=y -XX:TieredStopAtLevel=1", "-Dx=y -XX:TieredStopAtLevel=1"),
        (("--batch",), "-Dx=y", "-Dx=y"),
        (("--backfill", "--until", "now"), "-Dx=y", "-Dx=y"),
    ],
)
@pytest.mark.usefixtures("clean_modules")
def test_only_a_jvm_that_hosts_containers_compiles_quickly(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], given: str, found: str
) -> None:
    (tmp_path / "recorder.py").write_text(RECORDER)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", given)
    assert cli("run", "recorder.py", *options).code == 0
    assert os.environ["SPARK_SUBMIT_OPTS"] == found


@pytest.mark.parametrize("pairs", [["a"], ["=b"], [" =b"], ["a=1", "a=2"]])
def test_conf_refuses_what_is_no_setting(pairs: list[str]) -> None:
    with pytest.raises(UsageError, match="--conf"):
        parse_conf(pairs)


def test_conf_keeps_everything_after_the_first_equals_sign() -> None:
    assert parse_conf(["a=b=c", "d="]) == {"a": "b=c", "d": ""}


@pytest.mark.usefixtures("numbers")
def test_a_bounded_app_runs_to_its_end(cli: Cli, spawn: Spawn, pipeline: Path) -> None:
    cli("stream", "seal", "numbers")
    run = spawn("run", pipeline, "--local", "--quiet", "--", "10")
    out, err = run.communicate(timeout=120)
    assert (run.returncode, out, err) == (0, b"", b"")
    assert [line["n"] for line in cli("stream", "read", "doubles").lines()] == [10, 20, 30]


@pytest.mark.usefixtures("numbers")
def test_an_app_that_a_function_makes_runs_with_its_arguments(
    cli: Cli, spawn: Spawn, tmp_path: Path, home: Path
) -> None:
    (tmp_path / "made.py").write_text(
        "import polars as pl\nimport headrace as hr\n\n"
        "def make(factor: int):\n"
        f"    app = hr.App('made', home={str(home)!r})\n"
        "    numbers = app.input('numbers', schema={'n': pl.Int64})\n"
        "    numbers.map(lambda row: {'n': row['n'] * factor}, schema={'n': pl.Int64}).send_to(app.output('doubles'))\n"
        "    return app\n"
    )
    cli("stream", "seal", "numbers")
    run = spawn("run", tmp_path / "made.py:make", "--arg", "factor=10", "--local", "--quiet")
    assert (run.communicate(timeout=120), run.returncode) == ((b"", b""), 0)
    assert [line["n"] for line in cli("stream", "read", "doubles").lines()] == [10, 20, 30]


@pytest.mark.usefixtures("numbers")
def test_ctrl_c_drains_and_ends_well(cli: Cli, spawn: Spawn, pipeline: Path) -> None:
    cli("stream", "create", "doubles", "--partitions", 1, "--schema", "n:i64")
    follower = spawn("stream", "read", "doubles", "--follow")
    run = spawn("run", pipeline, "--local")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b'{"n":2}\n'
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 0, err.decode()
    assert b"Traceback" not in err


@pytest.mark.usefixtures("numbers")
def test_a_failing_function_ends_it_with_1(cli: Cli, spawn: Spawn, tmp_path: Path, home: Path) -> None:
    cli("stream", "seal", "numbers")
    file = tmp_path / "failing.py"
    text = PIPELINE.format(home=str(home))
    file.write_text(text.replace('select(pl.col("n") * factor)', "filter(lambda row: 1 / 0)"))
    run = spawn("run", file, "--local", "--quiet")
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert err.startswith(b"error: ")
    assert b"division by zero" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"master": 5}, "master=5 is not a Spark master"),
        ({"containers": "2"}, "containers='2' is not a number"),
        ({"stages": "dealt"}, "stages='dealt' is not a list"),
        ({"conf": "a=b"}, "conf='a=b' has no keys"),
    ],
)
def test_options_of_wrong_types_are_refused_before_spark_sees_them(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        hr.App("doubles").run(progress=False, **options)


@pytest.mark.usefixtures("clean_modules")
def test_an_input_that_is_not_there_says_how_to_create_it_where_the_app_looks(
    cli: Cli, pipeline: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("plan", pipeline).err.endswith(
        "hint: create it: headrace stream create numbers --partitions N, or let the start do it: create=N\n"
    )
    monkeypatch.delenv("HEADRACE_HOME")
    said = cli("plan", pipeline).err
    assert said.endswith(
        f"headrace stream create numbers --partitions N --home {home}, or let the start do it: create=N\n"
    )


def test_a_home_that_is_a_file_is_refused(cli: Cli, pipeline: Path) -> None:
    refused = cli("stream", "list", "--home", pipeline)
    assert refused.code == 2
    assert "is a file" in refused.err


@pytest.mark.usefixtures("numbers")
@pytest.mark.parametrize(
    "step",
    [
        "filter(lambda row: sys.exit(0))",
        'window(hr.windows.count(2), key=None, id="w").agg(n=hr.aggregates.reduce(lambda a, b: sys.exit(0), "n"))',
    ],
)
def test_a_function_that_calls_sys_exit_fails_as_any_other(spawn: Spawn, tmp_path: Path, home: Path, step: str) -> None:
    file = tmp_path / "exiting.py"
    file.write_text(PIPELINE.format(home=str(home)).replace('select(pl.col("n") * factor)', step))
    _, err = (run := spawn("run", file, "--local", "--quiet")).communicate(timeout=120)
    assert run.returncode == 1, err.decode()
    assert b"SystemExit" in err


def test_a_home_is_named_where_an_app_is_run(cli, tmp_path, monkeypatch, clean_modules):
    monkeypatch.delenv("HEADRACE_HOME")
    Path("here.py").write_text(
        'import headrace as hr\napp = hr.App("here")\napp.input("n", {"n": int}, create=1).send_to(app.output("out"))\n'
    )
    assert cli("plan", "here.py", "--home", "elsewhere").code == 0
    assert cli("backfill", "here.py", "--until", "now", "--home", "elsewhere", "--help").code == 0
    Path("there.py").write_text(Path("here.py").read_text().replace('"here")', '"here", home="there")'))
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    outcome = cli("run", "there.py", "--local", "--home", "elsewhere")
    assert (outcome.code, "names its home itself: there" in outcome.err) == (2, True)
    assert not Path("there").exists()
