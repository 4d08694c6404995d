"""A home is copied, lost, and put back in another place: its app goes on from the copy, exactly."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from killed import PATIENCE_S
from test_power_cuts import Scene

from chaos.deployment import until


def stop(scene: Scene) -> None:
    """As an operator does before a backup."""
    before = scene.copies()
    with scene.program.running() as process:
        scene.feed()
        until(lambda: scene.copies() > before, "it has come far enough", PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert (said, process.returncode) == ("ended\n", 0)


@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_an_app_goes_on_from_a_copy_of_its_home(tmp_path: Path, ended: str) -> None:
    home, backup, elsewhere = (tmp_path / name for name in ("home", "backup", "elsewhere"))
    home.mkdir()
    scene = Scene(home, 1, "commit")
    if ended == "stopped":
        stop(scene)
    else:
        scene.run_to_a_kill()
    shutil.copytree(home, backup)
    copies = scene.copies()
    scene.run_to_a_kill()  # what comes after the backup isn't in it
    assert scene.copies() > copies
    shutil.rmtree(home)

    shutil.copytree(backup, elsewhere)
    scene.move(elsewhere)
    assert scene.copies() == copies
    assert scene.damaged() == []
    scene.end()
    assert scene.wrong() == ""
