"""The kinds of system that are installed, and how a ``SystemSpec`` becomes a working system.

The process that needs a system imports its implementation only then. Record and row systems have separate entry point
groups, so it is known without an import which of the two a kind is.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

from typing_extensions import override

from headrace.core.errors import DeclarationError, StreamNotFoundError, UsageError
from headrace.core.ids import StreamId
from headrace.core.plug_ins import all_points, loaded, own_points, plug_in
from headrace.systems.base import RowSystem, StreamInfo, System

GROUP = "headrace.systems"
ROW_GROUP = "headrace.row_systems"
SMALL = "small"  # the kind of the sources and sinks that keep the small contract
_BUILT_IN = {
    GROUP: {"log": "headrace.systems.log.system:open_log", "memory": "headrace.systems.memory:open_memory"},
    ROW_GROUP: {
        "files": "headrace.systems.files.system:open_files",
        "remote": "headrace.systems.remote:open_remote",
        SMALL: "headrace.systems.small_system:open_small",
    },
}
Hash = Literal["headrace", "kafka"]
"""The hash of a key that chooses its partition: ``rows.hashing``, or that of Kafka's default partitioner."""


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A system as an app declares it: its name in stream ids, its kind, and the options of that kind.

    ``may_repeat`` says why its targets may receive rows again after a failure; empty: they keep positions. ``slots``:
    the partitions of its inputs are slots (``SlottedSystem``). ``growing``: others may add partitions to its streams,
    so that keys move between them. ``key_hash``: inputs that have a key are partitioned by it. ``held`` is what only
    this process has of it, such as a DataFrame of Spark.
    """

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    may_repeat: str = field(default="", kw_only=True)
    slots: bool = field(default=False, kw_only=True)
    growing: bool = field(default=False, kw_only=True)
    key_hash: Hash = field(default="headrace", kw_only=True)
    held: object = field(default=None, kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    @override
    def __reduce__(self) -> tuple[Callable[..., SystemSpec], tuple[str, str, dict[str, Any]]]:
        facts: dict[str, Any] = {name: getattr(self, name) for name in ("may_repeat", "slots", "growing", "key_hash")}
        return partial(SystemSpec, **facts), (self.name, self.kind, dict(self.options))


def kinds(group: str) -> dict[str, str]:
    """Return each kind of a group that is installed here, with the ``module:function`` that opens it."""
    return all_points(group) | _BUILT_IN[group]


def keeps_rows(spec: SystemSpec) -> bool:
    """Whether this is a row system, whose outputs are targets and not framed streams. Imports no implementation."""
    if spec.kind in _BUILT_IN[GROUP] or spec.kind in own_points(GROUP):
        return False
    return spec.kind in _BUILT_IN[ROW_GROUP] or plug_in(ROW_GROUP, spec.kind) is not None


def offsets_are_bytes(spec: SystemSpec) -> bool:
    return spec.kind == "log"


def open_system(spec: SystemSpec) -> System:
    if keeps_rows(spec):
        what = f"system {spec.name!r} of kind {spec.kind!r} keeps rows, not frames"
        raise UsageError(what, hint="keep intermediate streams in a record system, such as the embedded log")
    return cast("System", _factory(spec, GROUP)(spec.name, spec.options))


def open_row_system(spec: SystemSpec) -> RowSystem:
    return cast("RowSystem", _factory(spec, ROW_GROUP)(spec.name, spec.options))


def _factory(spec: SystemSpec, group: str) -> Callable[[str, Mapping[str, Any]], object]:
    where = _BUILT_IN[group].get(spec.kind) or plug_in(group, spec.kind)
    if where is None:
        known = sorted([*kinds(GROUP), *kinds(ROW_GROUP)])
        what = f"system {spec.name!r} is of kind {spec.kind!r}, which isn't installed here"
        raise UsageError(what, hint=f"installed: {', '.join(known)}; other kinds come with an extra or a plug-in")
    return cast("Callable[[str, Mapping[str, Any]], object]", loaded(where))


LOG = "log"  # what it is called in ids of streams


def home_log(home: str | Path) -> SystemSpec:
    return SystemSpec(LOG, "log", {"root": f"{home}/streams"})


def require_stream(system: System, stream: StreamId, home: str | Path) -> StreamInfo:
    """Raises ``StreamNotFoundError`` with the name that may have been meant."""
    admin = system.admin()
    info = admin.describe(stream.name)
    if info is None:
        names = admin.list()
        where = f" in {home}" if stream.system == LOG else ""
        raise StreamNotFoundError(f"there is no stream {stream}{where}", hint=_meant(stream, names, home))
    return info


def _meant(stream: StreamId, names: list[str], home: str | Path) -> str:
    close = difflib.get_close_matches(stream.name, names, n=1)
    if close:
        return f"did you mean {close[0] if stream.system == LOG else f'{stream.system}.{close[0]}'}?"
    if stream.system != LOG:
        return "see what there is: headrace stream list"
    if names:
        return "see what there is: headrace stream list; what apps write to Kafka, files or tables is only there"
    return (
        f"{home} holds no streams at all: give another folder as home, "
        f"or create the stream: headrace stream create {stream.name} --partitions 4, or hr.streams.create_stream(...)"
    )


def check_option_names(name: str, kind: str, options: Mapping[str, Any], known: Iterable[str], *required: str) -> None:
    known = tuple(known)
    unknown = sorted(set(options) - set(known))
    missing = " and ".join(repr(one) for one in required if one not in options)
    if unknown or missing:
        wrong = f"unknown options {unknown}" if unknown else f"no option {missing}"
        raise DeclarationError(f"system {name!r} ({kind}): {wrong}", hint=f"known options: {', '.join(known)}")


KAFKA_LOG_PREFIX = "headrace."
"""The names of the topics of a log in Kafka begin with this, if ``prefix`` isn't among its options."""
