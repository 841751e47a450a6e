"""Avro: records of a schema that the pipeline declares, or that a schema registry has."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.formats.avro.avro_schema import (
    NO_DEFAULT,
    PRIMITIVES,
    AvroType,
    default_array,
    parse_avro,
    simplified,
)
from tidegate.connectors.formats.avro.columns import column_schema
from tidegate.connectors.formats.avro.derived_schema import derived_schema
from tidegate.connectors.formats.avro.record_decoder import RecordReader, as_record
from tidegate.connectors.formats.avro.record_encoder import BatchEncoder, encoding_problem
from tidegate.connectors.formats.avro.resolution import Program, UnresolvableError
from tidegate.connectors.formats.decoded_rows import (
    Indices,
    as_binary,
    assemble,
    concatenated,
    null_records,
    selected,
)
from tidegate.connectors.formats.encoded_records import CannotEncodeError, binary_array
from tidegate.connectors.formats.interface import DecodedRecords, Format, RecordDecoder, RecordEncoder
from tidegate.connectors.formats.schema_registry import (
    HEAD_BYTES,
    NO_HEAD,
    RegisteredSchema,
    RegistryClient,
    SchemaRegistry,
    UnknownSchemaError,
    schema_ids,
    write_heads,
)
from tidegate.connectors.formats.schema_text import read_schema_file, schema_url
from tidegate.connectors.found_schema import FoundSchema
from tidegate.errors import OptionError, PipelineError, SnapshotError
from tidegate.state.arrow.arrow_buffers import ranges_of

AVRO = "AVRO"
"""Kind of Avro schemas in a registry."""
_PINNED = b"tidegate.avro"
"""Key in the metadata of a found schema: the JSON of an `AvroText`."""
_DECLARED = -1
"""Stands for the id of the writer's schema if the pipeline declares it."""
_WHERE = "Avro(schema=)"

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AvroText:
    """Text of a schema, with the texts of the schemas that it uses.

    Attributes:
        where: its place, for errors.
    """

    text: str
    used: tuple[str, ...]
    where: str

    def parsed(self) -> AvroType:
        """Return the type. Raises PipelineError."""
        return parse_avro(self.text, where=self.where, named=self.used)


