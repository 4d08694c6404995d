"""A real PostgreSQL for tests and chaos: on a free port of this machine, in a folder of its own, ended by its pid."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import threading
from pathlib import Path

from chaos.local_server import free_port
from headrace.core.errors import InfrastructureError

_PLACE = Path("/usr/lib/postgresql")


def programs() -> Path:
    """The folder of PostgreSQL's programs. Raises ``InfrastructureError`` if there are none, or nobody to run them."""
    found = sorted(_PLACE.glob("*/bin/initdb"))
    if not found:
        raise InfrastructureError(
            f"no PostgreSQL server is installed (initdb under {_PLACE})", hint="install the package postgresql"
        )
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError as error:
            raise InfrastructureError(
                "PostgreSQL doesn't run as root, and there is no user postgres", hint="run this as another user"
            ) from error
    return found[-1].parent


class PostgresServer:
    """A PostgreSQL of the tests' own on one address, which can be stopped and started again."""

    password = "s3cret-p%40ss"

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self._programs = programs()
        self._host = host
        self._data = folder / "data"
        self._user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self._process: subprocess.Popen[str] | None = None
        self._log = threading.Thread()
        self.port = free_port()
        secret = folder / "password"
        secret.write_text(self.password.replace("%40", "@"))
        if os.geteuid() == 0:
            for path in (folder, secret):
                shutil.chown(path, self._user)
        options = ["--username=tester", "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync", "--encoding=UTF8"]
        self._run([str(self._programs / "initdb"), f"--pgdata={self._data}", *options]).communicate(timeout=120)
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet scram-sha-256\n")

    @property
    def url(self) -> str:
        """With the password in it."""
        return f"postgresql://tester:{self.password}@{self._host}:{self.port}/postgres"

    def start(self) -> None:
        """Return when it takes connections."""
        options = {"port": self.port, "listen_addresses": self._host, "unix_socket_directories": "", "fsync": "off"}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        process = self._run([str(self._programs / "postgres"), "-D", str(self._data), *settings])
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "ready to accept connections" in line:
                break
        else:
            raise AssertionError(f"PostgreSQL didn't start: {''.join(said)}")
        self._log = threading.Thread(target=process.stdout.read)  # a full pipe would stop the server
        self._log.start()
        self._process = process

    def stop(self) -> None:
        """End it at once: what is connected finds out."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._log.join()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def _run(self, command: list[str]) -> subprocess.Popen[str]:
        other = self._user if os.geteuid() == 0 else None
        environment = {"LC_ALL": "C", "PATH": os.environ["PATH"]}
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env=environment,
            user=other,
            group=other,
            extra_groups=None if other is None else [],
        )
