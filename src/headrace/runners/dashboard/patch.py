"""The difference of two documents as a merge patch (RFC 7396), and the document that a patch makes. Pure.

Documents are nested dicts with text keys; they hold no None, because in a patch it means that a member is gone. Lists
are replaced as a whole. ``live.js`` applies patches in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Document:
    """The patch that makes ``after`` of ``before``; empty if they are equal."""
    patch: Document = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := difference(old, value):
                patch[name] = inner
        elif value != old:
            patch[name] = value
    return patch


def patched(before: Mapping[str, Any], patch: Mapping[str, Any]) -> Document:
    """The document that ``patch`` makes of ``before``."""
    after = {name: value for name, value in before.items() if name not in patch}
    for name, value in patch.items():
        if isinstance(value, dict):
            old = before.get(name)
            after[name] = patched(old if isinstance(old, dict) else {}, value)
        elif value is not None:
            after[name] = value
    return after
