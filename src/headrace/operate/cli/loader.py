"""Load the user's code, and find the app that a command names: ``pipeline.py``, ``pipeline.py:make_app`` (a variable:
an app, or a function that returns one) or ``package.module:make_app``. A file of SQL is an app by itself.

A file becomes the module ``__headrace_app__``, not ``__main__``, so that ``if __name__ == "__main__": app.run()`` at
its end has no effect. The rest of its top level runs.
"""

from __future__ import annotations

import importlib
import inspect
import linecache
import os
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from headrace.api.app import Declarations
from headrace.app import App, sql_app
from headrace.core.deployment import PROGRAM_MODULE as MODULE
from headrace.core.deployment import SETTINGS
from headrace.core.errors import HeadraceError, UsageError, UserFunctionError

_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_CONVERTED = (int, float, bool, str, Path)


def arguments_for(function: Callable[..., Any], named: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Return ``NAME=VALUE`` pairs as arguments of the declared types. ``named`` is how errors name the function."""
    signature = _signature(function)
    shown = f"{named}{_text(signature)}"
    given = _pairs(pairs)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    takes = {p.name: p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [name for name in given if name not in takes and not takes_any]
    if unknown:
        raise UsageError(
            f"{shown} has no argument {unknown[0]!r}",
            hint=f"its arguments: {', '.join(takes)}" if takes else "the function has no arguments: leave out --arg",
        )
    needed = (p for p in signature.parameters.values() if p.default is p.empty)
    missing = [p.name for p in needed if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in given]
    if missing:
        raise UsageError(
            f"{shown} needs {' and '.join(missing)}", hint=" ".join(f"--arg {name}=VALUE" for name in missing)
        )
    return {name: _value(text, name, takes.get(name), shown) for name, text in given.items()}


def _pairs(pairs: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name.isidentifier() or not equals:
            raise UsageError(f"--arg {pair}: expected NAME=VALUE", hint="write --arg topic=orders")
        if name in given:
            raise UsageError(f"--arg {name} is given twice: {given[name]!r} and {value!r}")
        given[name] = value
    return given


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # only type checkers can read such an annotation
        return inspect.signature(function)


def _text(signature: inspect.Signature) -> str:
    return str(signature.replace(return_annotation=inspect.Signature.empty))


def _value(text: str, name: str, parameter: inspect.Parameter | None, shown: str) -> Any:
    declared = str if parameter is None else _type(parameter)
    if declared not in _CONVERTED:
        raise UsageError(
            f"{shown}: argument {name!r} can't be given on the command line",
            hint="write a function that calls this one and has only arguments of type int, float, bool, str and "
            "pathlib.Path",
        )
    try:
        return _TRUTHS[text.lower()] if declared is bool else declared(text)
    except (ValueError, KeyError) as error:
        known = "; write true or false" if declared is bool else ""
        raise UsageError(
            f"--arg {name}={text}: {text!r} isn't of type {declared.__name__}{known}", hint=shown
        ) from error


def _type(parameter: inspect.Parameter) -> Any:
    """The declared type (``int`` for ``int | None``), else the type of the default, else ``str``."""
    declared = parameter.annotation
    if declared is parameter.empty:
        return str if parameter.default in (parameter.empty, None) else type(parameter.default)
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        some = [one for one in typing.get_args(declared) if one is not types.NoneType]
        return some[0] if len(some) == 1 else declared
    return declared


_CHOICES_MAX = 6
LOADING = "__headrace_loading__"  # set in the module while the user's code runs, so that it can't call ``app.run()``


def load_app(
    target: str | Path,
    name: str | None = None,
    arguments: Sequence[str] = (),
    values: Sequence[str] = (),
    home: Path | None = None,
) -> Declarations:
    """Run the code that ``target`` names, and return its app; ``name`` selects one if there are several.

    The code gets ``arguments`` as ``sys.argv[1:]``, and a function that creates the app gets ``values``
    (``NAME=VALUE``). Raises ``UsageError`` if the app names another ``home``.
    """
    if home is not None:
        os.environ[SETTINGS["home"].variable] = str(home)
    app = _loaded(target, name, arguments, values)
    if home is not None and app.settings.home != str(home):
        raise UsageError(
            f"app {app.name!r} names its home itself: {app.settings.home}",
            hint="leave out --home, or home= in the app's code",
        )
    return app


def _loaded(target: str | Path, name: str | None, arguments: Sequence[str], values: Sequence[str]) -> Declarations:
    place, _, variable = str(target).rpartition(":")
    if not place or not variable.isidentifier() or Path(target).exists():
        place, variable = str(target), ""
    if place.lower().endswith(".sql"):
        return _of_sql(Path(place), {f":{variable}": variable, "--app": name, "--arg": values, "arguments": arguments})
    if variable and name is not None:
        raise UsageError(f"{target} and --app both name an app", hint="leave out --app")
    is_module = all(part.isidentifier() for part in place.split(".")) and not place.endswith(".py")
    is_file = Path(place).exists() or not is_module  # the file may be missing
    module = load_module(Path(place), arguments) if is_file else import_module(place, arguments)
    if variable:
        return _of_variable(module, place, variable, values)
    if values:
        raise UsageError(
            "--arg needs a function that creates the app, but the command names none",
            hint=_functions_hint(module, place) or f"name the function: {place}:make_app",
        )
    apps = find_apps(module)
    if not apps:
        raise UsageError(
            f"{place} has no app at its top level",
            hint=_functions_hint(module, place) or 'declare one at the top level: app = hr.App("page-views")',
        )
    if name is not None:
        if name not in apps:
            raise UsageError(f"{place} has no app {name!r}", hint=f"its apps: {', '.join(sorted(apps))}")
        return apps[name]
    if len(apps) > 1:
        raise UsageError(
            f"{place} has {len(apps)} apps: {', '.join(sorted(apps))}", hint=f"choose one: --app {min(apps)}"
        )
    return next(iter(apps.values()))


def _of_sql(path: Path, given: Mapping[str, object]) -> App:
    unfit = [option for option, value in given.items() if value]
    if unfit:
        raise UsageError(f"{path} is one app, and statements of SQL take no arguments", hint=f"leave out {unfit[0]}")
    _read(path)
    return sql_app(path)


def load_runnable_app(
    target: str | Path,
    name: str | None = None,
    arguments: Sequence[str] = (),
    values: Sequence[str] = (),
    home: Path | None = None,
) -> App:
    """Return the app as ``load_app`` does, if it can be run and not only planned."""
    found = load_app(target, name, arguments, values, home)
    if not isinstance(found, App):
        raise UsageError(f"{found!r} only declares an app, so it can't be run", hint="create it with hr.App(...)")
    return found


def find_apps(module: ModuleType) -> dict[str, Declarations]:
    found: dict[str, Declarations] = {}
    for value in vars(module).values():
        if isinstance(value, Declarations) and found.setdefault(value.name, value) is not value:
            raise UsageError(
                f"{module.__file__} has two apps named {value.name!r}",
                hint="state is kept under the app's name: give each app its own name",
            )
    return found


def load_module(path: Path, arguments: Sequence[str] = ()) -> ModuleType:
    """Run a file as the module ``__headrace_app__``. As with a script, its folder comes first on ``sys.path``."""
    source = _read(path)
    file = str(path.resolve())
    module = ModuleType(MODULE)
    module.__file__ = file
    sys.modules[MODULE] = module
    sys.path.insert(0, str(path.resolve().parent))
    sys.argv = [str(path), *arguments]
    try:
        code = compile(source, file, "exec")
    except SyntaxError as error:
        story = "".join(traceback.format_exception_only(error))
        raise UserFunctionError(f"{path} is not valid Python\n{story.rstrip()}") from error
    with _loading(module, str(path), file):
        exec(code, vars(module))  # noqa: S102  # running the user's file is the purpose
    return module


def import_module(name: str, arguments: Sequence[str] = ()) -> ModuleType:
    """Import a module by its name. As with ``python -m``, the current folder comes first on ``sys.path``."""
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = [name, *arguments]
    marked = sys.modules[MODULE] = ModuleType(MODULE)
    try:
        with _loading(marked, name, None):
            return importlib.import_module(name)
    except UserFunctionError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise
        raise UsageError(
            f"there is no file {name} and no module {missing}", hint="give the Python file that declares the app"
        ) from error
    finally:
        del sys.modules[MODULE]


@contextmanager
def _loading(marked: ModuleType, named: str, file: str | None) -> Iterator[None]:
    """Run the user's code, and refuse ``app.run()`` in it. Its exceptions become errors that show the user's frames."""
    setattr(marked, LOADING, True)
    try:
        yield
    except HeadraceError:
        raise
    except SystemExit as error:
        raise UserFunctionError(
            f"{named} called sys.exit({error.code!r}) while it was being loaded",
            hint='move code that runs only in a script below if __name__ == "__main__":',
        ) from error
    except Exception as error:
        raise UserFunctionError(f"{named} can't be loaded\n{_story(error, file)}") from error
    finally:
        del marked.__dict__[LOADING]


def _of_variable(module: ModuleType, place: str, variable: str, values: Sequence[str]) -> Declarations:
    named = f"{place}:{variable}"
    if not hasattr(module, variable):
        raise UsageError(
            f"{place} has no {variable!r} at its top level",
            hint=_choices(module) or "the file declares no app at its top level",
        )
    value = getattr(module, variable)
    if isinstance(value, Declarations):
        if values:
            raise UsageError(f"{named} is an app, not a function, so it takes no --arg", hint="leave out --arg")
        return value
    if not callable(value):
        raise UsageError(
            f"{named} is of type {type(value).__name__}, neither an app nor a function that returns one",
            hint=_choices(module) or None,
        )
    arguments = arguments_for(value, named, values)
    marked = sys.modules.setdefault(MODULE, ModuleType(MODULE))
    with _loading(marked, named, module.__file__):
        made = value(**arguments)
    if not isinstance(made, Declarations):
        raise UsageError(
            f"{named} returned {type(made).__name__}, not an app", hint="end the function with: return app"
        )
    return made


def _choices(module: ModuleType) -> str:
    found = [name for name, value in vars(module).items() if isinstance(value, Declarations)]
    found += [f"{name}{_text(_signature(function))}" for name, function in _functions(module).items()]
    if len(found) > _CHOICES_MAX:
        found[_CHOICES_MAX:] = [f"and {len(found) - _CHOICES_MAX} more"]
    return f"it declares {', '.join(found)}" if found else ""


def _functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def _functions_hint(module: ModuleType, place: str) -> str | None:
    last = next(reversed(_functions(module)), None)
    return None if last is None else f"if a function creates the app, name the function: {place}:{last}"


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="give the file that declares the app, of Python or SQL")
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}") from error
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error


def _story(error: BaseException, file: str | None) -> str:
    """The traceback from the user's first frame on: the first one in ``file``, if it is known."""
    linecache.checkcache()
    trace = error.__traceback__
    while trace is not None and not _is_users(trace.tb_frame.f_code.co_filename, file):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _is_users(filename: str, file: str | None) -> bool:
    if file is not None:
        return filename == file
    return filename not in (__file__, importlib.__file__) and not filename.startswith("<frozen ")
