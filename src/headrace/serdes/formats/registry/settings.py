"""Where a registry is and how to log in, as JSON without secrets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from headrace.core.errors import DeclarationError
from headrace.core.secret_places import SecretPlace
from headrace.core.url import check_no_credentials

TIMEOUT_MS = 5_000
_KNOWN = ("url", "user", "password", "token", "ca_file", "timeout_ms")


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """A registry at ``url``. Either ``user`` and ``password`` log in, or ``token`` does, or nothing.

    ``ca_file`` has the certificates to trust instead of the machine's. ``timeout_ms`` is for each request.
    """

    url: str
    user: str | None = None
    password: SecretPlace | None = None
    token: SecretPlace | None = None
    ca_file: str | None = None
    timeout_ms: int = TIMEOUT_MS

    def __post_init__(self) -> None:
        check_no_credentials(self.url)
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise DeclarationError(
                f"{self.url!r} isn't the address of a schema registry", hint='write "http://localhost:8081"'
            )
        if (self.user is None) != (self.password is None):
            raise DeclarationError(
                "a schema registry needs user= and password= together", hint="give both, token=, or none of them"
            )
        if self.user is not None and self.token is not None:
            raise DeclarationError("a schema registry takes a password or a token, not both", hint="leave one out")
        if self.user is not None and ":" in self.user:
            raise DeclarationError("user= can't contain a colon", hint="check user=")

    def options(self) -> dict[str, Any]:
        """What ``of`` makes the same ones of."""
        found: dict[str, Any] = {"url": self.url}
        if self.user is not None:
            found["user"] = self.user
        for name in ("password", "token"):
            place = getattr(self, name)
            if place is not None:
                found[name] = place.options()
        if self.ca_file is not None:
            found["ca_file"] = self.ca_file
        return found if self.timeout_ms == TIMEOUT_MS else {**found, "timeout_ms": self.timeout_ms}

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The settings of some JSON. Raises ``DeclarationError`` for what isn't known."""
        unknown = sorted(set(options) - set(_KNOWN))
        if unknown or "url" not in options:
            wrong = f"unknown settings {unknown}" if unknown else "no url"
            raise DeclarationError(f"schema registry: {wrong}", hint=f"known settings: {', '.join(_KNOWN)}")
        given = dict(options)
        for name in ("password", "token"):
            if given.get(name) is not None:
                given[name] = SecretPlace.of(given[name] if isinstance(given[name], Mapping) else {})
        return cls(**given)
