"""References to secrets: what the job directory holds instead of them, resolved only where they are used.

`secret:env/NAME` is the environment variable NAME, `secret:file/run/secrets/x` (or `secret:file//run/secrets/x`) the
content of the file /run/secrets/x without its last line break.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from tidegate.errors import OptionError

PREFIX = "secret:"
MASK = "***"

_SECRET_NAME = re.compile(
    r"(^|[._-])(secret|password|passwd|token|credentials?|api[._-]?key|(access|private|secret|account|auth)[._-]?key)$",
    re.IGNORECASE,
)
_AZURE_SECRET = re.compile(r"\bfs\.azure\.account\.(key|oauth2\.client\.secret)\.")
"""Of one storage account, whose host name follows."""
_NAMES_ONE = ".secretKeyRef."
"""In a setting that says which of Kubernetes' secrets an environment variable of the driver holds."""
_WORDS_MEET = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""In `trustStorePassword`."""
_STORAGE_SECRET_NAMES = frozenset({"key", "secret", "token", "aws_session_token"})


def is_reference(value: object) -> bool:
    """Whether `value` is a text of the form `secret:...`."""
    return isinstance(value, str) and value.startswith(PREFIX)


def resolve_secrets(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of `values`, nested mappings and lists included, with every reference replaced by its secret.

    The answer must not be logged or stored. Raises OptionError, naming option and reference but no value, when a
    reference is malformed or its secret is not there.
    """
    return {name: _resolved(value, name) for name, value in (values or {}).items()}


def redact(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of `values` for logs and messages: what is named like a secret is masked, references stay readable."""
    return {name: _redacted(value, name) for name, value in (values or {}).items()}


def check_no_plain_secrets(values: Mapping[str, Any] | None, *, where: str, storage: bool = False) -> None:
    """Raise OptionError when a value named like a secret is not a reference: it would be written to the job directory.

    Args:
        values: arguments, Spark settings or storage options.
        where: what to name in the error.
        storage: storage options, where `key` and its like are secrets too.
    """
    for name, value in (values or {}).items():
        if isinstance(value, Mapping):
            check_no_plain_secrets(value, where=f"{where}.{name}", storage=storage)
        elif isinstance(value, str) and value and not is_reference(value) and _names_a_secret(name, storage):
            raise OptionError(
                f"{name!r} holds a secret in plain text",
                where=where,
                cause="it would be written to the job directory, where every reader of the root sees it",
                remedy="Give a reference: secret:env/NAME or secret:file/PATH",
            )


def _names_a_secret(name: str, storage: bool) -> bool:
    if _NAMES_ONE in name:
        return False
    if _SECRET_NAME.search(_WORDS_MEET.sub(".", name)) is not None or _AZURE_SECRET.search(name) is not None:
        return True
    return storage and name.lower() in _STORAGE_SECRET_NAMES


def _resolved(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {inner: _resolved(item, f"{name}.{inner}") for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(item, name) for item in value]
    if not is_reference(value):
        return value
    kind, _, target = value.removeprefix(PREFIX).partition("/")
    if kind == "env" and target:
        found = os.environ.get(target)
        if found is None:
            raise _missing(name, value, f"environment variable {target} is not set", f"Set {target}")
        return found
    if kind == "file" and target.strip("/"):
        path = "/" + target.lstrip("/")
        try:
            with open(path, encoding="utf-8") as file:
                return file.read().removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise _missing(name, value, f"{path} cannot be read ({type(error).__name__})", "Mount the file") from error
    raise OptionError(
        f"{value!r} is not a reference to a secret", where=name, remedy="Use secret:env/NAME or secret:file/PATH"
    )


def _missing(name: str, reference: str, cause: str, remedy: str) -> OptionError:
    return OptionError(
        f"the secret {reference} is missing", where=name, cause=cause, remedy=f"{remedy} where this process runs"
    )


def _redacted(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {inner: _redacted(item, inner) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, name) for item in value]
    if value is None or isinstance(value, bool) or is_reference(value):
        return value
    return MASK if _names_a_secret(name, storage=True) else value
