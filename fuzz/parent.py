"""Runs the processes in which inputs are decoded, and takes down what ends them."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fuzz.child import NOTE_BYTES, Finding, Note, Summary

CHILD_S = 600
"""How long a child may take."""


def in_child(names: Sequence[str], seed: int, count: int) -> Summary:
    """Give each of these decoders so many damaged inputs, in another process. One that ends it is a finding."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note"
        note.write_bytes(bytes(NOTE_BYTES))
        command = [sys.executable, "-m", "fuzz.child", ",".join(names), str(seed), str(count), str(note)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=CHILD_S)
        if done.returncode == 0:
            return msgspec.json.decode(done.stdout, type=Summary)
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit {done.returncode}"
        error = "it took too long" if how == "SIGALRM" else f"the process ended: {how}"
        decoder, data = Note.read(note)
        said = done.stderr.decode("utf-8", "replace")[-2000:]
        return Summary({}, {}, [Finding(decoder, error, said, data)])