class Avro(Format):
    """Avro records, decoded and encoded by compiled kernels.

    The columns are the fields of the reader's schema: `schema`, or the newest version of `subject` when the job is
    first submitted. Records of other versions are resolved to it by Avro's rules. With a registry, each record begins
    with a zero byte and the id of its writer's schema; without one, all records have `writer_schema`.

    Args:
        schema: the reader's schema: its JSON text, or the path or fsspec URL of a file with it. A schema that is no
            record gives the one column `column`.
        writer_schema: without a registry, the JSON text of the records' schema, if it is not `schema`.
        registry: the schema registry.
        subject: the subject of the schema that is read or written, such as `orders-value`. Decoding does not need it
            if `schema` is passed.
        register: when encoding, register the schema under the subject if it is not there. Without `schema`, it is
            derived from the columns. Default: False, the schema must be there.
        column: name of the column of a schema that is no record. Default: `value`.

    Raises:
        OptionError: the arguments contradict each other.
    """

    def __init__(
        self,
        schema: str | os.PathLike[str] | None = None,
        *,
        writer_schema: str | None = None,
        registry: SchemaRegistry | None = None,
        subject: str | None = None,
        register: bool = False,
        column: str = "value",
    ) -> None:
        if registry is None and (schema is None or subject or register):
            raise OptionError(
                "Avro needs a schema, or a registry with a subject",
                where="Avro(schema=, registry=, subject=)",
                remedy="Pass schema=, or registry= and subject=",
            )
        if registry is not None and schema is None and not subject:
            raise OptionError("Avro lacks the subject", where="Avro(subject=)", remedy="Pass subject= or schema=")
        if registry is not None and writer_schema is not None:
            raise OptionError(
                "the registry has the schemas of the records",
                where="Avro(writer_schema=)",
                remedy="Omit writer_schema=, or registry=",
            )
        if register and not subject:
            raise OptionError("register=True needs a subject", where="Avro(register=)", remedy="Pass subject=")
        self._registry, self._subject, self._register, self._column = registry, subject, register, column
        self._declared, self._file = _text_or_url(schema)
        self._writer = writer_schema
        self._found: AvroText | None = None

    def schema(self) -> pa.Schema:
        """Return the columns of the reader's schema.

        Raises:
            PipelineError: a schema is invalid, missing, recursive, or the writer's cannot be resolved to the reader's.
            OutageError: the registry does not answer.
        """
        reader = self.reader_type()
        if self._registry is None:
            self._declared_program(RecordReader(reader, []))
        return column_schema(simplified(reader))

    def found_schema(self) -> FoundSchema | None:
        """Return the schema of the subject or the file; None: the pipeline has its text."""
        if self._found is None:
            return None
        document = json.dumps({"text": self._found.text, "used": self._found.used, "where": self._found.where})
        return FoundSchema(self.schema().with_metadata({_PINNED: document.encode()}), self._found.where)

    def with_found_schema(self, found: FoundSchema) -> Self:
        """Return the same format with this reader's schema; itself, if the pipeline has the text."""
        if self._declared is not None:
            return self
        try:
            document = json.loads((found.schema.metadata or {})[_PINNED])
            pinned = AvroText(str(document["text"]), tuple(document["used"]), str(document["where"]))
        except (LookupError, TypeError, ValueError) as error:
            raise SnapshotError(
                "the recorded Avro schema is damaged, or of another format",
                where=found.where,
                cause=f"{type(error).__name__}",
                remedy="Pass schema= to Avro, or restore another snapshot",
            ) from error
        other = copy.copy(self)
        other._found = pinned
        return other

    def reader_type(self) -> AvroType:
        """Return the reader's schema, a record. See `schema` for the errors."""
        return as_record(self._reader_text().parsed(), self._column)

    def _reader_text(self) -> AvroText:
        if self._declared is not None:
            return AvroText(self._declared, (), _WHERE)
        if self._found is None:  # from now on, the same answer
            if self._file is not None:
                self._found = AvroText(_decoded(read_schema_file(self._file, _WHERE), self._file), (), self._file)
            else:
                self._found = self._latest()
        return self._found

    def _latest(self) -> AvroText:
        assert self._registry is not None and self._subject is not None, "checked by the constructor"
        return _registered_text(self._registry.open().latest(self._subject), self._registry)

    def _declared_program(self, reader: RecordReader) -> Program:
        text = self._reader_text()
        if self._writer is not None:
            text = AvroText(self._writer, (), "Avro(writer_schema=)")
        try:
            return reader.program(text.parsed())
        except UnresolvableError as error:
            raise PipelineError(
                "records of the writer's Avro schema cannot be read by the reader's schema",
                where=self.describe(),
                cause=str(error),
                remedy="Add a default or an alias to the reader's schema, or correct its types",
            ) from error

    def create_decoder(self, columns: Sequence[str] | None = None) -> RecordDecoder:
        """Return a decoder."""
        reader_type = self.reader_type()
        names = selected(column_schema(simplified(reader_type)), columns).names
        reader = RecordReader(reader_type, names)
        if self._registry is None:
            program = self._declared_program(reader)
            return _AvroDecoder(reader, lambda _: program, has_heads=False)
        writers = _RegisteredWriters(self._registry, reader)
        return _AvroDecoder(reader, writers.program, has_heads=True)

    def check_encodable(self, schema: pa.Schema) -> None:
        """Check that rows of this schema can be written with the Avro schema.

        Raises:
            PipelineError: a column has no field or does not fit it, or a field has neither a column nor a default.
            OutageError: the registry does not answer.
        """
        if self._registry is not None and self._subject is None:
            raise PipelineError(
                "the subject for the Avro schema is not known",
                where=self.describe(),
                remedy="Pass subject= to Avro: the registry must have the schema of the rows under it",
            )
        if self._derives():
            self._derived(schema)
        else:
            self._check_fields(schema, self.reader_type())

    def create_encoder(self, schema: pa.Schema) -> RecordEncoder:
        """Return an encoder. It asks the registry when it encodes the first batch."""
        return _AvroEncoder(schema, self._written_schema, self.describe())

    def _derives(self) -> bool:
        return self._register and self._declared is None and self._file is None

    def _derived(self, schema: pa.Schema) -> str:
        assert self._subject is not None, "register=True needs a subject"
        name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in self._subject)
        try:
            return json.dumps(derived_schema(schema, f"_{name}" if name[0].isdigit() else name))
        except CannotEncodeError as error:
            raise error.as_pipeline_error(self.describe()) from error

    def _check_fields(self, schema: pa.Schema, kind: AvroType) -> None:
        problem = encoding_problem(pa.struct(list(schema)), kind)
        try:
            for field in kind.fields:
                if not problem and field.name not in schema.names and field.default is not NO_DEFAULT:
                    default_array(simplified(field.type), field.default)
        except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException):
            problem = "the default of a field without a column does not fit its type"
        if problem:
            raise PipelineError(
                "the rows do not fit the Avro schema",
                where=self.describe(),
                cause=problem,
                remedy="Rename, cast or leave out columns, or change the Avro schema",
            )

    def _written_schema(self, schema: pa.Schema) -> tuple[AvroType, int]:
        """Return the schema with which rows are written, and its id; without a registry the id is `_DECLARED`."""
        if self._registry is None:
            kind = self.reader_type()
            self._check_fields(schema, kind)
            return kind, _DECLARED
        assert self._subject is not None, "encoding needs a subject"
        client = self._registry.open()
        if self._derives():
            text = AvroText(self._derived(schema), (), f"subject {self._subject!r}")
        elif self._declared is not None or self._file is not None:
            text = self._reader_text()
        else:
            latest = client.latest(self._subject)
            kind = as_record(_registered_text(latest, self._registry).parsed(), self._column)
            self._check_fields(schema, kind)
            return kind, latest.schema_id
        kind = as_record(text.parsed(), self._column)
        self._check_fields(schema, kind)
        return kind, client.id_of(self._subject, AVRO, text.text, register=self._register)

    def describe(self) -> str:
        """Return where the schema comes from."""
        if self._registry is not None:
            return f"Avro({self._subject or 'schema'!r} of {self._registry.url})"
        return f"Avro({self._file or 'schema'})"


