"""Object stores by way of obstore: S3, Google Cloud Storage, Azure, and folders. Nothing else imports obstore.

It has threads of its own, which don't survive a fork: a process that forks others mustn't import this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import from_url
from typing_extensions import override

from headrace.core.errors import InfrastructureError, UnavailableError
from headrace.stores.snapshots import Chunks, ObjectPlace, ObjectStore

_PART_BYTES = 8 << 20  # what is larger is sent in parts of this size, some at a time
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class Objects(ObjectStore):
    """The objects of a place."""

    def __init__(self, place: ObjectPlace) -> None:
        self._place = place
        try:
            self._store: Any = from_url(place.url, **_options(place))
        except (exceptions.BaseError, ValueError, OSError) as error:
            said = f"the object store {place} can't be opened: {_first_line(error)}"
            hint = "check the URL and the options; if it is a folder, check that you may write to it"
            raise InfrastructureError(said, hint=hint) from error

    @override
    def create(self, name: str, data: bytes) -> bool:
        with self._asking(name):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                return False
        return True

    @override
    def put(self, name: str, size: int, chunks: Chunks) -> None:
        with self._asking(name):
            if size <= _PART_BYTES:
                obstore.put(self._store, name, b"".join(chunks()), use_multipart=False)
            else:
                obstore.put(self._store, name, chunks(), chunk_size=_PART_BYTES, max_concurrency=4)

    @override
    def get(self, name: str) -> bytes | None:
        return self._found(name, lambda: obstore.get(self._store, name).bytes())

    @override
    def read(self, name: str, start: int, length: int) -> bytes | None:
        return self._found(name, lambda: obstore.get_range(self._store, name, start=start, length=length))

    @override
    def list(self, prefix: str) -> dict[str, int]:
        with self._asking(prefix):
            found = chain.from_iterable(obstore.list(self._store, prefix, chunk_size=1000))
            return {meta["path"]: meta["size"] for meta in found}

    @override
    def copy(self, source: str, target: str) -> bool:
        with self._asking(source):
            try:
                obstore.copy(self._store, source, target)
            except FileNotFoundError:
                return False
        return True

    @override
    def delete(self, names: Collection[str]) -> None:
        for name in names if self._place.scheme != "s3" else ():  # others object to names that aren't there
            with self._asking(name):
                try:
                    obstore.delete(self._store, name)
                except FileNotFoundError:
                    continue
        if self._place.scheme == "s3" and names:
            with self._asking(min(names)):
                obstore.delete(self._store, list(names))

    def _found(self, name: str, read: Callable[[], Any]) -> bytes | None:
        with self._asking(name):
            try:
                return bytes(read())
            except FileNotFoundError:
                return None

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        what = f"{self._place}/{name}"
        try:
            yield
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            hint = "grant the credentials in the environment the rights to list, read, write and delete objects there"
            raise InfrastructureError(f"{what}: the store refuses access: {_first_line(error)}", hint=hint) from error
        except FileNotFoundError as error:
            said = f"{what}: the store has no such bucket or container: {_first_line(error)}"
            raise InfrastructureError(said, hint="create the bucket or container") from error
        except (exceptions.BaseError, OSError) as error:
            hint = "check the endpoint and the network"
            raise UnavailableError(f"{what}: {_first_line(error)}", hint=hint) from error


def _options(place: ObjectPlace) -> dict[str, Any]:
    if place.scheme == "file":
        return {"mkdir": True}
    endpoint = place.endpoint or next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)
    config = {"endpoint": place.endpoint, "region": place.region} if place.scheme == "s3" else {}
    return {
        "config": {name: value for name, value in config.items() if value is not None},
        "client_options": {
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=5),
            "timeout": timedelta(seconds=60),
        },
        "retry_config": {"max_retries": 2, "retry_timeout": timedelta(seconds=30)},
    }


def _first_line(error: BaseException) -> str:
    """What went wrong. In obstore's errors a page of XML follows, and Rust's structures with all of a request."""
    return str(error).strip().partition("\n")[0].partition(": <")[0]
