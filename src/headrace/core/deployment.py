"""What a deployment sets and a program needn't: one table of settings, and the places that say them.

The first of these places counts: an argument or an option; the variable ``HEADRACE_<NAME>``; ``spark.headrace.<name>``
of the Spark that runs here, or of ``spark-submit``; a file, whose table ``[app.<name>]`` comes before the rest of it.
The file is ``headrace.toml``, or ``[tool.headrace]`` in ``pyproject.toml``: beside the program, else in the current
folder. One file is read, and whatever is wrong in it is an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from headrace.core.clock import to_ms
from headrace.core.errors import UsageError
from headrace.core.plug_ins import all_points, loaded, own_points, plug_in
from headrace.core.secrets import SecretUrl, hide_passwords

Kind = Literal["text", "folder", "number", "duration", "choice", "yes or no"]

FILE, TOOL_FILE = "headrace.toml", "pyproject.toml"
TRACEBACK_VARIABLE = "HEADRACE_TRACEBACK"
"""It shows tracebacks of errors, and isn't a setting."""
PROGRAM_MODULE = "__headrace_app__"
"""The name under which commands load a user's file as a module."""
STARTED_BY_SPARK = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which spark-submit tells Python about its JVM."""


@dataclass(frozen=True, slots=True)
class DeploymentSetting:
    """A line of the table. ``otherwise`` says what counts if no place says it and there is no ``default``."""

    name: str
    kind: Kind
    about: str
    default: str | int | bool | None = None
    otherwise: str = ""
    option: str = ""
    choices: tuple[str, ...] = ()
    least: int = 0
    secret: bool = False
    each_app: bool = True

    @property
    def variable(self) -> str:
        return f"HEADRACE_{self.name.upper()}"

    @property
    def in_spark(self) -> str:
        return "spark.master" if self.name == "master" else f"spark.headrace.{self.name}"

    @property
    def help(self) -> str:
        return f"{self.about}  [env var: {self.variable}]"


DEFAULT_HOME = ".headrace"
_LEVELS = ("debug", "info", "warning", "error", "off")

SETTINGS: Mapping[str, DeploymentSetting] = {
    one.name: one
    for one in (
        DeploymentSetting(
            "home", "folder", "Where Headrace keeps its data; the embedded log is in FOLDER/streams.", DEFAULT_HOME,
            option="--home",
        ),
        DeploymentSetting(
            "metadata", "text", "The URL of the database that keeps the metadata. Say a password in the environment.",
            otherwise="a file in the home", option="--metadata", secret=True,
        ),
        DeploymentSetting(
            "snapshots", "text", "The URL of the object store for snapshots of state.", otherwise="folders in the home",
        ),
        DeploymentSetting(
            "master", "text",
            "The Spark master to run on: local[2], local-cluster[2,1,1024], spark://host:7077, yarn, k8s://...",
            otherwise="that of Spark, or local[*]", option="--master",
        ),
        DeploymentSetting(
            "containers", "number", "How many containers share the work, no more than the app has tasks.",
            otherwise="one for each free slot", option="--containers", least=1,
        ),
        DeploymentSetting(
            "listen", "text", "The address, HOST[:PORT], on which the driver listens: its live page, metrics, "
            "containers and commands.", otherwise="this machine only, or where Spark's driver listens",
            option="--listen",
        ),
        DeploymentSetting(
            "advertise", "text", "The address at which others reach the driver, if it differs: in a pod, or behind "
            "NAT.", otherwise="as listen", option="--advertise",
        ),
        DeploymentSetting(
            "metrics_token", "text", "The token that reads an app's metrics, and nothing else.",
            otherwise="one that Headrace makes, the same in all runs", secret=True,
        ),
        DeploymentSetting(
            "otel_endpoint", "text", "The address of OpenTelemetry's collector, such as http://host:4318. "
            "OTEL_EXPORTER_OTLP_ENDPOINT comes before it.", otherwise="nothing is sent",
        ),
        DeploymentSetting(
            "log_level", "choice", "The lowest level of log lines, in the driver and in containers.", "warning",
            option="--log-level", choices=_LEVELS, each_app=False,
        ),
        DeploymentSetting(
            "log_format", "choice", "Whether log lines are text or JSON.", "text", option="--log-format",
            choices=("text", "json"), each_app=False,
        ),
        DeploymentSetting("checkpoint_interval", "duration", "The time between two checkpoints.", "1s", least=1),
        DeploymentSetting(
            "durability", "choice", "What committed results survive: a power cut, or only killed processes.", "commit",
            choices=("commit", "process"),
        ),
        DeploymentSetting("drain_timeout", "duration", "How long a drain may take.", "1m", least=1),
        DeploymentSetting("standby", "number", "How many copies of each task's state other hosts keep, 0 to 3.", 0),
        DeploymentSetting("peek", "yes or no", "Whether whoever can open the live page may see messages.", False),
    )
}  # fmt: skip
"""The table, by name. What a program's results depend on isn't here."""


@dataclass(frozen=True, slots=True)
class Found:
    """The value of a setting, and the place that says it; ``place`` is empty if it is the default."""

    setting: DeploymentSetting
    value: Any
    place: str = ""

    @property
    def shown(self) -> str:
        """The value as people may see it: no secret."""
        if self.value is None:
            return self.setting.otherwise
        if self.setting.kind == "yes or no":
            return "yes" if self.value else "no"
        if self.setting.secret:
            return str(SecretUrl(self.value)) if "://" in self.value else "***"
        return hide_passwords(str(self.value))


def setting(name: str, given: Any = None, app: str = "") -> Any:
    """The value of a setting for an app: what is ``given``, else what the first place says.

    >>> from headrace.core.deployment import setting
    >>> setting("containers", 4)
    4
    """
    return find(name, given, app).value


def find(name: str, given: Any = None, app: str = "", program: Path | None = None) -> Found:
    """The value of a setting and where it is said. ``program`` is the file of an app that isn't loaded yet."""
    known = SETTINGS[name]
    if given is not None:
        return Found(known, given, "given")
    if text := os.environ.get(known.variable):
        return Found(known, _of_text(known, text, known.variable), known.variable)
    if text := _in_spark(known.in_spark):
        if name == "master":
            return Found(known, None, known.in_spark)  # which Spark knows itself
        return Found(known, _of_text(known, text, known.in_spark), known.in_spark)
    if (file := settings_file(program)) is not None:
        for table in (app, "") if app else ("",):
            if (table, name) in file.values:
                return Found(known, file.values[table, name], file.place(table, name))
    return Found(known, known.default)


