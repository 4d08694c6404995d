"""Schemas by their ids: fetched once, by a thread of their own, and kept up to a limit.

A decoder must not wait for a registry for long. So the caller waits a moment, and is then asked to return later: the
fetch goes on. A registry that is away is asked again after pauses that grow. An id that it doesn't know is asked for
several times, as copies of a registry may lag, and then counts as unknown for a while.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.core.clock import Clock, WallClock
from headrace.core.errors import DataError, HeadraceError, UnavailableError
from headrace.core.log import Throttle, logger
from headrace.core.retry import Retry
from headrace.serdes.formats.registry.client import Registered

KEPT_MAX = 1000
WAIT_MS = 500.0
UNKNOWN_TRIES, UNKNOWN_PAUSE_MS, UNKNOWN_FOR_MS = 3, 300.0, 60_000.0
"""How often an id that isn't there is asked for, after which pauses; and how long it is unknown then."""
REFERENCES_MAX = 100
_RETRY = Retry(None, 100.0, 10_000.0)
_log = logger(__name__)


class Fetching(Protocol):
    """What a source needs of a client."""

    @property
    def url(self) -> str:
        """Where the schemas come from."""
        ...

    def by_id(self, id: int) -> Registered | None:
        """Fetch a schema."""
        ...

    def by_version(self, subject: str, version: int) -> Registered:
        """Fetch a schema that another one refers to."""
        ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """A schema, and those that it refers to, each after those that it refers to itself.

    ``problem`` says what is missing, if the registry doesn't have all of them.
    """

    schema: Registered
    needed: tuple[Registered, ...] = ()
    problem: str = ""


@dataclass(slots=True)
class _Unknown:
    tries: int
    until_ms: float


class SchemaSource:
    """The schemas of one registry. Any thread may use it."""

    def __init__(self, client: Fetching, clock: Clock | None = None, *, wait_ms: float | None = None) -> None:
        self._client = client
        self._clock = clock or WallClock()
        self._wait_ms = WAIT_MS if wait_ms is None else wait_ms
        self._throttle = Throttle(_log)
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._known: OrderedDict[int, Fetched] = OrderedDict()
        self._unknown: dict[int, _Unknown] = {}
        self._error: HeadraceError | None = None
        self._failures = 0
        self._not_before_ms = 0.0

    def schemas(self, ids: Collection[int]) -> Mapping[int, Fetched | None]:
        """Return the schema of each id; None if the registry has none.

        Raises ``UnavailableError`` if some haven't arrived after a moment, or the error of a refusal by the registry.
        """
        with self._lock:
            missing = self._missing(ids)
            if missing:
                self._begin(missing)
        if missing:
            self._idle.wait(self._wait_ms / 1000)
            with self._lock:
                missing = self._missing(ids)
                if missing:
                    raise _again(self._error) or UnavailableError(
                        f"schema {missing[0]} is being fetched from {self._client.url}",
                        hint="Headrace waits for it; check that the registry is running",
                    )
        with self._lock:
            found = {id: self._known.get(id) for id in ids}
            for id in self._known.keys() & set(ids):
                self._known.move_to_end(id)
            self._forget(len(ids))
        return found

    def _missing(self, ids: Collection[int]) -> list[int]:
        now = self._clock.monotonic_ms()
        unknown = self._unknown
        return [
            id
            for id in ids
            if id not in self._known
            and not (id in unknown and unknown[id].tries >= UNKNOWN_TRIES and now < unknown[id].until_ms)
        ]

    def _begin(self, ids: list[int]) -> None:
        """Fetch in a thread, unless one is at it, or it is too early to ask again."""
        if not self._idle.is_set():
            return
        now = self._clock.monotonic_ms()
        if now < self._not_before_ms and (error := _again(self._error)):
            raise error
        self._idle.clear()
        threading.Thread(target=self._fetch, args=(ids,), name="schemas", daemon=True).start()

    def _fetch(self, ids: list[int]) -> None:
        try:
            for id in ids:
                if not self._fetch_one(id):
                    return
            with self._lock:
                if self._failures:
                    _log.info("the schema registry answers again", url=self._client.url)
                self._error, self._failures = None, 0
        except HeadraceError as error:
            self._failed(error)
        except BaseException as error:
            self._failed(UnavailableError(f"fetching a schema failed: {type(error).__name__}"))
            raise
        finally:
            self._idle.set()

    def _fetch_one(self, id: int) -> bool:
        """Whether the registry has answered with a schema, or so often with none that it has none."""
        schema = self._client.by_id(id)
        fetched = None if schema is None else self._complete(schema)
        with self._lock:
            if fetched is not None:
                self._known[id] = fetched
                self._unknown.pop(id, None)
                return True
            before = self._unknown.get(id)
            now = self._clock.monotonic_ms()
            tries = 1 if before is None or before.tries >= UNKNOWN_TRIES else before.tries + 1
            self._unknown[id] = _Unknown(tries, now + UNKNOWN_FOR_MS)
            if tries >= UNKNOWN_TRIES:
                return True
            self._error = UnavailableError(
                f"the schema registry {self._client.url} has no schema {id} yet", hint="Headrace asks again"
            )
            self._not_before_ms = now + UNKNOWN_PAUSE_MS
            return False

    def _complete(self, schema: Registered) -> Fetched:
        needed: dict[tuple[str, int], Registered] = {}
        try:
            self._follow(schema, needed, set())
        except DataError as error:
            return Fetched(schema, problem=error.message)
        return Fetched(schema, tuple(needed.values()))

    def _follow(
        self, schema: Registered, needed: dict[tuple[str, int], Registered], above: set[tuple[str, int]]
    ) -> None:
        for one in schema.references:
            key = (one.subject, one.version)
            if key in needed or key in above or len(needed) + len(above) >= REFERENCES_MAX:
                continue
            found = self._client.by_version(one.subject, one.version)
            self._follow(found, needed, above | {key})
            needed[key] = found

    def _failed(self, error: HeadraceError) -> None:
        with self._lock:
            self._error = error
            self._failures += 1
            pause = _RETRY.pause_ms(self._failures, random.random())
            self._not_before_ms = self._clock.monotonic_ms() + (pause or 0.0)
        if error.retry:
            self._throttle.warning("can't fetch a schema, so its records wait", why=error.message)

    def _forget(self, in_use: int) -> None:
        """Keep those used last, and all that this call asked for: or a batch with many ids would never be read."""
        keep = max(KEPT_MAX, in_use)
        while len(self._known) > keep:
            self._known.popitem(last=False)
        while len(self._unknown) > keep:
            del self._unknown[next(iter(self._unknown))]


def _again(error: HeadraceError | None) -> HeadraceError | None:
    """A copy, as an error that is raised several times collects tracebacks."""
    return None if error is None else type(error)(error.message, hint=error.hint)
