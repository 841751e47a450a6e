"""Protobuf: messages of a schema that the pipeline declares, or that a schema registry has."""

from __future__ import annotations

import base64
import copy
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa

from tidegate.connectors.formats.avro.encode_kernels import MAX_NUMBER_BYTES
from tidegate.connectors.formats.decoded_rows import Indices, as_binary, assemble, null_records, selected
from tidegate.connectors.formats.encoded_records import CannotEncodeError
from tidegate.connectors.formats.interface import DecodedRecords, Format, RecordDecoder, RecordEncoder
from tidegate.connectors.formats.protobuf.descriptors import (
    index_path,
    message_at,
    message_class,
    message_descriptor,
    registered_set,
)
from tidegate.connectors.formats.protobuf.message_columns import column_of, encodable_problem, messages_of
from tidegate.connectors.formats.protobuf.message_types import MessageField, message_fields, message_schema
from tidegate.connectors.formats.schema_registry import (
    HEAD_BYTES,
    MAGIC,
    NO_HEAD,
    RegistryClient,
    SchemaRegistry,
    UnknownSchemaError,
)
from tidegate.connectors.formats.schema_text import read_schema_file, schema_url
from tidegate.connectors.found_schema import FoundSchema
from tidegate.errors import OptionError, PipelineError, SnapshotError

SERIALIZED = "serialized"
"""Form in which a registry returns a Protobuf schema: compiled, because its source text needs a compiler."""
MAX_NESTING = 32
"""Most numbers in the path of a message in its file."""
_PINNED = b"tidegate.protobuf"
"""Key in the metadata of a found schema: JSON with the FileDescriptorSet in base64, and the name of the message."""
_NOT_PROTOBUF = "the bytes are no message of the schema"

TimestampUnit = Literal["us", "ns"]


class Protobuf(Format):
    """Protobuf messages. The columns are the fields of the message, by their numbers.

    A field that can be absent is null then. Other fields have the default of their type. Fields that the schema does
    not know are not decoded.

    Args:
        descriptor: a serialized FileDescriptorSet, or the path or fsspec URL of a file with it, as
            `protoc --include_imports --descriptor_set_out=FILE` writes it.
        message: full name of the message, such as `shop.Order`. None: the first message of the last file.
        registry: the schema registry. Each record then begins with the id of its schema and the place of its message.
        subject: subject of the schema, such as `orders-value`, if `descriptor` is not passed, or rows are encoded. The
            newest version when the job is first submitted.
        timestamp_unit: unit of the columns of `google.protobuf.Timestamp` and `Duration`: `us` (default), which drops
            further digits, or `ns`, in which only the years 1678 to 2262 fit.

    Raises:
        OptionError: the arguments contradict each other.
    """

    def __init__(
        self,
        descriptor: bytes | str | os.PathLike[str] | None = None,
        message: str | None = None,
        *,
        registry: SchemaRegistry | None = None,
        subject: str | None = None,
        timestamp_unit: TimestampUnit = "us",
    ) -> None:
        if descriptor is None and (registry is None or not subject):
            raise OptionError(
                "Protobuf needs a descriptor, or a registry with a subject",
                where="Protobuf(descriptor=, registry=, subject=)",
                remedy="Pass descriptor=, or registry= and subject=",
            )
        if subject and registry is None:
            raise OptionError("subject= needs a registry", where="Protobuf(subject=)", remedy="Pass registry=")
        if timestamp_unit not in ("us", "ns"):
            raise OptionError(
                f"timestamp_unit={timestamp_unit!r} is unknown",
                where="Protobuf(timestamp_unit=)",
                remedy="Use 'us' or 'ns'",
            )
        self._bytes = descriptor if isinstance(descriptor, bytes) else None
        self._file = None if descriptor is None or isinstance(descriptor, bytes) else schema_url(os.fspath(descriptor))
        self._message, self._registry, self._subject = message or "", registry, subject
        self._unit = timestamp_unit
        self._found: tuple[bytes, str] | None = None

    def schema(self) -> pa.Schema:
        """Return the columns of the message.

        Raises:
            PipelineError: the descriptor or the message is missing or damaged, or the message contains itself.
            OutageError: the registry does not answer.
        """
        return message_schema(message_fields(self._descriptor(), self._unit))

    def found_schema(self) -> FoundSchema | None:
        """Return the schema of the subject or the file; None: the pipeline has its bytes."""
        if self._found is None:
            return None
        content, where = self._found
        document = json.dumps({"descriptor": base64.b64encode(content).decode(), "where": where})
        return FoundSchema(self.schema().with_metadata({_PINNED: document.encode()}), where)

    def with_found_schema(self, found: FoundSchema) -> Self:
        """Return the same format with this descriptor; itself, if the pipeline has the bytes."""
        if self._bytes is not None:
            return self
        try:
            document = json.loads((found.schema.metadata or {})[_PINNED])
            pinned = base64.b64decode(document["descriptor"], validate=True), str(document["where"])
        except (LookupError, TypeError, ValueError) as error:
            raise SnapshotError(
                "the recorded Protobuf schema is damaged, or of another format",
                where=found.where,
                cause=type(error).__name__,
                remedy="Pass the descriptor= as bytes, or restore another snapshot",
            ) from error
        other = copy.copy(self)
        other._found = pinned
        return other

    def _descriptor(self) -> Any:
        content, where = self._content()
        return message_descriptor(content, self._message, where=where)

    def _content(self) -> tuple[bytes, str]:
        """Return the FileDescriptorSet and its place; the same each time."""
        if self._bytes is not None:
            return self._bytes, "Protobuf(descriptor=)"
        if self._found is None:
            if self._file is not None:
                self._found = read_schema_file(self._file, "Protobuf(descriptor=)"), self._file
            else:
                assert self._registry is not None and self._subject is not None, "checked by the constructor"
                latest = self._registry.open().latest(self._subject, SERIALIZED)
                where = f"subject {self._subject!r} of {self._registry.url}"
                self._found = registered_set(latest, where), where
        return self._found

    def create_decoder(self, columns: Sequence[str] | None = None) -> RecordDecoder:
        """Return a decoder."""
        descriptor = self._descriptor()
        heads = None if self._registry is None else _Heads(self._registry, descriptor.full_name)
        return _ProtobufDecoder(descriptor, message_fields(descriptor, self._unit), columns, heads)

    def check_encodable(self, schema: pa.Schema) -> None:
        """Check that each column has a field that holds its values. Fields without a column are absent."""
        if self._registry is not None and self._subject is None:
            raise PipelineError(
                "the subject for the Protobuf schema is not known",
                where=self.describe(),
                remedy="Pass subject= to Protobuf: the registry must have the schema of the rows under it",
            )
        fields = {one.name: one for one in message_fields(self._descriptor(), self._unit)}
        problems = [f"the message has no field {name!r}" for name in schema.names if name not in fields]
        problems += [
            f"column {one.name!r}: {problem}"
            for one in schema
            if one.name in fields and (problem := encodable_problem(one.type, fields[one.name]))
        ]
        if problems:
            raise PipelineError(
                "the rows do not fit the Protobuf message",
                where=self.describe(),
                cause="; ".join(problems),
                remedy="Rename, cast or leave out columns, or change the message",
            )

    def create_encoder(self, schema: pa.Schema) -> RecordEncoder:
        """Return an encoder. It asks the registry when it encodes the first batch."""
        self.check_encodable(schema)
        descriptor = self._descriptor()
        fields = message_fields(descriptor, self._unit)
        return _ProtobufEncoder(descriptor, fields, lambda: self._head(descriptor), self.describe())

    def _head(self, descriptor: Any) -> bytes:
        """Return the bytes before each message: id of the newest schema of the subject, and place of the message."""
        if self._registry is None:
            return b""
        assert self._subject is not None, "checked by check_encodable"
        latest = self._registry.open().latest(self._subject, SERIALIZED)
        path = index_path(descriptor)
        if message_at(registered_set(latest, self._registry.url), path) != descriptor.full_name:
            raise PipelineError(
                f"the newest schema of the subject does not have the message {descriptor.full_name!r} in its place",
                where=self.describe(),
                remedy="Register the schema of the message, or pass another subject",
            )
        places = b"\0" if path == (0,) else b"".join(map(_zigzag, (len(path), *path)))
        return bytes([MAGIC]) + latest.schema_id.to_bytes(HEAD_BYTES - 1, "big") + places

    def describe(self) -> str:
        """Return the message, and where its schema comes from."""
        place = self._file or "descriptor" if self._registry is None else f"{self._subject} of {self._registry.url}"
        return f"Protobuf({self._message or 'first message'}, {place})"


class _Heads:
    """Heads of records: the id of the schema, and the place of the message in it.

    Args:
        message: full name of the message that records must hold.
    """

    def __init__(self, registry: SchemaRegistry, message: str) -> None:
        self._registry, self._message = registry, message
        self._client: RegistryClient | None = None
        self._known: dict[bytes, str] = {}

    def body(self, value: bytes) -> tuple[bytes, str]:
        """Return the bytes of the message, and why the record is bad, or an empty text."""
        if len(value) <= HEAD_BYTES or value[0] != MAGIC:
            return b"", NO_HEAD
        path, end = _message_path(value)
        if path is None:
            return b"", "the record does not hold the place of its message"
        head = value[:end]
        reason = self._known.get(head)
        if reason is None:
            schema_id = int.from_bytes(value[1:HEAD_BYTES], "big")
            try:
                reason = self._known[head] = self._reason(schema_id, path)
            except UnknownSchemaError:  # not kept: another node of the registry may learn of it a moment later
                reason = f"the schema registry has no schema with the id {schema_id}"
        return value[end:], reason

    def _reason(self, schema_id: int, path: Sequence[int]) -> str:
        self._client = self._client or self._registry.open()
        found = self._client.schema(schema_id, SERIALIZED)
        try:
            name = message_at(registered_set(found, self._registry.url), path)
        except PipelineError as error:
            return f"schema {schema_id} cannot be used: {error.cause}"
        return "" if name == self._message else f"the record holds a message {name}, and not {self._message}"


