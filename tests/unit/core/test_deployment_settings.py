"""What a deployment sets: the table, the places that say it, which of them counts, and what is wrong in them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import headrace as hr
from headrace.api.specs import Settings
from headrace.coordinator.publication import metrics_token
from headrace.core import log
from headrace.core.clock import to_ms
from headrace.core.deployment import SETTINGS, find, setting, settings_file
from headrace.errors import UsageError
from headrace.life.metadata import existing_metadata
from headrace.run.run import RunOptions

Spark = Callable[..., None]


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for one in SETTINGS.values():
        monkeypatch.delenv(one.variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "__headrace_app__", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace())  # whatever other tests have started


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    """Spark as its settings are seen from here. ``tests/spark`` has the real one."""

    def says(**said: str) -> None:
        monkeypatch.setitem(
            sys.modules, "pyspark", SimpleNamespace(SparkContext=SimpleNamespace(_active_spark_context=object()))
        )
        session = SimpleNamespace(said_to_spark=lambda key: said.get(key.removeprefix("spark.headrace.")))
        monkeypatch.setitem(sys.modules, "headrace.run.spark.session", session)

    return says


def options(**given: object) -> RunOptions:
    known = {"local": False, "master": None, "containers": None, "conf": None, "stages": None, "drop_state": ()}
    return RunOptions.of(**(known | {"rename": None, "listen": None, "advertise": None, "app": "shop"} | given))  # type: ignore[arg-type]


def test_the_first_place_that_says_it_counts(monkeypatch: pytest.MonkeyPatch, spark: Spark) -> None:
    assert (find("containers").value, find("containers").place) == (None, "")
    Path("pyproject.toml").write_text("[tool.headrace]\ncontainers = 1\n")
    assert (find("containers").value, find("containers").place) == (1, "pyproject.toml: tool.headrace.containers")
    Path("headrace.toml").write_text("containers = 2\n[app.shop]\ncontainers = 3\n")
    assert (find("containers").value, find("containers").place) == (2, "headrace.toml: containers")
    assert find("containers", app="other").value == 2
    found = find("containers", app="shop")
    assert (found.value, found.place) == (3, "headrace.toml: app.shop.containers")
    spark(containers="4")
    assert (find("containers", app="shop").value, find("containers").place) == (4, "spark.headrace.containers")
    monkeypatch.setenv("HEADRACE_CONTAINERS", " 5 ")
    assert (find("containers", app="shop").value, find("containers").place) == (5, "HEADRACE_CONTAINERS")
    assert find("containers", 6, "shop").value == 6
    assert (options().containers, options(containers=6).containers) == (5, 6)
    assert options(local=True).containers is None  # one process


def test_each_setting_reaches_what_it_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("headrace.toml").write_text(
        'home = "data"\nmetadata = "postgresql://ann:s3cret@db/x"\nsnapshots = "s3://bucket/a"\nmaster = "local[3]"\n'
        'containers = 3\nlisten = "10.0.0.7:7090"\nadvertise = "node-7:7091"\nmetrics_token = "s3cret"\n'
        'checkpoint_interval = "2s"\ndurability = "process"\ndrain_timeout = "3m"\nstandby = 2\npeek = true\n'
    )
    settings = hr.App("shop").settings
    assert (settings.home, str(settings.metadata), str(settings.snapshots)) == (
        "data", "postgresql://ann:***@db/x", "s3://bucket/a",
    )  # fmt: skip
    assert (settings.checkpoint_interval_ms, settings.durability) == (2000, "process")
    assert (settings.drain_timeout_ms, settings.standby, settings.peek) == (180_000, 2, True)
    asked = options()
    assert (asked.master, asked.containers) == ("local[3]", 3)
    assert (asked.wanted.listen, asked.wanted.advertise) == (("10.0.0.7", 7090), ("node-7", 7091))
    with existing_metadata(Path("nowhere"), None) as metadata:
        assert metrics_token(metadata, "shop") == "s3cret"
    assert "s3cret" not in f"{settings!r} {settings} {[find(name).shown for name in SETTINGS]}"


def test_spark_that_runs_has_its_master(monkeypatch: pytest.MonkeyPatch, spark: Spark) -> None:
    Path("headrace.toml").write_text('master = "local[3]"')
    assert setting("master") == "local[3]"
    spark(**{"spark.master": "yarn"})
    assert setting("master") is None
    monkeypatch.setenv("HEADRACE_MASTER", "local[4]")
    assert setting("master") == "local[4]"


def test_what_the_program_says_comes_before_the_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CHECKPOINT_INTERVAL", "2s")
    monkeypatch.setenv("HEADRACE_STANDBY", "2")
    monkeypatch.setenv("HEADRACE_PEEK", "yes")
    own = hr.App("shop", checkpoint_interval="5s", standby=0, peek=False).settings
    assert (own.checkpoint_interval_ms, own.standby, own.peek) == (5000, 0, False)
    assert hr.App("shop").settings.checkpoint_interval_ms == 2000


def test_the_defaults_are_those_of_apps() -> None:
    plain, unsaid = Settings(), hr.App("shop").settings
    assert unsaid == plain
    assert to_ms(setting("checkpoint_interval")) == plain.checkpoint_interval_ms
    assert to_ms(setting("drain_timeout")) == plain.drain_timeout_ms
    assert SETTINGS["log_level"].choices == log.LEVELS
    assert SETTINGS["log_format"].choices == log.FORMATS


def test_the_file_beside_the_program_comes_before_that_in_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("headrace.toml").write_text('home = "here"')
    assert find("home").value == "here"
    (tmp_path / "there").mkdir()
    program = ModuleType("__main__")
    program.__file__ = str(tmp_path / "there" / "pipeline.py")
    monkeypatch.setitem(sys.modules, "__main__", program)
    assert find("home").value == "here"
    (tmp_path / "there" / "pyproject.toml").write_text("[project]\nname = 'shop'\n")
    assert find("home").value == "here"  # a file without settings isn't one of settings
    (tmp_path / "there" / "headrace.toml").write_text("containers = 2\n")
    assert (find("home").value, find("containers").value) == (".headrace", 2)  # one file is read, not both
    (tmp_path / "there" / "headrace.toml").write_text('home = "data"\n')
    assert find("home").value == str(tmp_path / "there" / "data")


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("continers = 4", "headrace.toml: continers: there is no such setting", "did you mean 'containers'?"),
        ("log-level = 'info'", "log-level: there is no such setting", "did you mean 'log_level'?"),
        ("xyz = 4", "xyz: there is no such setting", "the settings are home, metadata"),
        ("containers = 'four'", "headrace.toml: containers is 'four', but it has to be a whole number, 1 or more", "2"),
        ("containers = 0", "containers is 0, but", "such as 2"),
        ("containers = true", "containers is True, but", "such as 2"),
        ("home = 4", "home is 4, but it has to be the path of a folder", "in quotes"),
        ("peek = 'yes'", "peek is 'yes', but it has to be true or false", "such as true"),
        ("drain_timeout = 60", "drain_timeout is 60, but it has to be a number and a unit", 'such as "10s"'),
        ("durability = 'disk'", "durability is 'disk', but it has to be one of commit, process", "such as commit"),
        ("metrics_token = 12345", "metrics_token is a value that isn't shown, but it has to be text", "in quotes"),
        ("[app.shop]\nstandy = 1", "headrace.toml: app.shop.standy: there is no such setting", "'standby'"),
        ("[app.shop]\nlog_level = 'info'", "app.shop.log_level can't be set for one app", "put it above"),
        ("[app]\nstandby = 1", "headrace.toml: app.standby isn't a table", "below [app.NAME]"),
        ("containers 4", "headrace.toml isn't TOML: Expected '=' after a key", "containers = 4"),
        ("home = '\udcff'", "headrace.toml isn't TOML", ""),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_key(text: str, said: str, hint: str) -> None:
    Path("headrace.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as caught:
        find("standby")  # whichever setting is asked for
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")
    assert "12345" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error() -> None:
    Path("headrace.toml").mkdir()
    with pytest.raises(UsageError, match=r"headrace\.toml can't be read: Is a directory"):
        hr.App("shop")


def test_a_changed_file_is_read_again() -> None:
    Path("headrace.toml").write_text("containers = 2")
    assert setting("containers") == 2
    Path("headrace.toml").write_text("containers = 12")
    assert setting("containers") == 12


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("CONTAINERS", "four", "HEADRACE_CONTAINERS is 'four', but it has to be a whole number, 1 or more"),
        ("PEEK", "maybe", "HEADRACE_PEEK is 'maybe', but it has to be true or false"),
        ("CHECKPOINT_INTERVAL", "5", "HEADRACE_CHECKPOINT_INTERVAL is '5', but it has to be a number and a unit"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str) -> None:
    monkeypatch.setenv(f"HEADRACE_{name}", text)
    with pytest.raises(UsageError, match=said):
        setting(name.lower())


def test_a_wrong_database_in_a_file_is_named_and_not_shown() -> None:
    Path("headrace.toml").write_text('metadata = "s3cret"')
    with pytest.raises(UsageError, match=r"headrace\.toml: metadata isn't the URL of a PostgreSQL database") as caught:
        hr.App("shop")
    assert "s3cret" not in str(caught.value)


def test_a_program_logs_as_the_deployment_says(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("logging.root.handlers", [])
    with log.logging_as_said():
        log.logger("headrace.shop").error("unsaid")
    Path("headrace.toml").write_text('log_level = "info"\nlog_format = "json"')
    with log.logging_as_said():
        log.logger("headrace.shop").info("said")
    with log.logging_to(log.OFF), log.logging_as_said():
        log.logger("headrace.shop").error("a command said off")
    (line,) = capsys.readouterr().err.splitlines()
    assert '"message": "said"' in line


def test_the_file_is_the_one_of_the_program_named_by_a_command(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "headrace.toml").write_text('log_level = "debug"')
    assert settings_file() is None
    assert find("log_level", program=Path("app/pipeline.py")).value == "debug"


def test_settings_of_spark_that_are_given_when_they_have_been_read_are_refused() -> None:
    with pytest.raises(UsageError, match=r"conf= can't say spark\.headrace\.containers"):
        options(conf={"spark.headrace.containers": "4"})
