"""A world of machines inside this one. Each has an address, a name and folders of its own; they share nothing but code.

A *world* is a network, mounts and process numbers of its own, in namespaces of Linux. Nothing in it reaches another
network, and nothing of it is left when its first process ends: the kernel kills all others, however that one has ended.
A machine in it has its own network interface, on a bridge, and a folder of its own, where programs write everything.

Everything here is called from one thread.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from chaos.deployment import until
from chaos.processes import Process, look, send
from headrace.core.errors import InfrastructureError, UnavailableError
from headrace.run.spark.hosting import die_with_parent

NETWORK = "10.77.0"
OWN = "/tmp"
"""The folder that each machine has for itself."""
_HOME = f"{OWN}/home"
_BRIDGE = "world"
_TRY_S = 30.0
_END_S = 30.0
_NEEDED = ("unshare", "nsenter", "ip", "mount")
_TRIAL = 'ip link add name trial type bridge && mount --bind "$0" "$0"'
_MACHINE = """
set -e
mount --bind "$1" "$3"
hostname "$2"
ip link set lo up
echo ready
exec cat
"""
"""Its first process: it keeps the namespaces, and ends with its standard input."""


_OF_A_SESSION = "userFiles-"


def why_not() -> str | None:
    """Why there can't be a world here; None if there can."""
    if missing := [program for program in _NEEDED if shutil.which(program) is None]:
        return f"these programs are missing: {', '.join(missing)}"
    if hidden := [folder for folder in _code() if folder.is_relative_to(OWN)]:
        return f"machines have a {OWN} of their own, and the code is in {hidden[0]}"
    try:
        trial = [*_unshare(), "sh", "-c", _TRIAL, OWN]
        tried = subprocess.run(trial, capture_output=True, text=True, timeout=_TRY_S, check=False)
    except subprocess.TimeoutExpired:
        return f"a namespace wasn't there after {_TRY_S:g} s"
    return f"namespaces aren't allowed: {tried.stderr.strip()}" if tried.returncode else None


def enter(module: str, arguments: Sequence[str]) -> NoReturn:
    """Go on as ``python -m module arguments`` in a new world. It ends with this process, and this with its parent."""
    if (reason := why_not()) is not None:
        raise InfrastructureError(
            f"machines of their own can't be made here: {reason}",
            hint="run it as root, or where users may make namespaces, with iproute2 and util-linux",
        )
    die_with_parent()
    command = [*_unshare(), sys.executable, "-m", module, *arguments]
    os.execvp(command[0], command)


def _unshare() -> list[str]:
    """Each user but root needs a name space of users as well, to have rights in the others."""
    users = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    return ["unshare", *users, "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _code() -> list[Path]:
    """The folders that every machine needs: not those of a Spark session in this process, which has nothing in them."""
    entries = [entry for entry in sys.path if entry and _OF_A_SESSION not in entry]
    return [Path(sys.prefix).resolve(), *(Path(entry).resolve() for entry in entries)]


class Machine:
    """A machine of a world. Its folders are there until they are wiped, whatever runs on it."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        """``folder`` is its ``OWN`` as seen from outside. ``World`` makes machines."""
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self._folder = folder
        self._cable = f"cable-{number}"
        folder.mkdir(mode=0o755)
        self._furnish()
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "sh", "-c", _MACHINE, "sh", str(folder), name, OWN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise UnavailableError(f"machine {name} didn't start")
        self._network = _network_of(self._holder.pid)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid))
        _run("ip", "link", "set", self._cable, "master", _BRIDGE, "up")
        _run(*self.command("ip", "addr", "add", f"{self.address}/24", "dev", "eth0"))
        _run(*self.command("ip", "link", "set", "eth0", "up"))

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of its programs."""
        kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "LANG") if name in os.environ}
        own = {"HOME": _HOME, "TMPDIR": OWN, "SPARK_LOCAL_DIRS": f"{OWN}/spark"}
        return kept | own | {"PYTHONPATH": os.pathsep.join(map(str, _code()[1:])), "PYSPARK_PYTHON": sys.executable}

    def command(self, *words: str) -> list[str]:
        """The command that runs this one there, by the same process."""
        inside = ["nsenter", "--target", str(self._holder.pid), "--net", "--mount", "--uts"]
        return [*inside, "sh", "-c", f'cd {_HOME} && exec "$@"', "sh", *words]

    def run(self, *words: str, seconds_max: float, environment: Mapping[str, str]) -> str:
        """Run a program there, and return what it prints. Raises ``UnavailableError`` if it fails."""
        return _run(*self.command(*words), seconds_max=seconds_max, environment=self.environment | dict(environment))

    def processes(self) -> list[Process]:
        """The living processes that run there."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            pid = int(folder.name)
            if pid != self._holder.pid and _network_of(pid) == self._network and (process := look(pid)) is not None:
                found.append(process)
        return [process for process in found if process.alive]

    def kill_all(self) -> int:
        """Kill whatever runs there, and wait until it is gone; return how many processes it was."""
        killed: set[int] = set()

        def gone() -> bool:
            pids = {process.pid for process in self.processes()}
            killed.update(pids)
            send(signal.SIGKILL, pids)
            return not pids

        until(gone, f"nothing runs on {self.name}", _END_S)
        return len(killed)

    def wipe(self) -> None:
        """Delete all that was written there. Nothing may run."""
        for path in self._folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._furnish()

    def unplug(self) -> None:
        """Cut it off from all others."""
        _run("ip", "link", "set", self._cable, "down")

    def plug_in(self) -> None:
        """Connect it again."""
        _run("ip", "link", "set", self._cable, "up")

    def close(self) -> None:
        """Kill what runs there, and the machine."""
        self.kill_all()
        self._holder.communicate(timeout=_END_S)

    def _furnish(self) -> None:
        (self._folder / "home").mkdir()


class World:
    """The machines of the world that this process is in, from ``with`` to its end. Call ``enter`` before."""

    address = f"{NETWORK}.1"
    """Where servers listen that run on no machine: each machine reaches them."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Folders of machines are in ``folder``."""
        if os.getpid() != 1:
            raise InfrastructureError("this process is in no world of its own", hint="call enter first")
        self._folder = folder
        self._names = names
        self._stack = ExitStack()
        self.machines: dict[str, Machine] = {}

    def __enter__(self) -> Self:
        numbers = {name: number for number, name in enumerate(self._names, 2)}
        hosts = self._folder / "hosts"
        hosts.write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{NETWORK}.{number} {name}\n" for name, number in {"world": 1, **numbers}.items())
        )
        _run("mount", "--bind", str(hosts), "/etc/hosts")
        _run("hostname", "world")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "name", _BRIDGE, "type", "bridge")
        _run("ip", "addr", "add", f"{self.address}/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        with ExitStack() as stack:
            for name, number in numbers.items():
                self.machines[name] = machine = Machine(name, number, self._folder / name)
                stack.callback(machine.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _network_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:  # it has just ended
        return ""


def _run(*words: str, seconds_max: float = _TRY_S, environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds_max, env=environment, check=False)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{' '.join(words)} didn't end within {seconds_max:g} s") from error
    if done.returncode:
        raise UnavailableError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout
