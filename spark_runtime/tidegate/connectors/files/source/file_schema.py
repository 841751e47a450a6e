"""Schema of the files of `Files` and `Replay`: which columns are read, and what happens if a file has fewer or more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tidegate.connectors.files.source.bad_records import OnBadRecord
from tidegate.connectors.files.source.character_encoding import CharacterEncoding
from tidegate.errors import OptionError, PipelineError

DEFAULT_NULL_VALUES = ("",)
MAX_NAMED_COLUMNS = 20
"""Most columns named in one error message."""
OnMissingField = Literal["null", "fail"]
OnNewField = Literal["ignore", "fail"]

_CHOICES = {
    "on_missing_field": (None, "null", "fail"),
    "on_new_field": ("ignore", "fail"),
    "on_bad_record": ("fail", "skip", "dead_letter"),
}


@dataclass(frozen=True)
class FilePolicy:
    """Options for reading files.

    Attributes:
        null_values: texts that mean null in CSV, in every type. A string in quotes is never null.
        encoding: encoding of text files.
        on_missing_field: what happens if a file lacks a column (JSON: no record of its head has it): `null`, or `fail`;
        None: `null` if the user declared the schema, else `fail`.
        on_new_field: what happens if a file has a column that the schema lacks: `ignore` and count it, or `fail`.
        on_bad_record: what happens if a record cannot be read.
        text: the encoding, checked.
    """

    null_values: Sequence[str] = DEFAULT_NULL_VALUES
    encoding: str = "utf-8"
    on_missing_field: OnMissingField | None = None
    on_new_field: OnNewField = "ignore"
    on_bad_record: OnBadRecord = "fail"
    text: CharacterEncoding = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.null_values, str):
            raise OptionError(
                f"null_values must be a list of texts, but is the text {self.null_values!r}",
                where="null_values",
                remedy=f"Write it as a list: null_values=[{self.null_values!r}]",
            )
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                choices = ", ".join(repr(choice) for choice in known if choice is not None)
                raise OptionError(f"{name}={value!r} is unknown", where=name, remedy=f"Use one of {choices}")
        object.__setattr__(self, "text", CharacterEncoding(self.encoding))

    @property
    def stops_at_bad(self) -> bool:
        """Return whether a bad record fails the job."""
        return self.on_bad_record == "fail"


@dataclass(frozen=True)
class FileSchema:
    """Columns of a set of files.

    Attributes:
        emitted: schema of the records. Files are compared with it, and records of text are checked against it.
        known: schema of all columns that are not new in a file; includes the columns of `emitted`.
        inferred: the types were found in the first file, so they must keep every digit of other files, too.
        read: columns of `emitted` that batches of a Parquet file have. The job uses no others.
    """

    emitted: pa.Schema
    known: pa.Schema
    inferred: bool
    read: pa.Schema


@dataclass(frozen=True)
class Differences:
    """Differences of a file from a schema, by path of the field (`a.b`: in a struct).

    Attributes:
        missing: fields that the file lacks.
        new: fields that only the file has.
        types: (field, type in the file, type in the schema) of fields with another type.
    """

    missing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    types: tuple[tuple[str, pa.DataType, pa.DataType], ...] = ()


def differences(there: pa.Schema, here: FileSchema) -> Differences:
    """Return the differences of a file with the schema `there`."""
    missing, new, types = [], [], []
    for kind, path, one, other in _compared(list(there), list(here.known), ""):
        if path.partition(".")[0] in here.emitted.names and kind == "missing":
            missing.append(path)
        elif kind == "new":
            new.append(path)
        elif kind == "type" and path.partition(".")[0] in here.emitted.names:
            types.append((path, one, other))
    return Differences(tuple(missing), tuple(new), tuple(types))


def _compared(
    there: Sequence[pa.Field], here: Sequence[pa.Field], prefix: str
) -> Iterator[tuple[str, str, pa.DataType, pa.DataType]]:
    by_name = {field.name: field.type for field in there}
    known = {field.name for field in here}
    for field in here:
        path = prefix + field.name
        if field.name not in by_name:
            yield "missing", path, field.type, field.type
            continue
        kind = by_name[field.name]
        inner, own = _fields_of(kind), _fields_of(field.type)
        if inner is not None and own is not None:
            yield from _compared(inner, own, path + ".")
        elif kind != field.type:
            yield "type", path, kind, field.type
    for field in there:
        if field.name not in known:
            yield "new", prefix + field.name, field.type, field.type


def _fields_of(kind: pa.DataType) -> list[pa.Field] | None:
    """Return the fields of a struct, or of the structs in a list; None: neither."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _fields_of(kind.value_type)
    return [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) else None


def _named(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED_COLUMNS
    return ", ".join(names[:MAX_NAMED_COLUMNS]) + (f" and {more} more" if more > 0 else "")


def missing_columns(path: str, against: str, names: Sequence[str]) -> PipelineError:
    """Return the error for a file that lacks required columns."""
    return PipelineError(
        f"the input file has no column {names[0]!r}",
        where=f"{path}, compared with {against}",
        cause=f"missing columns: {_named(names)}",
        remedy='Set on_missing_field="null" to read missing columns as null, or leave them out with columns=',
    )


def refuse_doubled(path: str, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise PipelineError if a file has a column that is read more than once."""
    for name in wanted:
        if names.count(name) > 1:
            raise PipelineError(
                f"the input file has {names.count(name)} columns named {name!r}",
                where=path,
                cause=f"the columns are {', '.join(names)}",
                remedy=f"Give each column of the file its own name, or leave {name!r} out with columns=",
            )


def new_columns(path: str, against: str, names: Sequence[str]) -> PipelineError:
    """Return the error for a file with unknown columns, if they are not allowed."""
    return PipelineError(
        f"the input file has a new column {names[0]!r}" if names else "the input file has a new column",
        where=f"{path}, compared with {against}",
        cause=f"new columns: {_named(names)}",
        remedy='Set on_new_field="ignore" to skip new columns, or declare them in schema=',
    )
