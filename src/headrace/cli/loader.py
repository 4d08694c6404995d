"""Load the user's file as a module, and find the app in it.

The module is named ``__headrace_app__``, not ``__main__``, so that ``if __name__ == "__main__": app.run()`` at the end
of the file has no effect. The rest of its top level runs.
"""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from headrace.api.app import Declarations
from headrace.core.errors import HeadraceError, UsageError, UserFunctionError

MODULE = "__headrace_app__"
LOADING = "__headrace_loading__"
"""Set in the module while its top level runs, so that an ``app.run()`` there can be refused."""


def load_app(path: Path, name: str | None = None, arguments: Sequence[str] = ()) -> Declarations:
    """Run the file and return its app; ``name`` selects one if there are several.

    The file gets ``arguments`` as ``sys.argv[1:]``. The module stays loaded, since the app refers to functions in it.
    """
    module = load_module(path, arguments)
    apps = find_apps(module)
    if not apps:
        raise UsageError(
            f"{path} has no app at its top level",
            hint='declare one there: app = hr.App("page-views")',
        )
    if name is not None:
        return _named(apps, name, path)
    if len(apps) > 1:
        raise UsageError(
            f"{path} has {len(apps)} apps: {', '.join(sorted(apps))}", hint=f"select one: --app {min(apps)}"
        )
    return next(iter(apps.values()))


def find_apps(module: ModuleType) -> dict[str, Declarations]:
    """Return the apps in module-level variables, by name."""
    found: dict[str, Declarations] = {}
    for value in vars(module).values():
        if isinstance(value, Declarations):
            other = found.setdefault(value.name, value)
            if other is not value:
                raise UsageError(
                    f"{module.__file__} has two apps named {value.name!r}",
                    hint="state is kept under the app's name: give each app its own",
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
    setattr(module, LOADING, True)
    try:
        exec(code, vars(module))  # noqa: S102  # running the user's file is the purpose
    except HeadraceError:
        raise
    except SystemExit as error:
        raise UserFunctionError(
            f"{path} called sys.exit({error.code!r}) while it was being loaded",
            hint='put code for running the file as a script under if __name__ == "__main__":',
        ) from error
    except Exception as error:
        raise UserFunctionError(f"{path} can't be loaded\n{_story(error, file)}") from error
    finally:
        del module.__dict__[LOADING]
    return module


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="give the Python file that declares the app")
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}") from error
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error


def _story(error: BaseException, file: str) -> str:
    """Return the traceback from the first frame of the user's file on. The frames before it are ours."""
    linecache.checkcache(file)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _named(apps: dict[str, Declarations], name: str, path: Path) -> Declarations:
    if name not in apps:
        raise UsageError(f"{path} has no app {name!r}", hint=f"its apps: {', '.join(sorted(apps))}")
    return apps[name]