def _in_spark(key: str) -> str | None:
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    if getattr(context, "_active_spark_context", None) is None and STARTED_BY_SPARK not in os.environ:
        return None
    said: str | None = loaded("headrace.run.spark.session:said_to_spark")(key)
    return said


# -- the home and the metadata store ------------------------------------------------------------------
METADATA_GROUP = "headrace.metadata"
"""The group of entry points of metadata stores that plug-ins bring. Each is named by the scheme of its URLs."""


def home_of(given: str | os.PathLike[str] | None = None, app: str = "") -> Path:
    """Return the home folder: ``given``, else what the deployment says, else ``.headrace`` in the current folder.

    >>> from headrace.core.deployment import home_of
    >>> home_of("/data/shop").as_posix()
    '/data/shop'
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        raise UsageError(f"home={given!r} is not a folder", hint='give a path: home="/data/shop"')
    return Path(setting("home", given or None, app))


def metadata_url_of(given: str | None = None, app: str = "") -> SecretUrl | None:
    """Return the URL of the metadata store: ``given``, else the deployment's. None: an SQLite file in the home.

    >>> from headrace.core.deployment import metadata_url_of
    >>> metadata_url_of("postgresql://ann:secret@db/headrace")
    SecretUrl('postgresql://ann:***@db/headrace')
    """
    found = find("metadata", given or None, app)
    text = found.value
    if not text:
        return None
    scheme = text.partition("://")[0].lower() if isinstance(text, str) and "://" in text else ""
    if plug_in(METADATA_GROUP, scheme) is None:
        known = all_points(METADATA_GROUP).keys() - own_points(METADATA_GROUP).keys()
        others = f"; installed plug-ins: {', '.join(sorted(known))}" if known else ""
        raise UsageError(  # the value isn't shown: it may have a password in it
            f"{'metadata' if given else found.place} isn't the URL of a PostgreSQL database, nor of a store that "
            "a plug-in brings",
            hint="write postgresql://user:password@host/database, or leave it out for an SQLite file in the home"
            + others,
        )
    return SecretUrl(text)


# -- values ------------------------------------------------------------------------------------------
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _of_text(known: DeploymentSetting, text: str, place: str) -> Any:
    value: Any = text.strip()
    if known.kind == "number" and value.isascii() and value.isdigit():
        value = int(value)
    elif known.kind == "yes or no":
        value = _TRUTHS.get(value.lower(), value)
    elif known.kind == "choice":
        value = value.lower()
    return _checked(known, value, place)


def _checked(known: DeploymentSetting, value: Any, place: str) -> Any:
    if (wrong := _WRONG[known.kind](known, value)) is None:
        return value
    example = {"number": max(known.least, 2), "duration": '"10s"', "yes or no": "true", "choice": known.default}
    said = "a value that isn't shown" if known.secret else repr(value)
    raise UsageError(
        f"{place} is {said}, but it has to be {wrong}",
        hint=f"such as {example[known.kind]}" if known.kind in example else "write it in quotes",
    )


def _wrong_number(known: DeploymentSetting, value: object) -> str | None:
    fits = type(value) is int and value >= known.least
    return None if fits else f"a whole number, {known.least} or more"


def _wrong_duration(known: DeploymentSetting, value: Any) -> str | None:
    try:
        to_ms(value, minimum=known.least, error=UsageError)
    except UsageError:
        return "a number and a unit: ms, s, m, h or d"
    return None


_WRONG: Mapping[Kind, Callable[[DeploymentSetting, Any], str | None]] = {
    "text": lambda _, value: None if isinstance(value, str) and value else "text",
    "folder": lambda _, value: None if isinstance(value, str) and value else "the path of a folder, as text",
    "number": _wrong_number,
    "duration": _wrong_duration,
    "choice": lambda known, value: None if value in known.choices else f"one of {', '.join(known.choices)}",
    "yes or no": lambda _, value: None if isinstance(value, bool) else "true or false",
}


# -- the file ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SettingsFile:
    """Its values, by the app (empty: all apps) and the name of the setting."""

    path: Path
    values: Mapping[tuple[str, str], Any]

    def place(self, app: str, name: str) -> str:
        return f"{self.path}: {_key(self.path, app, name)}"


def settings_file(program: Path | None = None) -> SettingsFile | None:
    """The file of settings beside the program, else in the current folder. Raises ``UsageError`` if it is wrong."""
    for folder in _folders(program):
        for path in (folder / FILE, folder / TOOL_FILE):
            try:
                state = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise UsageError(f"{path} can't be read: {error.strerror}") from error
            if (found := _read(path, state.st_mtime_ns, state.st_size)) is not None:
                return found
    return None


def _folders(program: Path | None) -> Iterator[Path]:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in (PROGRAM_MODULE, "__main__"))
    file = program or next((file for file in files if file), None)
    if file is not None:
        yield Path(file).parent
    yield Path()


@lru_cache(8)
def _read(path: Path, _changed_ns: int, _size: int) -> SettingsFile | None:
    import tomllib

    try:
        data = path.read_bytes()
        if path.name == TOOL_FILE and b"tool.headrace" not in data:
            return None
        table = tomllib.loads(data.decode())
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise UsageError(
            f"{path} isn't TOML: {error}", hint='write lines such as containers = 4, or home = "/data"'
        ) from error
    if path.name == TOOL_FILE:
        table = _table(_table(table.get("tool", {}), path, "tool").get("headrace", {}), path, "tool.headrace")
    apps = _table(table.pop("app", {}), path, "app")
    values = dict(_values(table, path, ""))
    for app, own in apps.items():
        values |= dict(_values(_table(own, path, f"app.{app}"), path, app))
    return SettingsFile(path, values)


def _table(value: Any, path: Path, key: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise UsageError(f"{path}: {key} isn't a table", hint="a setting of one app stands below [app.NAME]")


def _values(table: Mapping[str, Any], path: Path, app: str) -> Iterator[tuple[tuple[str, str], Any]]:
    for name, value in table.items():
        place = f"{path}: {_key(path, app, name)}"
        check_known(name, place)
        if app and not SETTINGS[name].each_app:
            raise UsageError(f"{place} can't be set for one app: it counts for the whole process", hint="put it above")
        found = _checked(SETTINGS[name], value, place)
        yield (app, name), str(path.parent / found) if SETTINGS[name].kind == "folder" else found


def _key(path: Path, app: str, name: str) -> str:
    return f"{'tool.headrace.' if path.name == TOOL_FILE else ''}{f'app.{app}.' if app else ''}{name}"


def check_known(name: str, place: str) -> None:
    """Raise ``UsageError`` if there is no setting of that name, and say which may be meant."""
    if name in SETTINGS:
        return
    from difflib import get_close_matches

    close = get_close_matches(name.lower().replace("-", "_"), SETTINGS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the settings are {', '.join(SETTINGS)}"
    raise UsageError(f"{place}: there is no such setting", hint=hint)
