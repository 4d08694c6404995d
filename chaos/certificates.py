"""Certificates for servers that tests start: from an authority of the test's own, for this machine, and for one day."""

from __future__ import annotations

import datetime as dt
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOST = "127.0.0.1"
_DAY = dt.timedelta(days=1)


class Authority:
    """A certificate authority. Who trusts ``pem`` trusts what it has issued."""

    def __init__(self, name: str = "tests") -> None:
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        basic = x509.BasicConstraints(ca=True, path_length=None)
        made = _builder(self._name, self._name, self._key).add_extension(basic, critical=True)
        made = made.add_extension(_only_to_sign(), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        self.pem = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, host: str = HOST) -> tuple[bytes, bytes]:
        """A key and the chain of its certificate, both as PEM, for a server at this address."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        made = _builder(self._name, _named("server"), key).add_extension(hosts, critical=False)
        # From Python 3.13 on, a certificate has to say whose key has signed it.
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = made.add_extension(signer, critical=False)
        pem = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        plain = serialization.NoEncryption()
        return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain), pem + self.pem


def _only_to_sign() -> x509.KeyUsage:
    return x509.KeyUsage(
        key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _builder(issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    number = x509.random_serial_number()
    return x509.CertificateBuilder(issuer, subject, key.public_key(), number, now - _DAY, now + _DAY)
