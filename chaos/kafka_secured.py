"""Apache Kafka as a company has it: TLS, logins, and rights that somebody has to give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from typing_extensions import override

from chaos.certificates import HOST, Authority
from chaos.kafka_server import KafkaServer
from chaos.local_server import free_port

_WAIT_S = 30.0
_LISTENER = "listener.name.sasl_ssl"
_JAAS = "org.apache.kafka.common.security"


class SecuredKafka(KafkaServer):
    """A broker with two listeners.

    At ``secured`` it takes users by SASL over TLS, who may do what they are allowed to. At ``address`` anybody may do
    anything without a login: that is for a test's own hands.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        """``users`` are passwords by name, for PLAIN and for SCRAM-SHA-512."""
        port = free_port(HOST)
        self.secured = f"{HOST}:{port}"
        self._users = users
        plain = " ".join(f'user_{name}="{password}"' for name, password in users.items())
        super().__init__(
            settings={
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                f"{_LISTENER}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                f"{_LISTENER}.plain.sasl.jaas.config": f"{_JAAS}.plain.PlainLoginModule required {plain};",
                f"{_LISTENER}.scram-sha-512.sasl.jaas.config": f"{_JAAS}.scram.ScramLoginModule required;",
                f"{_LISTENER}.ssl.keystore.type": "PEM",
            },
            host=HOST,
            listeners={"SASL_SSL": port},
        )
        authority = Authority()
        self.ca_file = self.folder / "ca.pem"
        self.ca_file.write_bytes(authority.pem)
        keys = self.folder / "keys.pem"
        keys.write_bytes(b"".join(authority.issue(host=HOST)))
        with self.properties.open("a") as file:
            file.write(f"{_LISTENER}.ssl.keystore.location={keys}\n")

    @override
    def format_options(self) -> Sequence[str]:
        scram = [f"SCRAM-SHA-512=[name={name},password={password}]" for name, password in self._users.items()]
        return [part for one in scram for part in ("--add-scram", one)]

    def allow(self, user: str, kind: str, name: str, *operations: str, prefixed: bool = False) -> None:
        """Give a user rights on a topic, a group, a transactional id, or those that begin with this name."""
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        admin = AdminClient({"bootstrap.servers": self.address})
        bindings = [
            AclBinding(
                ResourceType[kind], name, pattern, f"User:{user}", "*", AclOperation[one], AclPermissionType.ALLOW
            )
            for one in operations
        ]
        for future in admin.create_acls(bindings).values():
            future.result(_WAIT_S)
