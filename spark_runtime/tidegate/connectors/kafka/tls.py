"""Handshakes of TLS that fail because of a certificate: another attempt fails, too, unlike after an outage. Pure."""

from __future__ import annotations

from typing import Any

_NAMES = ("_SSL", "_TRANSPORT")
"""Errors of a handshake, and of a connection that the broker ends after the client's part of it, as in TLS 1.3."""
_CA = "Set ssl.ca.location in settings= to the file of the authority that signed the certificates of the brokers"
_HOST = "Connect to a host name that is in the certificates of the brokers"
_CLIENT = (
    "Set ssl.certificate.location in settings= to a certificate that the brokers accept, "
    "and ssl.key.location to its key"
)
_REMEDIES = (
    ("hostname mismatch", _HOST),
    ("ip address mismatch", _HOST),
    ("certificate verify failed", _CA),
    ("alert certificate required", _CLIENT),
    ("alert bad certificate", _CLIENT),
    ("alert unknown ca", _CLIENT),
    ("alert certificate unknown", _CLIENT),
    ("alert handshake failure", _CLIENT),
)
"""Phrase in OpenSSL's text -> remedy. Alerts come from the broker."""


def tls_remedy(error: Any) -> str:
    """Return the remedy if the certificate of the broker or of the client is refused; empty: another error.

    Args:
        error: a `KafkaError`.
    """
    if error.name() not in _NAMES:
        return ""
    text = error.str().lower()
    return next((remedy for phrase, remedy in _REMEDIES if phrase in text), "")
