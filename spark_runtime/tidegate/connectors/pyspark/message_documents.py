"""Commit messages of PySpark's data source writers as JSON documents.

Spark pickles the messages. tidegate does not read pickled objects from storage: a document names the class of a message
and holds its attributes. Texts, numbers, booleans and None stand for themselves, and lists are arrays. Every other
value is an object whose first name is its kind:

    {"object": "shop.sink:Written", "fields": {"rows": 3, "name": "a", "files": {"tuple": ["x", "y"]}}}
    {"bytes": "AAE="}   {"tuple": [1, 2]}   {"dict": [["key", 1]]}   {"float": "nan"}   {"int": "ff00"}
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import math
from collections.abc import Mapping
from types import BuiltinMethodType
from typing import Any

from tidegate.errors import DataError, SnapshotError

MAX_DEPTH = 32
"""Most values within each other. A value that contains itself has no end."""
MOST_BITS = 8_192
"""Bits of an integer that JSON holds as a number. Python refuses to convert more than 4,300 digits, some 14,000 bits;
greater integers are hexadecimal texts.
"""
_OWN_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def message_document(message: Any, where: str) -> Mapping[str, Any]:
    """Return a commit message as a JSON-able document.

    Args:
        where: name of the data source and the method, for the error.

    Raises:
        DataError: it is no `WriterCommitMessage`, its class cannot be imported, or an attribute has another type than
            int, float, str, bool, None, bytes, list, tuple, dict, or a dataclass of these.
    """
    from pyspark.sql.datasource import WriterCommitMessage

    if not isinstance(message, WriterCommitMessage):
        raise DataError(
            "write() of a Python data source must return a WriterCommitMessage",
            where=where,
            cause=f"it returned {'None' if message is None else f'a {type(message).__name__}'}",
            remedy="Return an object of a subclass of pyspark.sql.datasource.WriterCommitMessage, as Spark requires",
        )
    document: Mapping[str, Any] = _object(message, type(message).__name__, where, 0)
    return document


def message_of(document: Mapping[str, Any], where: str) -> Any:
    """Return the commit message of a document.

    Raises:
        SnapshotError: the class cannot be imported, or the document is damaged.
    """
    try:
        return _value_of(document)
    except (ImportError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SnapshotError(
            "a commit message of a Python data source cannot be read",
            where=where,
            cause=f"{type(error).__name__}: {error}",
            remedy="Restore with the version of the data source's module that wrote the message",
        ) from error


def _document(value: Any, place: str, where: str, depth: int) -> Any:
    kind = type(value)  # exactly: a subclass, such as an enumeration or a number of numpy, has more than its value
    if depth > MAX_DEPTH:
        raise _refused(where, f"{place} is nested more than {MAX_DEPTH} deep")
    if kind is int and value.bit_length() > MOST_BITS:
        return {"int": format(value, "x")}
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is list:
        return [_document(one, f"{place}[{n}]", where, depth + 1) for n, one in enumerate(value)]
    if kind is tuple:
        return {"tuple": [_document(one, f"{place}[{n}]", where, depth + 1) for n, one in enumerate(value)]}
    if kind is dict:
        pairs = [
            [
                _document(key, f"a key of {place}", where, depth + 1),
                _document(one, f"{place}[{key!r}]", where, depth + 1),
            ]
            for key, one in value.items()
        ]
        return {"dict": pairs}
    if dataclasses.is_dataclass(kind):
        return _object(value, place, where, depth)
    raise _refused(where, f"{place} is a {kind.__module__}.{kind.__qualname__}")


def _object(value: Any, place: str, where: str, depth: int) -> Any:
    kind = type(value)
    path = f"{kind.__module__}:{kind.__qualname__}"
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__ or _imported(path) is not kind:
        raise _refused(where, f"the class {path} of {place} cannot be imported by this name")
    if own := [name for name in _OWN_PICKLING if getattr(kind, name, None) is not getattr(object, name, None)]:
        # A frozen dataclass with slots has them from `dataclass`, and its fields are all it has.
        if not dataclasses.is_dataclass(kind) or not hasattr(kind, "__slots__"):
            raise _refused(where, f"the class {path} of {place} pickles itself, by {own[0]}")
    if hidden := _not_an_attribute(kind):
        raise _refused(where, f"the class {path} of {place} {hidden}")
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    values = {name: getattr(value, name) for name in names if hasattr(value, name)} | getattr(value, "__dict__", {})
    return {
        "object": path,
        "fields": {name: _document(one, f"{place}.{name}", where, depth + 1) for name, one in values.items()},
    }


def _not_an_attribute(kind: type) -> str | None:
    """Return what objects of a class hold besides attributes in `__dict__` and fields of a dataclass; None: nothing."""
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set[str]()
    for base in kind.__mro__[:-1]:
        # A class of Python's own, or of an extension: its objects have a value that is in no attribute.
        if isinstance(base.__dict__.get("__new__"), BuiltinMethodType):
            return f"is a {base.__name__}"
        slots = base.__dict__.get("__slots__", ())
        names = {slots} if isinstance(slots, str) else set(slots)
        if others := sorted(names - fields - {"__dict__", "__weakref__"}):
            return f"has the slot {others[0]!r}, and is no dataclass with such a field"
    return None


def _value_of(document: Any) -> Any:
    if isinstance(document, list):
        return [_value_of(one) for one in document]
    if not isinstance(document, dict):
        return document
    match document:
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"float": text}:
            return float(text)
        case {"int": text}:
            return int(text, 16)
        case {"tuple": values}:
            return tuple(_value_of(one) for one in values)
        case {"dict": pairs}:
            return {_value_of(key): _value_of(one) for key, one in pairs}
        case {"object": path, "fields": fields}:
            return _restored(path, {name: _value_of(one) for name, one in fields.items()})
    raise ValueError(f"a value of kind {', '.join(map(repr, document)) or 'nothing'} is unknown")


def _restored(path: str, values: Mapping[str, Any]) -> Any:
    """Return an object with these attributes. As with pickle, its `__init__` does not run."""
    from pyspark.sql.datasource import WriterCommitMessage

    kind = _imported(path)
    # No other class: whoever can write to the storage must not be able to make objects of any class.
    if not isinstance(kind, type) or not (dataclasses.is_dataclass(kind) or issubclass(kind, WriterCommitMessage)):
        raise TypeError(f"{path} is neither a commit message nor a dataclass")
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)  # also of a frozen dataclass
    return made


def _imported(path: str) -> Any:
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


def _refused(where: str, cause: str) -> DataError:
    return DataError(
        "a commit message of a Python data source cannot be stored",
        where=where,
        cause=cause,
        remedy="Return a dataclass of a module, with texts, numbers, booleans, None, bytes, lists, tuples, dicts and "
        "dataclasses; encode other values as texts",
    )
