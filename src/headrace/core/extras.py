"""Packages that aren't installed with Headrace itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.errors import InfrastructureError


@contextmanager
def needing(package: str, what: str, extra: str, where: str = "wherever drivers and containers run") -> Iterator[None]:
    """Raise ``InfrastructureError`` if the block can't import a package that ``what`` needs. ``extra`` installs it."""
    try:
        yield
    except ImportError as error:
        raise InfrastructureError(
            f"{what} needs {package}, which can't be imported here: {error}",
            hint=f'install it {where}: pip install "headrace[{extra}]"',
        ) from error
