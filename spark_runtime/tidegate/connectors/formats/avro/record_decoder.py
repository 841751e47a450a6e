"""Decoding of many Avro records of one writer's schema to a record batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.formats.avro.avro_schema import AvroField, AvroType, simplified
from tidegate.connectors.formats.avro.columns import ColumnLayout, ColumnReader, Outputs, column_schema
from tidegate.connectors.formats.avro.decode_kernels import decode_records
from tidegate.connectors.formats.avro.instructions import REASONS
from tidegate.connectors.formats.avro.resolution import Program, UnresolvableError, compile_program

ELEMENTS_PER_RECORD = 4
"""Elements of each list for which there is space at first. If there are more, the records are decoded again."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DecodedBlock:
    """Records of one writer's schema.

    Attributes:
        batch: the rows of the good records, in order.
        good: their numbers.
        bad: number -> reason of the others.
    """

    batch: pa.RecordBatch
    good: Int64s
    bad: Mapping[int, str]


def as_record(kind: AvroType, name: str) -> AvroType:
    """Return a record with the same bytes: the type, or a record without a name and with a field of this type."""
    return kind if kind.kind == "record" else AvroType("record", fields=(AvroField(name, kind),))


class RecordReader:
    """Decodes records to the columns of a reader's schema.

    Args:
        reader: the schema, as `as_record` returns it.
        columns: names of the columns of the batches, in the order of the schema.

    Attributes:
        whole, schema: all columns, and the columns of the batches.
    """

    def __init__(self, reader: AvroType, columns: list[str]) -> None:
        self._reader = simplified(reader)
        self._layout = ColumnLayout(self._reader)
        self.whole = column_schema(self._reader)
        self.schema = pa.schema([self.whole.field(name) for name in columns])
        self._columns = frozenset(columns)
        self._counts = np.zeros(self._layout.domains, np.int64)

    def program(self, writer: AvroType) -> Program:
        """Return the program for a writer's schema, of any type. Raises UnresolvableError."""
        if (writer.kind == "record") != bool(self._reader.name):
            what = "is" if writer.kind == "record" else "is not"
            raise UnresolvableError(f"the writer's schema {what} a record, unlike the reader's")
        return compile_program(as_record(writer, self._reader.fields[0].name), self._reader, self._layout)

    def decode(self, program: Program, data: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s) -> DecodedBlock:
        """Decode the records at these places of `data`."""
        count = len(starts)
        outputs, counts, reasons = self._run(program, data, starts, lengths)
        reader = ColumnReader(self._layout, outputs, data, counts, program.constants)
        arrays = []
        for name, column in zip(self.whole.names, self._layout.columns):
            if name in self._columns:
                arrays.append(reader.array(column))
            else:
                reader.check(column)
        bad = {number: REASONS[int(reasons[number])] for number in np.flatnonzero(reasons).tolist()}
        bad = {**reader.invalid, **bad}
        batch = _batch(arrays, self.schema, count)
        if not bad:
            return DecodedBlock(batch, np.arange(count, dtype=np.int64), bad)
        good: Int64s = np.setdiff1d(np.arange(count, dtype=np.int64), np.fromiter(bad, np.int64, len(bad)))
        return DecodedBlock(batch.take(pa.array(good)), good, bad)

    def _run(
        self, program: Program, data: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s
    ) -> tuple[Outputs, Int64s, Int64s]:
        """Return the outputs, the number of values of each domain, and the reason of each bad record."""
        capacity = np.maximum(self._counts, ELEMENTS_PER_RECORD * len(starts))
        while True:
            capacity[0], capacity[-1] = len(starts), 0
            outputs = Outputs(self._layout, capacity)
            counts, reasons = np.zeros(len(capacity), np.int64), np.zeros(len(starts), np.int64)
            decode_records(
                data, starts, lengths, program.words, program.tables, outputs.words, capacity, counts, reasons
            )
            counts[0] = len(starts)
            if (counts[:-1] <= capacity[:-1]).all():
                self._counts = counts
                return outputs, counts, reasons
            capacity = np.maximum(capacity, counts)


def _batch(arrays: list[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    if not arrays:  # only the number of rows is needed
        return pa.record_batch({"rows": pa.nulls(count)}).select([])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
