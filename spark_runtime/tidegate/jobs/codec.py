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
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from tidegate.errors import RecordError

_canonical_encoder = functools.partial(
    json.JSONEncoder, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_DOCUMENTS = _canonical_encoder()


class DurableRecord(Protocol):
    """What `encode` and `decode` work on: a dataclass with these class variables. One whose version is past 1 may have
    a class method `upgrade(document) -> document` that turns version N-1 into N."""

    RECORD: ClassVar[str]
    VERSION: ClassVar[int]
    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=DurableRecord)


def canonical(document: object) -> bytes:
    """Canonical JSON: the same document gives the same bytes. Raises RecordError for what JSON cannot hold."""
    return _written(_DOCUMENTS, document)


def encode(record: DurableRecord) -> bytes:
    """The record's bytes."""
    return _written(_RECORDS, {"record": record.RECORD, "v": record.VERSION, **_by_name(record)})


def to_document(record: DurableRecord) -> dict[str, Any]:
    """The record as a JSON document."""
    document = plain(record)
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
        document = json.loads(data.decode())
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
        record: R = build(record_type, document)
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


def _written(encoder: json.JSONEncoder, document: object) -> bytes:
    try:
        return encoder.encode(document).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise RecordError(
            "a value cannot be written as JSON",
            cause=str(error),
            remedy="Use texts, finite numbers, booleans, null, lists and mappings with text keys",
        ) from error


def _by_name(record: Any) -> dict[str, Any]:
    record_type: Any = type(record)
    return {field.name: getattr(record, field.name) for field in _fields_of(record_type)}


def _inside_a_record(value: Any) -> dict[str, Any]:
    """What JSON does not know and records may hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _by_name(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


_RECORDS = _canonical_encoder(default=_inside_a_record)


def plain(value: Any) -> Any:
    """`value` with every dataclass in it as a mapping of its fields, and every tuple as a list."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(item) for name, item in _by_name(value).items()}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


class _Field(typing.NamedTuple):
    """Of a record: its name, whether a document must hold it, and what makes its value of what the document holds."""

    name: str
    is_required: bool
    value_of: Callable[[Any], Any]


@functools.cache
def _fields_of(record_type: Any) -> tuple[_Field, ...]:
    """The types are taken apart once, not at every record."""
    hints = typing.get_type_hints(record_type)
    return tuple(
        _Field(
            field.name,
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            _reader(hints[field.name], field.name),
        )
        for field in dataclasses.fields(record_type)
    )


def build(record_type: Any, document: Mapping[str, Any]) -> Any:
    """Inverse of `plain` for a dataclass. Fields that the class does not have are ignored.

    Raises:
        TypeError, ValueError: a field is missing or has a wrong type.
    """
    values: dict[str, Any] = {}
    for name, is_required, value_of in _fields_of(record_type):
        if name in document:
            values[name] = value_of(document[name])
        elif is_required:
            raise ValueError(f"field {name!r} is missing")
    return record_type(**values)


def _reader(expected: Any, name: str) -> Callable[[Any], Any]:
    """What gives a value as the declared type of a field, or raises TypeError. Knows the types that records use."""
    if expected is Any:
        return lambda value: value
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        chosen = [argument for argument in arguments if argument is not type(None)]
        assert len(chosen) == 1 < len(arguments), f"field {name!r}: records use no other unions than with None"
        given = _reader(chosen[0], name)
        return lambda value: None if value is None else given(value)
    if origin is tuple:
        item = _reader(arguments[0], name)
        length = None if arguments[-1] is Ellipsis else len(arguments)
        listed = _checked(name, lambda value: isinstance(value, list) and length in (None, len(value)))
        return lambda value: tuple(item(each) for each in listed(value))
    if dataclasses.is_dataclass(expected):
        document = _checked(name, lambda value: isinstance(value, dict))
        return lambda value: build(expected, document(value))
    if origin is typing.Literal:
        return _checked(name, lambda value: value in arguments)
    if origin is not None and issubclass(origin, Mapping):
        mapping = _checked(name, lambda value: isinstance(value, dict))
        if not dataclasses.is_dataclass(arguments[1]):
            return mapping
        item = _reader(arguments[1], name)
        return lambda value: {key: item(each) for key, each in mapping(value).items()}
    if expected is int:
        return _checked(name, lambda value: isinstance(value, int) and not isinstance(value, bool))
    return _checked(name, lambda value: isinstance(value, expected))


def _checked(name: str, holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if holds(value):
            return value
        raise TypeError(f"field {name!r} is {value!r}")

    return check
