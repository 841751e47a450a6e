"""Encoding of durable records: canonical JSON, checked against the field types of the record's class.

A record is a frozen dataclass with class variables `RECORD` (its name) and `VERSION`. Its document is
`{"record": <name>, "v": <version>, <fields>...}` with sorted keys, no spaces, UTF-8 and a line break at the end.
Readers accept versions N and N-1. They ignore unknown fields in these versions.
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
from tidegate.jobs.json_documents import MAX_RECORD_BYTES, JsonDocumentError, Readable, parse_json, read_bounded

_canonical_encoder = functools.partial(
    json.JSONEncoder, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_DOCUMENTS = _canonical_encoder()


class DurableRecord(Protocol):
    """The form of a record: a dataclass with these class variables. A class with a version above 1 may have a class
    method `upgrade(document) -> document`, which converts version N-1 to N."""

    RECORD: ClassVar[str]
    VERSION: ClassVar[int]
    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=DurableRecord)


def canonical(document: object) -> bytes:
    """Return canonical JSON: equal documents give equal bytes. Raises RecordError for a value that is not JSON."""
    return _written(_DOCUMENTS, document)


def encode(record: DurableRecord) -> bytes:
    """Return the bytes of a record. Raises RecordError for a value that is not JSON, or a record that nobody can read
    because it is too long."""
    # Not `to_document`: the encoder converts nested values while it writes, which saves a copy of the whole record.
    data = _written(_RECORDS, {"record": record.RECORD, "v": record.VERSION, **_by_name(record)})
    if len(data) > MAX_RECORD_BYTES:
        raise RecordError(
            f"the record {record.RECORD!r} is too long to be written: {len(data):,} bytes",
            cause=f"readers accept at most {MAX_RECORD_BYTES:,} bytes",
            remedy="Store large values in files, and pass their paths",
        )
    return data


def to_document(record: DurableRecord) -> dict[str, Any]:
    """Return a record as a JSON document."""
    document = plain(record)
    return {"record": record.RECORD, "v": record.VERSION, **document}


def decode(data: bytes, record_type: type[R], path: str = "") -> R:
    """Decode a record.

    Args:
        data: bytes of one document.
        record_type: expected class of the record.
        path: place of the record, for errors.

    Raises:
        RecordError: the data is damaged, too long or nested too deeply, is another record, has a newer or too old
            version, or has a field that is missing or of a wrong type.
    """
    try:
        document = parse_json(data)
    except JsonDocumentError as error:
        raise _unreadable(record_type, path, str(error)) from error
    return from_document(document, record_type, path)


def read_record(store: Readable, path: str, record_type: type[R]) -> R:
    """Read the record at `path`. Reads no more of a file that is too long than the longest record.

    Raises:
        NotFoundError: there is none.
        RecordError: as `decode`.
        StoreError: the store does not answer.
    """
    return decode(read_bounded(store, path), record_type, path)


def from_document(document: Any, record_type: type[R], path: str = "") -> R:
    """Build a record from a JSON document. Otherwise as `decode`."""
    if not isinstance(document, dict) or document.get("record") != record_type.RECORD:
        raise _unreadable(record_type, path, f"the content is not a record of the kind {record_type.RECORD!r}")
    version = document.get("v")
    newest = record_type.VERSION
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _unreadable(record_type, path, f"its version is {version!r}, not a number from 1")
    if version > newest:
        raise RecordError(
            f"the record {record_type.RECORD!r} has version {version}, but this tidegate reads versions up to {newest}",
            where=path,
            cause="a newer tidegate wrote it",
            remedy="Upgrade tidegate in this environment",
        )
    if version < newest - 1:
        raise RecordError(
            f"the record {record_type.RECORD!r} has version {version}, but this tidegate reads {newest - 1} and "
            f"{newest}",
            where=path,
            cause="a much older tidegate wrote it",
            remedy=f"Use a tidegate release that reads version {version}",
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
        f"the record {record_type.RECORD!r} cannot be read",
        where=path,
        cause=cause,
        remedy="A program other than tidegate may have changed this file. Restore it from a backup, or use another job "
        "id",
    )


def _written(encoder: json.JSONEncoder, document: object) -> bytes:
    try:
        return encoder.encode(document).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(
            "a value cannot be written as JSON",
            cause=str(error),
            remedy="Use text, finite numbers, booleans, null, lists and mappings with text keys",
        ) from error


def _by_name(record: Any) -> dict[str, Any]:
    record_type: Any = type(record)
    return {field.name: getattr(record, field.name) for field in _fields_of(record_type)}


def _inside_a_record(value: Any) -> dict[str, Any]:
    """Convert a dataclass or mapping inside a record for the JSON encoder."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _by_name(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"JSON has no value for the type {type(value).__name__}: {value!r}")


_RECORDS = _canonical_encoder(default=_inside_a_record)


def plain(value: Any) -> Any:
    """Return `value` with each dataclass converted to a mapping of its fields, and each tuple to a list."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(item) for name, item in _by_name(value).items()}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


class _Field(typing.NamedTuple):
    """A field of a record: its name, whether a document must have it, and the function that decodes its value."""

    name: str
    is_required: bool
    value_of: Callable[[Any], Any]


@functools.cache
def _fields_of(record_type: Any) -> tuple[_Field, ...]:
    """Return the fields of a record's class. Cached, because resolving type hints is slow."""
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
    """Build a dataclass from a document; the inverse of `plain`. Fields that the class does not have are ignored.

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
    """Return a function that decodes a field's value, or raises TypeError. It supports the types that records use."""
    if expected is Any:
        return lambda value: value
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    # Two spellings with different origins: `Optional[X]` and `X | None`.
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
        # `bool` is a subclass of `int` in Python, so that `true` would pass as the number 1.
        return _checked(name, lambda value: isinstance(value, int) and not isinstance(value, bool))
    return _checked(name, lambda value: isinstance(value, expected))


def _checked(name: str, holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if holds(value):
            return value
        raise TypeError(f"field {name!r} has the value {value!r}, which has a wrong type or is not allowed")

    return check
