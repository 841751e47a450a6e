"""Address of a Kafka cluster: client settings with references to secrets, and errors in which no secret appears."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import MissingExtraError, OptionError
from tidegate.extras import installation
from tidegate.jobs.secrets import check_no_plain_secrets, is_reference, resolve_secrets

PRIVATE_KEY = "ssl.key.pem"
"""Setting that holds a private key. Its name does not show it."""


def load_confluent_kafka() -> Any:
    """Return the module `confluent_kafka`.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as e:
        raise MissingExtraError(
            "Kafka sources and sinks need the package confluent-kafka",
            where="this Python environment",
            cause=str(e).splitlines()[0],
            remedy=f"Run `{installation('kafka')}` on the machines of the driver and the slots",
        ) from e
    return confluent_kafka


@dataclass(frozen=True)
class KafkaCluster:
    """A Kafka cluster as clients reach it. No I/O.

    Attributes:
        servers: bootstrap servers, `host:port` separated by commas.
        settings: settings of librdkafka for each client, such as `security.protocol`. Secrets are references.

    Raises:
        OptionError: `servers` is empty, or a setting holds a secret in plain text.
    """

    servers: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.servers.strip():
            remedy = 'Write bootstrap servers, such as "broker1:9092"'
            raise OptionError("servers is empty", where="Kafka(servers=)", remedy=remedy)
        check_no_plain_secrets(self.settings, where="Kafka(settings=)")
        key = self.settings.get(PRIVATE_KEY)
        if key is not None and not is_reference(key):
            raise OptionError(
                f"{PRIVATE_KEY!r} holds a private key in plain text",
                where="Kafka(settings=)",
                cause="the key would be written to the job directory, where every reader of the root sees it",
                remedy="Write a reference to the key instead: secret:env/NAME or secret:file/PATH",
            )

    @property
    def place(self) -> str:
        """The bootstrap servers, for messages."""
        return self.servers

    def client_settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings for one client, with resolved secrets: do not log or store them.

        Args:
            own: settings that the connector depends on. They take precedence over the user's.

        Raises:
            OptionError: a secret's reference cannot be resolved.
        """
        return {**resolve_secrets(self.settings), **own, "bootstrap.servers": self.servers}
