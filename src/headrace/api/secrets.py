"""Secrets by where they are: ``secret_env(...)`` and ``secret_file(...)``."""

from __future__ import annotations

import os

from headrace.api.location import Declaring
from headrace.core.errors import DeclarationError
from headrace.core.secret_places import SecretPlace


def secret_env(name: str) -> SecretPlace:
    """A secret in an environment variable.

    Drivers, containers and commands read it when they use it. Plans, logs and what an app keeps have the name only.

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
    """A secret in a file, such as one that Kubernetes mounts.

    Drivers, containers and commands read it when they use it. Plans, logs and what an app keeps have the path only.

    Parameters
    ----------
    path
        The file has the secret and nothing else, apart from a line break at the end.

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
