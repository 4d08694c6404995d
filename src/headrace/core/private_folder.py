"""Headrace's own folders are private to their owner, unless somebody opens them."""

from __future__ import annotations

from pathlib import Path

_ONLY_ME, _BY_UMASK = 0o700, 0o777
_OTHERS = 0o007


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing; does nothing if it is there.

    If any user may look into the folder above, the topmost of the new folders is for its owner alone. Otherwise
    new folders and files have the modes that the umask says. So a new home is private with all that is in it. To
    share it with a group, change its mode, or create it beforehand.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    if not missing:
        return
    protected = missing[-1].parent.stat().st_mode & _OTHERS == 0
    missing[-1].mkdir(mode=_BY_UMASK if protected else _ONLY_ME, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