class _RegisteredWriters:
    """Programs for the schemas in a registry; each schema is requested once."""

    def __init__(self, registry: SchemaRegistry, reader: RecordReader) -> None:
        self._registry, self._reader = registry, reader
        self._client: RegistryClient | None = None
        self._programs: dict[int, Program | str] = {}

    def program(self, schema_id: int) -> Program | str:
        """Return the program, or the reason why records of this schema are bad."""
        if self._client is None:
            self._client = self._registry.open()
        if schema_id not in self._programs:
            try:
                found = self._client.schema(schema_id)
            except UnknownSchemaError:
                # Not kept: another node of the registry may learn of the schema a moment later.
                return f"the schema registry has no schema with the id {schema_id}"
            self._programs[schema_id] = self._resolved(found)
        return self._programs[schema_id]

    def _resolved(self, found: RegisteredSchema) -> Program | str:
        try:
            return self._reader.program(_registered_text(found, self._registry).parsed())
        except UnresolvableError as error:
            return f"schema {found.schema_id} cannot be read by the reader's schema: {error}"
        except PipelineError as error:
            return f"schema {found.schema_id} cannot be used: {error.cause or error.what}"


class _AvroDecoder(RecordDecoder):
    """Args: programs: id of a writer's schema -> its program, or why its records are bad."""

    def __init__(self, reader: RecordReader, programs: Callable[[int], Program | str], *, has_heads: bool) -> None:
        self._reader, self._programs, self._has_heads = reader, programs, has_heads

    def decode(self, values: pa.Array) -> DecodedRecords:
        """See `RecordDecoder`."""
        values = as_binary(values)
        bad: dict[int, str] = {}
        starts, lengths, data = ranges_of(values)
        there: Indices = np.flatnonzero(lengths >= 0).astype(np.int64)
        starts, sizes = starts[there], lengths[there].astype(np.int64)
        blocks, records = list[pa.RecordBatch](), [there[:0]]
        head = HEAD_BYTES if self._has_heads else 0
        for schema_id, places in self._groups(data, starts, sizes):
            program = NO_HEAD if self._has_heads and schema_id < 0 else self._programs(schema_id)
            if isinstance(program, str):
                bad.update(dict.fromkeys(there[places].tolist(), program))
                continue
            block = self._reader.decode(program, data, starts[places] + head, sizes[places] - head)
            blocks.append(block.batch)
            records.append(there[places[block.good]])
            bad.update({int(there[places[number]]): reason for number, reason in block.bad.items()})
        rows = concatenated(self._reader.schema, blocks)
        return assemble(len(values), rows, np.concatenate(records), null_records(values), bad)

    def _groups(self, data: Bytes, starts: Int64s, sizes: Int64s) -> Iterator[tuple[int, Int64s]]:
        """Yield the id of each writer's schema, and the places of its records."""
        everything = np.arange(len(starts), dtype=np.int64)
        if not self._has_heads:
            yield _DECLARED, everything
            return
        ids = schema_ids(data, starts, sizes)
        if len(ids) and (ids == ids[0]).all():
            yield int(ids[0]), everything
            return
        for schema_id in np.unique(ids).tolist():
            yield schema_id, np.flatnonzero(ids == schema_id).astype(np.int64)


