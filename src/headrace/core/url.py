"""A URL that may contain a password and never shows it: not in plans, errors, log lines or tracebacks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from typing_extensions import override

from headrace.core.errors import DeclarationError

_HIDDEN = "***"
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
        """The part before the first colon, in lower case."""
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
        """Return a message of a third party with the secrets of this URL replaced by ``***``."""
        for secret in sorted(self._secrets(), key=len, reverse=True):
            message = message.replace(secret, _HIDDEN)
        return message

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
