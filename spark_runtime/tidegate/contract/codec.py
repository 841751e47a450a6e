"""How a durable record becomes bytes and comes back: canonical JSON, checked against the record's own field types.

A record is a frozen dataclass with class variables `RECORD` (its name) and `VERSION`. Its document is
`{"record": <name>, "v": <version>, <fields>...}` with sorted keys, no spaces, UTF-8 and a line break at the end.
Readers accept versions N and N-1; fields they do not know in those are ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from tidegate.contract.errors import RecordError


class DurableRecord(Protocol):
    """What `encode` and `decode` work on: a dataclass with these class variables. One whose version is past 1 may have
    a class method `upgrade(document) -> document` that turns version N-1 into N."""

    RECORD: ClassVar[str]
    VERSION: ClassVar[int]
    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=DurableRecord)


def canonical(document: object) -> bytes:
    """Canonical JSON: the same document gives the same bytes. Raises RecordError for what JSON cannot hold."""
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise RecordError(
            "a value cannot be written as JSON",
            cause=str(error),
            remedy="Use texts, finite numbers, booleans, null, lists and mappings with text keys",
        ) from error


def encode(record: DurableRecord) -> bytes:
    """The record's bytes."""
    return canonical(to_document(record))


def to_document(record: DurableRecord) -> dict[str, Any]:
    """The record as a JSON document."""
    document = _plain(record)
    return {"record": record.RECORD, "v": record.VERSION, **document}


def decode(data: bytes, record_type: type[R], path: str = "") -> R:
    """The record in `data`.

    Args:
        data: bytes of one document.
        record_type: which record it must be.
        path: where it was read, for errors.

    Raises:
        RecordError: damaged, another record, of a newer or a too old version, or with a field missing or of a wrong
            type.
    """
    try:
        document = json.loads(data)
    except (ValueError, UnicodeDecodeError) as error:
        raise _unreadable(record_type, path, f"it is not JSON ({error})") from error
    return from_document(document, record_type, path)


def from_document(document: Any, record_type: type[R], path: str = "") -> R:
    """Like `decode`, from a JSON document."""
    if not isinstance(document, dict) or document.get("record") != record_type.RECORD:
        raise _unreadable(record_type, path, "it is something else")
    version = document.get("v")
    newest = record_type.VERSION
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _unreadable(record_type, path, f"its version is {version!r}")
    if version > newest:
        raise RecordError(
            f"the record {record_type.RECORD!r} has version {version}, this tidegate reads up to {newest}",
            where=path,
            cause="a newer tidegate wrote it",
            remedy="Upgrade tidegate here",
        )
    if version < newest - 1:
        raise RecordError(
            f"the record {record_type.RECORD!r} has version {version}, this tidegate reads {newest - 1} and {newest}",
            where=path,
            cause="a tidegate that is too old wrote it",
            remedy="Read it with the release in between",
        )
    if version < newest:
        upgrade = getattr(record_type, "upgrade", None)
        document = upgrade(document) if upgrade is not None else document
    try:
        record: R = _built(record_type, document)
    except (TypeError, ValueError) as error:
        raise _unreadable(record_type, path, str(error)) from error
    return record


def _unreadable(record_type: type[DurableRecord], path: str, cause: str) -> RecordError:
    return RecordError(
        f"this is not a readable record {record_type.RECORD!r}",
        where=path,
        cause=cause,
        remedy="Something other than tidegate changed the job directory; restore the file or use another job id",
    )


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


@functools.cache
def _field_types(record_type: type) -> dict[str, Any]:
    return typing.get_type_hints(record_type)


def _built(record_type: Any, document: Mapping[str, Any]) -> Any:
    hints = _field_types(record_type)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(record_type):
        if field.name in document:
            values[field.name] = _checked(document[field.name], hints[field.name], field.name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"field {field.name!r} is missing")
    return record_type(**values)


def _checked(value: Any, expected: Any, name: str) -> Any:
    """`value` as the declared type of a field, or TypeError. Knows the types that records use."""
    if expected is Any:
        return value
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        chosen = [argument for argument in arguments if argument is not type(None)]
        assert len(chosen) == 1, f"field {name!r}: records use no other unions than with None"
        return _checked(value, chosen[0], name)
    if origin is typing.Literal:
        if value in arguments:
            return value
    elif origin is tuple:
        if isinstance(value, list):
            return tuple(_checked(item, arguments[0], name) for item in value)
    elif origin is not None and issubclass(origin, Mapping):
        if isinstance(value, dict):
            return value
    elif dataclasses.is_dataclass(expected):
        if isinstance(value, dict):
            return _built(expected, value)
    elif expected is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif isinstance(value, expected):
        return value
    raise TypeError(f"field {name!r} is {value!r}")
