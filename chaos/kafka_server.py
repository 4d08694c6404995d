"""Kafka brokers for tests and measurements, each in a process of its own, which survive being killed.

Apache's own takes seconds to start. kfake, a broker of one small program, takes milliseconds and fails on order.
`make test` installs both.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from typing_extensions import override

from chaos.local_server import LocalServer, free_port
from headrace.core.errors import InfrastructureError

_SERVERS = Path(sys.prefix) / "servers"
_KFAKE = _SERVERS / "kfake"
_JARS = _SERVERS / "kafka" / "jars"
_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
_CALL_S = 10
_FORMAT_S = 120
_LOGS = "org.slf4j.simpleLogger"
_JAVA = (
    "java",
    # What the second compiler and threads of the collector take doesn't pay in a broker that lives for seconds.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx512m",
    "-Djava.net.preferIPv4Stack=true",
    f"-D{_LOGS}.defaultLogLevel=error",
    f"-D{_LOGS}.log.kafka.server.KafkaRaftServer=info",
    "-cp",
    str(_JARS / "*"),
)
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.ms": "-1",  # records of tests are often from 1970, and the broker looks for old ones every 5 minutes
}


class Broker(ABC):
    """A broker, from ``with`` or ``start`` to its end.

    It can be stopped (killed) and started again, and is then what it was. ``close`` removes its folder.
    """

    name: str

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._port = free_port(host)
        self._server = LocalServer(self.name)
        self.folder = Path(tempfile.mkdtemp(prefix=f"headrace-{self.name}-"))

    @property
    def address(self) -> str:
        """What clients call ``bootstrap.servers``."""
        return f"{self._host}:{self._port}"

    @abstractmethod
    def start(self) -> None:
        """Return when it takes connections."""

    def stop(self) -> None:
        """Kill it."""
        self._server.stop()

    def close(self) -> None:
        """Kill it, and remove all that it has written."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KfakeServer(Broker):
    """kfake: one node, which keeps what it has been sent in a folder."""

    name = "kfake"

    def __init__(
        self, *, partitions: int = 1, user: tuple[str, str] | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        """With ``user``, a name and a password, it takes only clients that give them, by SASL PLAIN.

        ``partitions`` is how many a topic gets that is created without a number. Raises ``InfrastructureError`` if
        the program isn't here.
        """
        if not _KFAKE.is_file():
            raise InfrastructureError(
                "there is no kfake here, a small broker that speaks Kafka's protocol",
                hint="install Go, then run `make test` once: it builds the program where Go finds its modules",
            )
        super().__init__()
        self._control = free_port()
        self._options = [f"-partitions={partitions}", *(f"-config={key}={value}" for key, value in _items(settings))]
        if user is not None:
            self._options.append(f"-user={':'.join(user)}")

    @override
    def start(self) -> None:
        data = self.folder / "data"
        ports = (f"-port={self._port}", f"-control={self._control}")
        self._server.start([str(_KFAKE), *ports, f"-data={data}", *self._options], "listening on ")

    def fail(self, request: str, error: str, *, count: int = 1, topic: str = "", transaction: str = "") -> None:
        """Answer the next ``count`` requests of a kind with an error; both are called what Kafka calls them.

        ``REQUEST_TIMED_OUT`` comes after the request has been performed, as it may in a broker; all others before.
        """
        self._order("fault", request=request, error=error, count=str(count), topic=topic, transaction=transaction)

    def compact(self) -> None:
        """Compact all compacted topics now."""
        self._order("compact")

    def _order(self, what: str, **fields: str) -> None:
        body = urllib.parse.urlencode(fields).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self._control}/{what}", body, timeout=_CALL_S):
            pass


class KafkaServer(Broker):
    """Apache Kafka: one process, broker and controller."""

    name = "kafka"

    def __init__(
        self,
        *,
        settings: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        listeners: Mapping[str, int] | None = None,
    ) -> None:
        """``settings`` of the broker are added, and ``listeners``, ports by protocol.

        Raises ``InfrastructureError`` if it isn't here.
        """
        if shutil.which("java") is None or not any(_JARS.glob("kafka_*.jar")):
            raise InfrastructureError(
                "there is no Apache Kafka here",
                hint="install Java and Maven, then run `make test` once: it fetches Kafka from where Maven finds it",
            )
        super().__init__(host)
        self.properties = self.folder / "server.properties"
        controller = f"{host}:{free_port(host)}"
        others = "".join(f",{protocol}://{host}:{port}" for protocol, port in (listeners or {}).items())
        addresses = f"PLAINTEXT://{self.address},CONTROLLER://{controller}{others}"
        written = {
            **_SETTINGS,
            "controller.quorum.bootstrap.servers": controller,
            "listeners": addresses,
            "advertised.listeners": addresses,
            "log.dirs": str(self.folder / "data"),
            **dict(_items(settings)),
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in written.items()))

    def format_options(self) -> Sequence[str]:
        """More options for the tool that formats the folder."""
        return ()

    @override
    def start(self) -> None:
        if not (self.folder / "data").exists():
            options = ["--standalone", "-t", _CLUSTER, "-c", str(self.properties), *self.format_options()]
            subprocess.run(
                [*_JAVA, "kafka.tools.StorageTool", "format", *options],
                check=True,
                capture_output=True,
                timeout=_FORMAT_S,
            )
        self._server.start([*_JAVA, "kafka.Kafka", str(self.properties)], "Kafka Server started")


def _items(settings: Mapping[str, str] | None) -> Sequence[tuple[str, str]]:
    return list((settings or {}).items())
