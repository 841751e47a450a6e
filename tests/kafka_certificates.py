"""Certificates for a Kafka broker and its clients in tests: two authorities, a broker, a client with a locked key."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

VALID = timedelta(days=2)


@dataclass(frozen=True)
class Certificates:
    """Files in PEM.

    Attributes:
        authority, stranger: certificates of the authority that signed the others, and of one that signed nothing.
        broker: key and certificate of the broker, for 127.0.0.1.
        client, client_key: certificate of a client, and its key, which is encrypted.
        key_password: password of this key.
    """

    authority: Path
    stranger: Path
    broker: Path
    client: Path
    client_key: Path
    key_password: str


def make_certificates(folder: Path) -> Certificates:
    """Write new certificates. Each test run has its own."""
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, NoEncryption

    folder.mkdir(mode=0o700)
    password = secrets.token_urlsafe(16)
    authority, stranger = _certificate("tests"), _certificate("strangers")
    broker, client = _certificate("broker", authority), _certificate("client", authority)
    files = {
        "authority.pem": _pem(authority),
        "stranger.pem": _pem(stranger),
        "broker.pem": _key_pem(broker, NoEncryption()) + _pem(broker) + _pem(authority),
        "client.pem": _pem(client),
        "client-key.pem": _key_pem(client, BestAvailableEncryption(password.encode())),
    }
    for name, content in files.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(content)
    return Certificates(*(folder / name for name in files), key_password=password)


def _certificate(name: str, signed_by: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """A key and its certificate. Args: signed_by: key and certificate of the authority; None: an authority itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer_key, issuer = (key, subject) if signed_by is None else (signed_by[0], signed_by[1].subject)
    now = datetime.now(UTC)
    places = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=signed_by is None, path_length=None), critical=True)
        .add_extension(places, critical=False)
    )
    return key, builder.sign(issuer_key, SHA256())


def _pem(made: tuple[Any, Any]) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(made[1].public_bytes(Encoding.PEM))


def _key_pem(made: tuple[Any, Any], encryption: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat

    return bytes(made[0].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
