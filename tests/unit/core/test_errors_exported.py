"""Every error that Headrace raises on purpose has a public name."""

from __future__ import annotations

import importlib
import pkgutil

import headrace
from headrace import errors
from headrace.core.errors import HeadraceError


def test_every_error_is_exported() -> None:
    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    known, waiting = set[type[HeadraceError]](), [HeadraceError]
    while waiting:
        waiting += waiting[0].__subclasses__()
        known.add(waiting.pop(0))
    ours = {error.__name__ for error in known if error.__module__.startswith("headrace.")}
    assert ours == set(errors.__all__)
