"""SchemaRegistry: a Confluent schema registry, or one with its REST interface. No secret appears in errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from tidegate.errors import MissingExtraError, OptionError, OutageError, PipelineError, TidegateError
from tidegate.extras import installation
from tidegate.jobs.secrets import MASK, check_no_plain_secrets, is_reference, resolve_secrets

DEFAULT_SETTINGS: Mapping[str, Any] = {"timeout": 5, "max.retries": 1, "retries.wait.ms": 100}
"""Seconds for one request, and how often it is repeated at once. A request blocks the slot's loop, so both are small:
the source repeats it later.
"""
MAGIC = 0
"""First byte of a record with the id of its schema."""
HEAD_BYTES = 5
"""Bytes of the head of a record: `MAGIC`, then the id, big endian."""
NO_HEAD = "the record does not begin with the id of a schema"

_USER_INFO = "basic.auth.user.info"
_MESSAGE_CHARACTERS = 300
"""Most characters of a registry's message in an error. A proxy may answer with a page."""
_NOT_FOUND, _REFUSED, _OUTAGES = 404, (401, 403), (408, 429)

T = TypeVar("T")


class UnknownSchemaError(PipelineError):
    """The registry has no schema of this id, or no such subject."""


@dataclass(frozen=True)
class SchemaRegistry:
    """A Confluent schema registry, or one with its REST interface. No I/O.

    Attributes:
        url: URLs, separated by commas, without user and password.
        settings: settings of `confluent_kafka.schema_registry`, such as `basic.auth.user.info` or `ssl.ca.location`.
            Secrets are references. `timeout` is 5 s by default.

    Raises:
        OptionError: the URL is wrong or holds a password, or a setting holds a secret in plain text.
    """

    url: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in self.url.split(","):
            parts = urlsplit(one.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise OptionError(
                    "the URL of the schema registry is wrong",
                    where="SchemaRegistry(url=)",
                    remedy='Write it as "https://registry:8081"',
                )
            if parts.username or parts.password:
                raise OptionError(
                    "the URL of the schema registry holds a user or password",
                    where="SchemaRegistry(url=)",
                    remedy=f'Pass settings={{"{_USER_INFO}": "secret:env/NAME"}}; the secret is user:password',
                )
        check_no_plain_secrets(self.settings, where="SchemaRegistry(settings=)")
        if not is_reference(self.settings.get(_USER_INFO, "secret:")):
            raise OptionError(
                f"{_USER_INFO!r} holds a password in plain text",
                where="SchemaRegistry(settings=)",
                remedy="Write a reference to user:password instead: secret:env/NAME or secret:file/PATH",
            )

    def open(self) -> RegistryClient:
        """Return a client. It connects with its first request."""
        return RegistryClient(self)


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema in a registry.

    Attributes:
        schema_id: its id.
        kind: `AVRO`, `PROTOBUF` or `JSON`.
        text: its text; of Protobuf the serialized file descriptor in base64.
        references: (name, text) of the schemas that it uses, each after those that it uses itself.
    """

    schema_id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


class RegistryClient:
    """Client of a registry. Not for several threads. Schemas are requested once, and then kept.

    Every method raises:
        OutageError: the registry does not answer, or has an error of its own.
        UnknownSchemaError: it has no such schema or subject.
        PipelineError: it refuses access, or the schema.
        OptionError: a setting is wrong, or a secret cannot be resolved.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._client: Any = None
        self._secrets: list[str] = []
        self._schemas: dict[tuple[int, str], RegisteredSchema] = {}

    def schema(self, schema_id: int, form: str = "") -> RegisteredSchema:
        """Return the schema with this id. Args: form: form of the text, `serialized` for Protobuf."""
        if (schema_id, form) not in self._schemas:
            found = self._ask(f"schema {schema_id}", lambda client: client.get_schema(schema_id, fmt=form or None))
            self._schemas[schema_id, form] = self._registered(schema_id, found, form)
        return self._schemas[schema_id, form]

    def latest(self, subject: str, form: str = "") -> RegisteredSchema:
        """Return the newest version of a subject, as it is now. Args: form: see `schema`."""

        def ask(client: Any) -> Any:
            client.clear_latest_caches()
            return client.get_latest_version(subject, fmt=form or None)

        found = self._ask(f"subject {subject!r}", ask)
        return self._registered(found.schema_id, found.schema, form)

    def id_of(self, subject: str, kind: str, text: str, *, register: bool) -> int:
        """Return the id of a schema under a subject. Args: register: register it if it is not there."""
        schema = load_schema_registry().Schema(text, kind)
        if register:
            return int(self._ask(f"subject {subject!r}", lambda client: client.register_schema(subject, schema)))
        return int(self._ask(f"subject {subject!r}", lambda client: client.lookup_schema(subject, schema)).schema_id)

    def _registered(self, schema_id: int, found: Any, form: str) -> RegisteredSchema:
        texts: dict[str, str] = {}
        self._collect(found.references or (), texts, form)
        return RegisteredSchema(schema_id, found.schema_type or "AVRO", found.schema_str or "", tuple(texts.items()))

    def _collect(self, references: Sequence[Any], texts: dict[str, str], form: str) -> None:
        for one in references:
            if one.name not in texts:
                found = self._ask(
                    f"subject {one.subject!r}",
                    lambda client, one=one: client.get_version(one.subject, one.version, fmt=form or None),
                )
                self._collect(found.schema.references or (), texts, form)
                texts[one.name] = found.schema.schema_str or ""

    def _ask(self, what: str, request: Callable[..., T]) -> T:
        if self._client is None:
            self._client = self._connect()
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        try:
            return request(self._client)
        except SchemaRegistryError as error:
            raise self._refusal(what, error.http_status_code, str(error.error_message)) from None
        except OAuthTokenError as error:
            raise self._outage(what, f"no token was issued (status {error.status_code})") from None
        except Exception as error:  # httpx is the client's own choice, so its errors are not imported here
            raise self._outage(what, f"{type(error).__name__}: {error}") from None

    def _connect(self) -> Any:
        client_type = load_schema_registry().SchemaRegistryClient
        resolved = resolve_secrets(self._registry.settings)
        for name, value in resolved.items():
            if is_reference(self._registry.settings[name]):
                self._secrets += [str(value), *(str(value).split(":", 1) if name == _USER_INFO else ())]
        try:
            return client_type({**DEFAULT_SETTINGS, **resolved, "url": self._registry.url})
        except Exception as error:
            raise OptionError(
                "the settings of the schema registry are refused by its client",
                where="SchemaRegistry(settings=)",
                cause=self._masked(f"{type(error).__name__}: {error}"),
                remedy="Use the settings of confluent_kafka.schema_registry.SchemaRegistryClient",
            ) from None

    def _refusal(self, what: str, status: int, message: str) -> TidegateError:
        text = f"{self._masked(message)} (HTTP status {status})"
        if status in _OUTAGES or status >= 500:
            return self._outage(what, text)
        if status == _NOT_FOUND:
            return UnknownSchemaError(
                f"the schema registry has no {what}",
                where=self._registry.url,
                cause=text,
                remedy="Check the name, and that the records were written with this registry",
            )
        if status in _REFUSED:
            return PipelineError(
                "the schema registry refuses access",
                where=f"{self._registry.url}, {what}",
                cause=text,
                remedy="Check user, password and rights in SchemaRegistry(settings=)",
            )
        return PipelineError(
            "the schema registry refuses a request",
            where=f"{self._registry.url}, {what}",
            cause=text,
            remedy="If the schema is incompatible, change it, or the compatibility level of the subject",
        )

    def _outage(self, what: str, cause: str) -> OutageError:
        return OutageError(
            "the schema registry does not answer",
            where=f"{self._registry.url}, {what}",
            cause=self._masked(cause),
            remedy="Check that it runs, and that this machine reaches it",
        )

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK) if secret else text
        return " ".join(text.split())[:_MESSAGE_CHARACTERS]


def load_schema_registry() -> Any:
    """Return the module `confluent_kafka.schema_registry`. Raises MissingExtraError if it is not installed."""
    try:
        import confluent_kafka.schema_registry as module
    except ImportError as error:
        raise MissingExtraError(
            "a schema registry needs the package confluent-kafka[schemaregistry]",
            where="this Python environment",
            cause=str(error).splitlines()[0],
            remedy=f"Run `{installation('kafka')}` on the machines of the driver and the slots",
        ) from error
    return module


def schema_ids(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the id of the schema of each record data[starts:starts + lengths]; -1: the record has no head."""
    ids = np.full(len(starts), -1, np.int64)
    long = np.flatnonzero(lengths >= HEAD_BYTES)
    begins = starts[long]
    marked = data[begins] == MAGIC
    long, begins = long[marked], begins[marked]
    found = np.zeros(len(long), np.int64)
    for byte in range(1, HEAD_BYTES):
        found = found << 8 | data[begins + byte]
    ids[long] = found
    return ids


def write_heads(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], schema_id: int) -> None:
    """Write the head of each record at `starts`."""
    data[starts] = MAGIC
    for byte, value in enumerate(schema_id.to_bytes(HEAD_BYTES - 1, "big"), 1):
        data[starts + byte] = value
