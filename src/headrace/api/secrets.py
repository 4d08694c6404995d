"""References to secrets: ``secret_env(...)`` and ``secret_file(...)``."""

from __future__ import annotations

import os

from headrace.api.location import Declaring
from headrace.core.errors import DeclarationError
from headrace.core.secret_places import SecretPlace


def secret_env(name: str) -> SecretPlace:
    """Refer to a secret in an environment variable.

    Drivers, containers and commands read the variable when they need the secret. Plans, logs and an app's stored data
    only have its name.

    Parameters
    ----------
    name
        The variable's name.

    Returns
    -------
    SecretPlace
        For options that are secrets, such as ``sasl.password`` of ``hr.io.kafka``.

    Examples
    --------
    >>> hr.secret_env("KAFKA_PASSWORD")
    SecretPlace(kind='env', name='KAFKA_PASSWORD')
    """
    with Declaring("secret_env"):
        if not isinstance(name, str) or not name or "=" in name:
            raise DeclarationError(
                "this is not the name of an environment variable", hint='write hr.secret_env("KAFKA_PASSWORD")'
            )
        return SecretPlace("env", name)


def secret_file(path: str | os.PathLike[str]) -> SecretPlace:
    """Refer to a secret in a file, such as one that Kubernetes mounts.

    Drivers, containers and commands read the file when they need the secret. Plans, logs and an app's stored data only
    have its path.

    Parameters
    ----------
    path
        The file, which contains only the secret, with or without a final line break.

    Returns
    -------
    SecretPlace
        For options that are secrets, such as ``sasl.password`` of ``hr.io.kafka``.

    Examples
    --------
    >>> hr.secret_file("/run/secrets/kafka-password")
    SecretPlace(kind='file', name='/run/secrets/kafka-password')
    """
    with Declaring("secret_file"):
        place = os.fspath(path)
        if not isinstance(place, str) or not place:
            raise DeclarationError("this is not the path of a file", hint='write hr.secret_file("/run/secrets/kafka")')
        return SecretPlace("file", place)
