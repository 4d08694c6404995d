"""Secrets: options, places and URLs that never show their values: not in plans, errors, log lines or tracebacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from typing_extensions import override

from headrace.core.errors import DeclarationError, InfrastructureError

_HIDDEN = "***"
_SECRET = re.compile(r"password|secret|passphrase|token$|key\.pem$|oauthbearer\.config$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False)
class SecretOptions:
    """Options by name, as pairs. ``str`` and ``repr`` show ``***`` in place of each value."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        return cls(tuple(sorted(options.items())))

    def reveal(self) -> dict[str, str]:
        return dict(self.pairs)

    @override
    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_HIDDEN}" for name, _ in self.pairs)
        return f"{type(self).__name__}({shown})"

    def clean(self, message: str) -> str:
        long = {value for _, value in self.pairs if len(value) > 5}  # others are switches and numbers
        return _without(long, message)


def _without(secrets: Collection[str], message: str) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        message = message.replace(secret, _HIDDEN)
    return message


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """An environment variable (``env``) or a file (``file``) with a secret, wherever drivers and containers run."""

    kind: Literal["env", "file"]
    name: str

    def options(self) -> dict[str, str]:
        return {self.kind: self.name}

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Self:
        """The place of ``{"env": ...}`` or ``{"file": ...}``. Raises ``DeclarationError`` for anything else."""
        match dict(options):
            case {"env": str(name), **rest} if name and not rest:
                return cls("env", name)
            case {"file": str(name), **rest} if name and not rest:
                return cls("file", name)
        hint = 'write hr.secret_env("KAFKA_PASSWORD"), or hr.secret_file(path)'
        raise DeclarationError("this doesn't name the place of a secret", hint=hint)

    def read(self, environment: Mapping[str, str]) -> str:
        """Return the secret, without a line break at its end. Raises ``InfrastructureError`` if there is none."""
        if self.kind == "env":
            if value := environment.get(self.name):
                return value
            what = f"the environment variable {self.name} should hold a secret, but isn't set here"
            raise InfrastructureError(what, hint="set it wherever drivers, containers and commands run")
        try:
            with Path(self.name).open("rb") as file:
                data = file.read(_BYTES_MAX + 1)
            text = data.decode()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it isn't text"
            what = f"the file {self.name} should hold a secret, but can't be read: {why}"
            raise InfrastructureError(what, hint="put it where drivers, containers and commands can read it") from None
        if len(data) > _BYTES_MAX or not text.strip():
            what = f"the file {self.name} should hold a secret, but is {'too large' if text.strip() else 'empty'}"
            raise InfrastructureError(what, hint="put only the secret into it")
        return text.removesuffix("\n").removesuffix("\r")


_SECRET_OPTIONS = frozenset({"password", "sslpassword", "token", "secret"})
_STORE_SECRETS = _SECRET_OPTIONS | {"access_key", "secret_key", "session_token", "account_key", "sas_token"}
_CONTAINER_FIRST = frozenset({"abfs", "abfss"})
"""Schemes in which the part before the ``@`` is a container and no user."""
_PASSWORD = re.compile(r"(?<=://)([^\s/?#:@\"']*):[^\s/?#@\"']+(?=@)")
_OPTION = re.compile(rf"([?&](?:{'|'.join(sorted(_SECRET_OPTIONS))})=)[^\s&#\"']+", re.IGNORECASE)


def hide_passwords(text: str) -> str:
    """Any text with the passwords of the URLs in it replaced by ``***``: a safety net under ``SecretUrl``."""
    return _OPTION.sub(rf"\1{_HIDDEN}", _PASSWORD.sub(rf"\1:{_HIDDEN}", text)) if "://" in text else text


def check_no_credentials(path: str) -> None:
    """Raise ``DeclarationError`` for the URI of files with credentials in it: paths are shown in plans and errors."""
    if "://" not in path:
        return
    url = urlsplit(path)
    user, at, _ = url.netloc.rpartition("@")
    names = {part.partition("=")[0].lower() for part in url.query.split("&")}
    if names & _STORE_SECRETS or (at and (":" in user or url.scheme not in _CONTAINER_FIRST)):
        raise DeclarationError(
            f"the path {url.scheme}://... contains credentials",
            hint="leave them out and set them in the environment, for example AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY",
        )


@dataclass(frozen=True, slots=True, repr=False)
class SecretUrl:
    """A URL. ``text`` is the whole of it. ``str`` and ``repr`` show ``***`` in place of the password."""

    text: str

    @property
    def scheme(self) -> str:
        return self.text.partition(":")[0].lower()

    @override
    def __str__(self) -> str:
        try:
            url = urlsplit(self.text)
        except ValueError:
            return f"{self.scheme}:{_HIDDEN}"
        user, at, place = url.netloc.rpartition("@")
        name, colon, _ = user.partition(":")
        netloc = f"{name}{colon}{_HIDDEN if colon else ''}{at}{place}"
        options = [(k, _HIDDEN if k.lower() in _SECRET_OPTIONS else v) for k, v in _options(url)]
        query = urlencode(options, safe="*/")
        if not netloc:  # urlunsplit would drop the slashes of sqlite:///data.db
            return self.text.partition("?")[0] + (f"?{query}" if query else "")
        return urlunsplit((url.scheme, netloc, url.path, query, url.fragment))

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def clean(self, message: str) -> str:
        return _without(self._secrets(), message)

    def _secrets(self) -> set[str]:
        try:
            url = urlsplit(self.text)
        except ValueError:
            return {self.text}
        raw = url.netloc.rpartition("@")[0].partition(":")[2]
        found = {raw, *(value for key, value in _options(url) if key.lower() in _SECRET_OPTIONS)}
        return {form for value in found if value for form in (value, unquote(value), quote(value, safe=""))}


def _options(url: SplitResult) -> list[tuple[str, str]]:
    return parse_qsl(url.query, keep_blank_values=True)
