"""Secrets by where they are: plans and logs have the place, and the value is read when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from headrace.core.errors import DeclarationError, InfrastructureError

_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """An environment variable (``env``) or a file (``file``) with a secret, wherever drivers and containers run."""

    kind: Literal["env", "file"]
    name: str

    def options(self) -> dict[str, str]:
        """The place as JSON: what ``of`` makes the same one of."""
        return {self.kind: self.name}

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Self:
        """The place of ``{"env": ...}`` or ``{"file": ...}``. Raises ``DeclarationError`` for anything else."""
        match dict(options):
            case {"env": str(name), **rest} if name and not rest:
                return cls("env", name)
            case {"file": str(name), **rest} if name and not rest:
                return cls("file", name)
        raise DeclarationError(
            "this doesn't name the place of a secret",
            hint='write hr.secret_env("KAFKA_PASSWORD"), or hr.secret_file(path)',
        )

    def read(self, environment: Mapping[str, str]) -> str:
        """Return the secret. A line break at the end of a file isn't part of it.

        Raises ``InfrastructureError`` if there is none.
        """
        if self.kind == "env":
            if value := environment.get(self.name):
                return value
            raise InfrastructureError(
                f"the environment variable {self.name} should hold a secret, but isn't set here",
                hint="set it wherever drivers, containers and commands run",
            )
        try:
            with Path(self.name).open("rb") as file:
                data = file.read(_BYTES_MAX + 1)
            text = data.decode()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it isn't text"
            raise InfrastructureError(
                f"the file {self.name} should hold a secret, but can't be read: {why}",
                hint="put it where drivers, containers and commands can read it",
            ) from None
        if len(data) > _BYTES_MAX or not text.strip():
            raise InfrastructureError(
                f"the file {self.name} should hold a secret, but is {'too large' if text.strip() else 'empty'}",
                hint="put only the secret into it",
            )
        return text.removesuffix("\n").removesuffix("\r")
