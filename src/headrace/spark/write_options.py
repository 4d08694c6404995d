"""The options of ``df.write.format("headrace")`` and ``df.writeStream``: read and checked. Pure.

Spark hands options over as texts, with names in lower case, and adds some of its own.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import DeclarationError, UsageError
from headrace.core.home import home_of
from headrace.core.ids import check_id
from headrace.streams.committed_writer import VERSION_MAX

WRITING: tuple[str, ...] = ("home", "topic", "path", "key", "partitions", "writer", "version", "checkpointLocation")
"""The options of writers. ``path`` is what ``save`` or ``start`` is given."""

_SPARKS_OWN = ("queryName",)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a writer is asked for.

    ``partitions``: create the stream with this many if it doesn't exist. ``version``: of a batch write with a name.
    """

    home: Path
    stream: str
    keys: tuple[str, ...]
    partitions: int | None
    writer: str | None
    version: int | None
    checkpoint_location: str | None

    @classmethod
    def of(cls, options: Mapping[str, str], *, streaming: bool, overwrite: bool) -> WriteOptions:
        """Read the options. Raises ``UsageError`` for an unknown one, and for a value that makes no sense."""
        given = {name.lower(): value for name, value in options.items()}
        _check_known(given)
        if overwrite:
            raise UsageError(
                "a stream can't be overwritten: rows are only appended",
                hint='write outputMode("append") or "update"' if streaming else 'write mode("append")',
            )
        writer, version = given.get("writer"), given.get("version")
        location = given.get("checkpointlocation")
        if streaming:
            _check_streaming(writer, version, location)
        else:
            _check_batch(writer, version)
        if writer is not None:
            _checked_id("writer", writer)
        return cls(
            home=home_of(given.get("home")).absolute(),
            stream=_stream(given),
            keys=_columns(given.get("key")),
            partitions=_whole("partitions", given.get("partitions"), 1),
            writer=writer,
            version=_whole("version", version, 0),
            checkpoint_location=location,
        )


def _check_known(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in (*WRITING, *_SPARKS_OWN)}
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {known[close[0]]}? " if close else ""
            raise UsageError(f"option {name!r} is unknown", hint=f"{meant}known options: {', '.join(WRITING)}")


def _check_streaming(writer: str | None, version: str | None, location: str | None) -> None:
    if version is not None:
        raise UsageError(
            "option version can't be used with df.writeStream: versions are the numbers of Spark's batches",
            hint="leave out version",
        )
    if writer is None and not location:
        raise UsageError(
            "a streaming query needs a name that survives restarts, because batches could be repeated otherwise",
            hint='give the option checkpointLocation to the query itself, or a name: option("writer", "orders-by-day")',
        )


def _check_batch(writer: str | None, version: str | None) -> None:
    if (writer is None) != (version is None):
        missing = "version" if version is None else "writer"
        raise UsageError(
            f"options writer and version belong together, and {missing} is missing",
            hint="give both: writer names a series of writes, and version numbers them, such as 20260131. A version is "
            "written once, however often the job runs. Or leave out both: each write is then a new one",
        )


def _stream(given: Mapping[str, str]) -> str:
    names = {name for option in ("path", "topic") if (name := given.get(option))}
    if not names:
        raise UsageError(
            "no stream is named", hint='name one: .save("orders"), .start("orders"), or .option("topic", "orders")'
        )
    if len(names) > 1:
        raise UsageError(f"one stream can be written at a time, not {', '.join(sorted(names))}")
    return _checked_id("stream", names.pop())


def _columns(text: str | None) -> tuple[str, ...]:
    """Read ``member``, ``member,day``, or a list as JSON, for names with a comma."""
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except json.JSONDecodeError:
            names = []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(
            f"option key must be one or several columns, not {text!r}",
            hint='write "member", "member,day" or \'["a,b"]\'',
        )
    return tuple(names)


def _whole(name: str, text: str | None, lowest: int) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or not lowest <= int(text) <= VERSION_MAX:
        raise UsageError(f"option {name} must be a whole number of at least {lowest}, not {text!r}")
    return int(text)


def _checked_id(what: str, text: str) -> str:
    try:
        return check_id(what, text)
    except DeclarationError as error:
        raise UsageError(error.message, hint=error.hint) from error