class _AvroEncoder(RecordEncoder):
    """Args: written: columns -> the schema that they are written with, and its id."""

    def __init__(self, schema: pa.Schema, written: Callable[[pa.Schema], tuple[AvroType, int]], where: str) -> None:
        self._schema, self._written, self._where = schema, written, where
        self._encoder: BatchEncoder | None = None
        self._schema_id = _DECLARED

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """See `RecordEncoder`."""
        if self._encoder is None:
            kind, self._schema_id = self._written(self._schema)
            self._encoder = BatchEncoder(kind)
        head = 0 if self._schema_id == _DECLARED else HEAD_BYTES
        try:
            block = self._encoder.encode(batch, head)
        except CannotEncodeError as error:
            raise error.as_pipeline_error(self._where) from error
        if head:
            write_heads(block.data, block.offsets[:-1], self._schema_id)
        return binary_array(block.data, block.offsets, self._where)


def _text_or_url(schema: str | os.PathLike[str] | None) -> tuple[str | None, str | None]:
    """Return the text of a schema, or the URL of the file with it."""
    if schema is None:
        return None, None
    text = os.fspath(schema).strip()
    if not isinstance(schema, os.PathLike) and (text[:1] in ("{", "[", '"') or text in PRIMITIVES):
        return text, None
    return None, schema_url(text)


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise PipelineError(
            "the Avro schema is not UTF-8 text", where=where, remedy="Pass the file of a schema in JSON"
        ) from error


def _registered_text(found: RegisteredSchema, registry: SchemaRegistry) -> AvroText:
    where = f"schema {found.schema_id} of {registry.url}"
    if found.kind != AVRO:
        raise PipelineError(
            "the schema in the registry is not Avro",
            where=where,
            cause=f"it is a {found.kind} schema",
            remedy="Use the format of that kind, or another subject",
        )
    return AvroText(found.text, tuple(text for _, text in found.references), where)
