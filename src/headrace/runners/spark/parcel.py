"""What the driver sends to its workers, as bytes inside Spark's own closure: a pickle, after the user's folders.

Whoever reads the pickle needs the modules in these folders.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def user_folders() -> tuple[str, ...]:
    """Return the folder of the user's script, where its own modules are."""
    return tuple(str(Path(folder).resolve()) for folder in sys.path[:1] if folder)


def packed(folders: Sequence[str], pickled: bytes) -> bytes:
    """Return folders and pickle as one."""
    names = "\n".join(folders).encode()
    return len(names).to_bytes(4, "big") + names + pickled


def unpacked(data: bytes) -> Any:
    """Return what was pickled, after adding the folders to where Python looks for modules."""
    size = int.from_bytes(data[:4], "big")
    for folder in data[4 : 4 + size].decode().split("\n"):
        if folder and folder not in sys.path:
            sys.path.append(folder)
    return pickle.loads(data[4 + size :])  # noqa: S301 - our own driver's, in Spark's closure
