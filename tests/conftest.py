"""What several parts of the tests need: servers, started when first asked for, ended with the session; settings."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from postgres_server import PostgresServer

# What a property says doesn't hang on how busy the machine is.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")

_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if not _PROGRAMS:
        pytest.skip("no PostgreSQL server is installed (initdb under /usr/lib/postgresql)")
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL doesn't run as root, and there is no user postgres")
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    try:
        server = PostgresServer(_PROGRAMS[-1].parent, folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
