"""How an app is ended from outside: the driver alone acts on signals, and nothing outlives a driver that is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from watched_container import alive_in_session, is_alive, pid_of, until, until_session_is_over

HERE = Path(__file__).parent
Command = Callable[[Path, str], list[str]]

PROGRAM = str(HERE / "driver_program.py")
FIND_SPARK_HOME = [sys.executable, "-m", "pyspark.find_spark_home"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "containers").mkdir()
    return tmp_path / "containers"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def python(folder: Path, master: str) -> list[str]:
    return [sys.executable, PROGRAM, str(folder), master]


def spark_submit(folder: Path, master: str) -> list[str]:
    return [str(spark_home() / "bin" / "spark-submit"), "--master", master, PROGRAM, str(folder)]


def spark_home() -> Path:
    run = subprocess.run(FIND_SPARK_HOME, capture_output=True, text=True, check=True)
    return Path(run.stdout.strip())


@contextmanager
def running(command: list[str], scratch: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a driver as a terminal's foreground group: its process, and the pids of driver, JVM and containers."""
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
        # What a killed JVM leaves is deleted with the test's folder.
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_SUBMIT_OPTS": f"{os.environ['SPARK_SUBMIT_OPTS']} -Djava.io.tmpdir={scratch}",
    }
    app_id = "none"
    with (scratch / "stderr").open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("running"):
            pytest.fail(f"the driver didn't start: {line}{(scratch / 'stderr').read_text()}")
        app_id, *pids = line.split()[1:]
        yield process, [int(pid) for pid in pids]
    finally:
        for pid in alive_in_session(process.pid):
            with suppress(ProcessLookupError):  # it may have just ended
                os.kill(pid, signal.SIGKILL)
        process.stdout.close()
        process.wait(300)
        shutil.rmtree(spark_home() / "work" / app_id, ignore_errors=True)


def interrupt(driver: int) -> None:
    """As a terminal does at Ctrl-C."""
    os.killpg(driver, signal.SIGINT)


def terminate_group(driver: int) -> None:
    os.killpg(driver, signal.SIGTERM)


def terminate_all(driver: int) -> None:
    """As systemd does."""
    for pid in alive_in_session(driver):
        os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("command", "master", "end"),
    [
        # `test_deployments.py` interrupts one, too.
        pytest.param(python, "local[2]", interrupt, marks=pytest.mark.soak),
        pytest.param(python, "local[2]", terminate_group, marks=pytest.mark.soak),
        pytest.param(python, "local-cluster[2,1,1024]", terminate_all, marks=pytest.mark.soak),
        (spark_submit, "local[2]", terminate_all),
        pytest.param(spark_submit, "local-cluster[2,1,1024]", interrupt, marks=pytest.mark.soak),
    ],
)
def test_the_driver_drains_whatever_else_gets_the_signal(
    folder: Path, scratch: Path, command: Command, master: str, end: Callable[[int], None]
) -> None:
    with running(command(folder, master), scratch) as (process, _):
        end(process.pid)
        assert process.stdout is not None
        assert "drained [0, 0]" in process.stdout.read()
        assert process.wait(300) == 0
        until_session_is_over(process.pid)


def test_spark_submit_passes_a_signal_on_to_the_driver(folder: Path, scratch: Path) -> None:
    """It is the process that others know."""
    with running(spark_submit(folder, "local[2]"), scratch) as (process, _):
        process.terminate()
        assert process.stdout is not None
        assert "drained [0, 0]" in process.stdout.read()
        assert process.wait(300) == 0


def test_a_session_that_never_starts_a_task_again_has_its_containers_started_again(folder: Path, scratch: Path) -> None:
    with running([*python(folder, "local[2]"), "in-session"], scratch) as (process, _):
        for attempt in (0, 1):
            os.kill(pid_of(folder, attempt % 2, attempt), signal.SIGKILL)
            for container in (0, 1):
                pid_of(folder, container, attempt + 1)
        process.terminate()
        assert process.stdout is not None
        assert "drained [2, 2]" in process.stdout.read()
        assert process.wait(300) == 0


# One executor has both containers: while a JVM ends the first of two, its master starts new ones in the place of that.
@pytest.mark.parametrize("master", [pytest.param("local[2]", marks=pytest.mark.soak), "local-cluster[1,2,1024]"])
def test_nothing_outlives_a_killed_driver(folder: Path, scratch: Path, master: str) -> None:
    with running(python(folder, master), scratch) as (process, _):
        process.kill()
        until_session_is_over(process.pid)


def test_containers_die_with_a_killed_jvm_and_the_driver_says_so(folder: Path, scratch: Path) -> None:
    with running(python(folder, "local[2]"), scratch) as (process, (_, jvm, *containers)):
        os.kill(jvm, signal.SIGKILL)
        until(lambda: not any(is_alive(pid) for pid in containers))
        process.terminate()
        assert process.stdout is not None
        said = process.stdout.read()
        assert said.count("Spark's JVM was killed by SIGKILL while the app ran") == 2, said
        assert process.wait(300) == 0
        assert "Traceback" not in (scratch / "stderr").read_text()