class _ProtobufDecoder(RecordDecoder):
    def __init__(
        self, descriptor: Any, fields: tuple[MessageField, ...], columns: Sequence[str] | None, heads: _Heads | None
    ) -> None:
        self._parse: Callable[[bytes], Any] = message_class(descriptor).FromString
        self._fields, self._heads = fields, heads
        self._schema = message_schema(fields)
        self._columns = selected(self._schema, columns).names

    def decode(self, values: pa.Array) -> DecodedRecords:
        """See `RecordDecoder`."""
        bad: dict[int, str] = {}
        kept: list[int] = []
        messages: list[Any] = []
        parse, heads = self._parse, self._heads
        for record, value in enumerate(as_binary(values).to_pylist()):
            if value is None:
                continue
            if heads is not None:
                value, reason = heads.body(value)
                if reason:
                    bad[record] = reason
                    continue
            try:
                messages.append(parse(value))
            except Exception:  # its class depends on the implementation of the package
                bad[record] = _NOT_PROTOBUF
            else:
                kept.append(record)
        batch, of_row = self._batch(messages, kept, bad)
        return assemble(len(values), batch.select(self._columns), of_row, null_records(values), bad)

    def _batch(self, messages: list[Any], records: list[int], bad: dict[int, str]) -> tuple[pa.RecordBatch, Indices]:
        """Return all columns: one that is not needed can make a record bad, too."""
        try:
            columns = [column_of(field, messages) for field in self._fields]
        except (ValueError, OverflowError, pa.ArrowException):
            # A text of proto2 that is no UTF-8, or a time beyond its column: look for it record by record.
            kept = [place for place, message in enumerate(messages) if self._fits(message, records[place], bad)]
            return self._batch([messages[place] for place in kept], [records[place] for place in kept], bad)
        if not columns:
            batch = pa.record_batch({"rows": pa.nulls(len(messages))}).select([])
        else:
            batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return batch, np.array(records, np.int64)

    def _fits(self, message: Any, record: int, bad: dict[int, str]) -> bool:
        for field in self._fields:
            try:
                column_of(field, [message])
            except (ValueError, OverflowError, pa.ArrowException):
                bad[record] = f"field {field.name!r} has a value that is no {field.column.type}"
                return False
        return True


class _ProtobufEncoder(RecordEncoder):
    """Args: head: returns the bytes before each message."""

    def __init__(
        self, descriptor: Any, fields: tuple[MessageField, ...], head: Callable[[], bytes], where: str
    ) -> None:
        self._descriptor, self._fields, self._find_head, self._where = descriptor, fields, head, where
        self._head: bytes | None = None

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """See `RecordEncoder`."""
        if self._head is None:
            self._head = self._find_head()
        columns = dict(zip(batch.schema.names, batch.columns))
        try:
            messages = messages_of(message_class, self._descriptor, self._fields, columns, batch.num_rows)
        except CannotEncodeError as error:
            raise error.as_pipeline_error(self._where) from error
        head = self._head
        return pa.array([head + message.SerializeToString() for message in messages], pa.binary())


def _zigzag(number: int) -> bytes:
    """Return a number in zigzag form."""
    word, out = number << 1, bytearray()
    while word >= 0x80:
        out.append(word & 0x7F | 0x80)
        word >>= 7
    return bytes([*out, word])


def _message_path(value: bytes) -> tuple[tuple[int, ...] | None, int]:
    """Return the place of the message after the head of a record, and where the message begins; None: it is damaged."""
    at, numbers = HEAD_BYTES, list[int]()
    wanted = 1
    while len(numbers) < wanted:
        word = shift = 0
        while True:
            if at >= len(value) or shift >= 7 * MAX_NUMBER_BYTES:
                return None, at
            byte = value[at]
            at, word, shift = at + 1, word | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        numbers.append(word >> 1 ^ -(word & 1))
        if len(numbers) == 1:
            if numbers[0] == 0:  # short for the first message of the file
                return (0,), at
            if not 0 < numbers[0] <= MAX_NESTING:
                return None, at
            wanted = 1 + numbers[0]
    return tuple(numbers[1:]), at
