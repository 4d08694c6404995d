"""Every operator spec can be run, and has what the planner needs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import headrace.api.operators
import headrace.task.operators
from headrace.api.operators.spec import OperatorSpec
from headrace.task.operators.base import Operator
from headrace.task.operators.registry import registered


def modules(package):
    return [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not found.ispkg
    ]


def specs():
    """All specs except base classes."""
    defined = {
        cls
        for module in modules(headrace.api.operators)
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, OperatorSpec)
    }
    return {cls for cls in defined if not cls.__subclasses__()}


def test_every_spec_has_a_runtime_operator():
    assert registered() == specs()


def test_every_spec_has_a_kind():
    assert all(cls.kind is not OperatorSpec.kind for cls in specs())


def test_no_runtime_operator_is_forgotten():
    """Every name in a module of runtime operators is used by another module."""
    sources = {module: inspect.getsource(module) for module in modules(headrace.task.operators)}
    for module, source in sources.items():
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Operator) and cls is not Operator and cls.__module__ == module.__name__:
                users = [other for other, text in sources.items() if other is not module and name in text]
                assert users or source.count(name) > 1, f"{name} is used nowhere"
