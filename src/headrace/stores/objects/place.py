"""Where a store of snapshots is: a URL, and what can't be in one. Credentials come from the environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from typing_extensions import override

from headrace.core.errors import DeclarationError
from headrace.core.url import check_no_credentials

SNAPSHOTS_VARIABLE = "HEADRACE_SNAPSHOTS"
_SCHEMES = {"s3": "s3://bucket/prefix", "gs": "gs://bucket/prefix", "az": "az://container/prefix"}
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?) ?(kB|MB|GB)/s")
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9}
_HINT = f"write {', '.join(_SCHEMES.values())} or file:///shared/folder"


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A prefix in an object store. ``bytes_per_s`` limits what a container sends; None: nothing does."""

    url: str
    endpoint: str | None = None
    region: str | None = None
    bytes_per_s: float | None = None

    @property
    def scheme(self) -> str:
        """The part of the URL before ``://``."""
        return self.url.partition("://")[0]

    @override
    def __str__(self) -> str:
        return self.url


def object_place(
    url: object, endpoint: str | None = None, region: str | None = None, bandwidth: str | None = None
) -> ObjectPlace:
    """Check a place. Raises ``DeclarationError``.

    >>> from headrace.stores.objects.place import object_place
    >>> object_place("s3://bucket/prefix/", bandwidth="50MB/s").bytes_per_s
    50000000.0
    """
    if not isinstance(url, str) or "://" not in url:
        raise DeclarationError(f"{url!r} isn't the URL of an object store", hint=_HINT)
    check_no_credentials(url)
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        if not rest.startswith("/") or not rest.strip("/"):
            raise DeclarationError(f"{url!r} isn't the absolute path of a folder", hint="write file:///shared/folder")
    elif scheme not in _SCHEMES:
        raise DeclarationError(f"{url!r} isn't the URL of an object store that Headrace supports", hint=_HINT)
    elif not rest.partition("/")[0] or "?" in rest or "#" in rest:
        raise DeclarationError(
            f"{url!r} isn't the URL of an object store", hint=f"write {_SCHEMES[scheme]}, without ? or #"
        )
    if (endpoint is not None or region is not None) and scheme != "s3":
        raise DeclarationError(
            f"endpoint= and region= apply only to stores like S3, and {url!r} isn't one", hint="leave them out"
        )
    if endpoint is not None and not str(endpoint).startswith(("http://", "https://")):
        raise DeclarationError(
            f"endpoint={endpoint!r} isn't an http:// or https:// URL", hint='write endpoint="https://host:port"'
        )
    if endpoint is not None:
        check_no_credentials(endpoint)
    return ObjectPlace(url.rstrip("/"), endpoint, region, None if bandwidth is None else _bytes_per_s(bandwidth))


def snapshots_of(given: str | ObjectPlace | None = None) -> ObjectPlace | None:
    """Return the store of snapshots: ``given``, else ``HEADRACE_SNAPSHOTS``. None: they are in the home."""
    if isinstance(given, ObjectPlace):
        return given
    value = given or os.environ.get(SNAPSHOTS_VARIABLE)
    return object_place(value) if value else None


def _bytes_per_s(text: str) -> float:
    matched = _BANDWIDTH.fullmatch(text) if isinstance(text, str) else None
    if matched is None or not float(matched[1]):
        raise DeclarationError(
            f"bandwidth={text!r} isn't a number of bytes per second",
            hint='write a number above 0 with kB/s, MB/s or GB/s, such as "50MB/s"',
        )
    return float(matched[1]) * _UNITS[matched[2]]
