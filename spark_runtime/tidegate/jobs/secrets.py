"""References to secrets. The job directory contains only references. Processes resolve them where they use them.

`secret:env/NAME` refers to the environment variable NAME. `secret:file/run/secrets/x` (or `secret:file//run/secrets/x`)
refers to the content of the file /run/secrets/x without its last line break.
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
"""Settings of one Azure storage account; the account's host name follows."""
_NAMES_ONE = ".secretKeyRef."
"""Part of a setting that names the Kubernetes secret for an environment variable of the driver. It is not a secret."""
_WORDS_MEET = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Word boundaries in a name such as `trustStorePassword`."""
_STORAGE_SECRET_NAMES = frozenset({"key", "secret", "token", "aws_session_token"})


def is_reference(value: object) -> bool:
    """Return whether `value` is a text of the form `secret:...`."""
    return isinstance(value, str) and value.startswith(PREFIX)


def resolve_secrets(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of `values` with every reference replaced by its secret, also in nested mappings and lists.

    Do not log or store the result. Raises OptionError when a reference is malformed or its secret is missing. The error
    names option and reference, but no value.
    """
    return {name: _resolved(value, name) for name, value in (values or {}).items()}


def redact(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of `values` for logs and messages. Values with a secret's name are masked; references stay."""
    return {name: _redacted(value, name) for name, value in (values or {}).items()}


def check_no_plain_secrets(values: Mapping[str, Any] | None, *, where: str, storage: bool = False) -> None:
    """Raise OptionError when a value with a secret's name is not a reference: the job directory would contain it.

    Args:
        values: arguments, Spark settings or storage options.
        where: place that the error names.
        storage: the values are storage options, in which `key` and similar names are secrets too.
    """
    for name, value in (values or {}).items():
        if isinstance(value, Mapping):
            check_no_plain_secrets(value, where=f"{where}.{name}", storage=storage)
        elif isinstance(value, list | tuple):
            for number, element in enumerate(value):
                inside = element if isinstance(element, Mapping) else {name: element}
                check_no_plain_secrets(inside, where=f"{where}.{name}[{number}]", storage=storage)
        elif isinstance(value, str) and value and not is_reference(value) and _names_a_secret(name, storage):
            raise OptionError(
                f"{name!r} holds a secret in plain text",
                where=where,
                cause="the secret would be written to the job directory, where every reader of the root sees it",
                remedy="Write a reference to the secret instead: secret:env/NAME or secret:file/PATH",
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
            raise _missing(
                name, value, f"{path} cannot be read ({type(error).__name__})", f"Make {path} readable"
            ) from error
    raise OptionError(
        f"{value!r} is not a reference to a secret", where=name, remedy="Write secret:env/NAME or secret:file/PATH"
    )


def _missing(name: str, reference: str, cause: str, remedy: str) -> OptionError:
    return OptionError(
        f"the secret {reference} cannot be read", where=name, cause=cause, remedy=f"{remedy} where this process runs"
    )


def _redacted(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {inner: _redacted(item, inner) for inner, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, name) for item in value]
    if value is None or isinstance(value, bool) or is_reference(value):
        return value
    return MASK if _names_a_secret(name, storage=True) else value
