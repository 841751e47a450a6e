"""Interface of formats: how the bytes of a record are decoded to columns, and columns are encoded to bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.connectors.found_schema import FoundSchema


@dataclass(frozen=True)
class UndecodableRecord:
    """One record that cannot be decoded.

    Attributes:
        index: its place in the array that was decoded.
        reason: lower case, no full stop. It does not quote the record.
    """

    index: int
    reason: str


@dataclass(frozen=True)
class DecodedRecords:
    """Result of `RecordDecoder.decode`.

    Attributes:
        batch: the decoded rows, in the order of their records.
        records: int64 array: for each row the index of the record that it comes from, ascending. A record may have
            no row or several. None: row i comes from record i, and no record is left out.
        bad: records that cannot be decoded, in ascending order. They have no row.
    """

    batch: pa.RecordBatch
    records: pa.Array | None = None
    bad: Sequence[UndecodableRecord] = ()


class RecordDecoder(ABC):
    """Decoder of one reader. Called on the slot's loop."""

    @abstractmethod
    def decode(self, values: pa.Array) -> DecodedRecords:
        """Decode the values of some records (a `binary` array, in which a null is a record without a value).

        Does not raise for a record that cannot be decoded: `bad` names it. A record without a value gives a row of
        nulls, unless the format gives it another meaning.

        Raises:
            OutageError: a system that is needed for decoding, such as a schema registry, does not answer. Nothing was
                decoded, and the caller may call again with the same values.
            PipelineError: no record of this kind can be decoded, for example because the registry refuses access.
        """

    def decode_records(self, keys: pa.Array, values: pa.Array) -> DecodedRecords:
        """Decode records by value and key. Sources that have keys call this method instead of `decode`.

        The default ignores the keys. See `decode` for the result and the errors.

        Args:
            keys: a `binary` array as long as `values`; null: the record has no key. If the format does not have
                `needs_keys`, it may be an array of nulls.
        """
        return self.decode(values)


class RecordEncoder(ABC):
    """Encoder of one writer. Called on the slot's loop."""

    @abstractmethod
    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the bytes of each row, a `binary` array with one value per row and no nulls.

        Raises:
            PipelineError: a row cannot be encoded; the error names the column and the reason.
            OutageError: a system that is needed for encoding does not answer.
        """


class Format(ABC):
    """Description of a format: frozen, JSON-able fields, no I/O in its constructor, no secrets in plain text."""

    needs_keys: bool = False
    """True if `decode_records` uses the keys of the records."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the schema of decoded rows. May read a schema file, or ask a schema registry.

        Raises:
            PipelineError: there is no such schema, or it has no equivalent in Arrow.
            OutageError: a schema registry does not answer.
        """

    def found_schema(self) -> FoundSchema | None:
        """Return the schema that `schema` found outside the pipeline; None: the pipeline declares it.

        The schema's metadata may hold what the format needs to decode as before, whatever the registry or the file
        holds later (S5.5). A source makes it part of its own; see `found_by_formats`.
        """
        return None

    def with_found_schema(self, found: FoundSchema) -> Format:
        """Return the same format, with what `found_schema` returned when the job was first built (S5.5).

        A format whose schema is declared returns itself.
        """
        return self

    @abstractmethod
    def create_decoder(self, columns: Sequence[str] | None = None) -> RecordDecoder:
        """Return a decoder. Called in the slot.

        Args:
            columns: the columns that the job uses, in the order of the schema; decoded batches have only these. None:
                all. The choice does not change which records are refused.
        """

    @abstractmethod
    def check_encodable(self, schema: pa.Schema) -> None:
        """Check that rows of this schema can be encoded. Called when the pipeline is checked.

        Raises:
            PipelineError: they cannot; the error names the column and the reason.
            OutageError: a schema registry does not answer.
        """

    @abstractmethod
    def create_encoder(self, schema: pa.Schema) -> RecordEncoder:
        """Return an encoder for rows of this schema. Called in the slot, after `check_encodable`."""

    def describe(self) -> str:
        """Describe the format in one line, without secrets."""
        return type(self).__name__
