"""The options of ``spark.read.format("headrace")`` and ``spark.readStream``: parsed and checked.

Spark passes options as text, with names in lower case. They are named like those of Spark's Kafka source, where that
has them. Pure: where a stream begins and ends is looked up by the readers.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.errors import UsageError
from headrace.core.home import home_of
from headrace.core.ids import Offset

OLDEST = -2
LATEST = -1
"""What these numbers mean as offsets, as in Spark's Kafka source."""

READING: tuple[str, ...] = (
    "home",
    "subscribe",
    "path",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "committed",
    "includePosition",
)
"""The options of readers. ``path`` is what ``load`` is given."""

_WORDS = {"earliest": OLDEST, "latest": LATEST}
_ONLY_BATCH = ("endingOffsets", "endingTimestamp")
_ONLY_STREAM = ("maxOffsetsPerTrigger",)


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: at a time (ms since the epoch), or at an offset for each partition.

    ``everywhere`` is the offset of partitions that ``offsets`` doesn't name; None: it has to name all of them.
    """

    option: str
    everywhere: Offset | None = None
    offsets: Mapping[int, Offset] | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader is asked for."""

    home: Path
    stream: str
    start: Bound
    end: Bound
    rows_per_trigger: int | None
    partitions_min: int | None
    fails_on_loss: bool
    committed: bool
    with_position: bool

    @classmethod
    def of(cls, options: Mapping[str, str], home: str | None = None, *, streaming: bool | None) -> ReadOptions:
        """Read the options. ``home`` is the folder of the log if they name none; ``streaming`` None: not known yet.

        Raises ``UsageError`` for an unknown option, and for a value that makes no sense.
        """
        given = _Given(options, streaming=streaming)
        return cls(
            home=home_of(given.text("home") or home).absolute(),
            stream=given.stream(),
            start=given.bound("starting", LATEST if streaming else OLDEST),
            end=given.bound("ending", LATEST),
            rows_per_trigger=given.count("maxOffsetsPerTrigger"),
            partitions_min=given.count("minPartitions"),
            fails_on_loss=given.flag("failOnDataLoss", default=True),
            committed=given.flag("committed", default=True),
            with_position=given.flag("includePosition", default=False),
        )


class _Given:
    """The options as they were given."""

    def __init__(self, options: Mapping[str, str], *, streaming: bool | None) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in READING}
        for name in self._values:
            if name == "paths":
                raise UsageError("load got several paths", hint="read each stream separately, and union them")
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                meant = f"did you mean {known[close[0]]}? " if close else ""
                raise UsageError(
                    f"option {name!r} is unknown", hint=f"{meant}known options: {', '.join((*READING, 'table'))}"
                )
        if streaming is None:
            return
        where, elsewhere = ("readStream", _ONLY_BATCH) if streaming else ("read", _ONLY_STREAM)
        for name in elsewhere:
            if name.lower() in self._values:
                raise UsageError(
                    f"option {name} can't be used with spark.{where}",
                    hint="a streaming query ends with its trigger: trigger(availableNow=True) reads the present rows"
                    if streaming
                    else "endingOffsets limits what a batch reads",
                )

    def text(self, name: str) -> str | None:
        """The value of an option; None if it isn't given."""
        return self._values.get(name.lower())

    def stream(self) -> str:
        names = [name for option in ("path", "subscribe") if (name := self.text(option))]
        if not names:
            raise UsageError("no stream is named", hint='name one: .load("orders"), or .option("subscribe", "orders")')
        if len(set(names)) > 1 or "," in names[0]:
            raise UsageError(
                f"one stream can be read at a time, not {', '.join(names)}",
                hint="read each stream separately, and union them",
            )
        return names[0]

    def count(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.strip().isdigit() or int(text) == 0:
            raise UsageError(f"option {name} must be a whole number of at least 1, not {text!r}")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise UsageError(f"option {name} must be true or false, not {text!r}")
        return text.lower() == "true"

    def bound(self, edge: str, default: Offset) -> Bound:
        """Where reading begins (``starting``) or ends (``ending``)."""
        by_offset, by_time = f"{edge}Offsets", f"{edge}Timestamp"
        offsets, time_text = self.text(by_offset), self.text(by_time)
        if offsets is not None and time_text is not None:
            raise UsageError(f"options {by_offset} and {by_time} contradict each other", hint="leave one of them out")
        if time_text is not None:
            if not time_text.strip().isdigit():
                raise UsageError(f"option {by_time} must be a number of ms since the epoch, not {time_text!r}")
            return Bound(by_time, time_ms=int(time_text))
        if offsets is None:
            return Bound(by_offset, everywhere=default)
        if offsets.lower() in _WORDS:
            return Bound(by_offset, everywhere=_WORDS[offsets.lower()])
        return Bound(by_offset, offsets=_by_partition(by_offset, offsets, self.stream()))


def _by_partition(option: str, text: str, stream: str) -> dict[int, Offset]:
    """Read ``{"0": 4711, "1": -2}``, or the same as Spark's Kafka source writes it: ``{"orders": {"0": 4711}}``."""
    try:
        found: Any = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if isinstance(found, dict) and list(found) == [stream] and isinstance(found[stream], dict):
        found = found[stream]
    if isinstance(found, dict) and found and all(_is_offset(*entry) for entry in found.items()):
        return {int(partition): offset for partition, offset in found.items()}
    raise UsageError(
        f"option {option} must be earliest, latest or an offset for each partition, not {text!r:.200}",
        hint=f'write JSON: {{"0": 4711, "1": {OLDEST}}}; {OLDEST} is the oldest offset and {LATEST} the end',
    )


def _is_offset(partition: str, offset: object) -> bool:
    return partition.isdigit() and type(offset) is int and offset >= OLDEST
