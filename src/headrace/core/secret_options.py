"""Options that may be secrets: names are shown, values never, not in plans, errors, log lines or tracebacks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from typing_extensions import override

_HIDDEN = "***"
_SECRET = re.compile(r"password|secret|passphrase|token$|key\.pem$|oauthbearer\.config$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False)
class SecretOptions:
    """Options by name, as pairs. ``str`` and ``repr`` show ``***`` in place of each value."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """The options of a mapping, in the order of their names."""
        return cls(tuple(sorted(options.items())))

    def reveal(self) -> dict[str, str]:
        """Return the options with their values, for the library that needs them."""
        return dict(self.pairs)

    @override
    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_HIDDEN}" for name, _ in self.pairs)
        return f"{type(self).__name__}({shown})"

    def clean(self, message: str) -> str:
        """Return a message of a third party with the values of these options replaced by ``***``."""
        values = {value for _, value in self.pairs if len(value) > 5}  # shorter ones are switches and numbers
        for value in sorted(values, key=len, reverse=True):
            message = message.replace(value, _HIDDEN)
        return message


def is_secret(name: str) -> bool:
    """Return whether the value of an option is a secret."""
    return _SECRET.search(name) is not None
