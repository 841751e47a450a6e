"""In-flight data of a subtask's input channels as state, and its replay (S3.7). Pure.

Each subtask with in-flight data has one part of kind "channel", under the uid of its chain's head. The part has one row
for each element, in the order of its channel. Rows contain the subtask and the parallelism of the capture, so that
parts of several subtasks can be combined, and a rescale can distinguish them. A batch contains its schema. Columns that
the pipeline does not read are dropped. If a column is missing or has another type, the batch is refused and never
misread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.snapshot.evolved_columns import Renamed, evolve_part
from tidegate.snapshot.partial_rows import is_partial
from tidegate.snapshot.parts import StatePart

PART_NAME = "__in_flight"
"""State name. Names of operators' own states do not begin with underscores."""
SCHEMA = pa.schema(
    [
        ("parallelism", pa.int32()),
        ("subtask", pa.int32()),
        ("sequence", pa.int32()),
        ("input", pa.int32()),
        ("source", pa.int32()),
        ("watermark_us", pa.int64()),
        ("batch", pa.large_binary()),
    ]
)
"""Exactly one of `watermark_us` and `batch`, an Arrow IPC stream with one batch, is set."""

Cut = Callable[[pa.RecordBatch], Sequence[pa.RecordBatch | None]]
"""Splits a batch into one batch (or None) for each subtask."""


@dataclass(frozen=True)
class InFlightElement:
    """One element of an input channel.

    Attributes:
        input_index: input of the chain's head.
        source: subtask index at the channel's other end.
        element: a batch, or a watermark in microseconds since the epoch.
    """

    input_index: int
    source: int
    element: pa.RecordBatch | int

    @property
    def size_bytes(self) -> int:
        """Size of a batch; 0 for a watermark."""
        return 0 if isinstance(self.element, int) else int(self.element.nbytes)


@dataclass(frozen=True)
class ReplayInput:
    """One input of a chain's head in the job that restores.

    Attributes:
        schema: the columns that it reads.
        cut: splits records by subtask, for a hash input; None: any subtask may process them.
        may_replay: False for inputs whose records must come from one place, or go to all subtasks.
        partial_schema: columns of partial rows, which it reads too; None: it does not.
        renamed: of partial rows: (column in older snapshots, its name now).
        uid: of the operator.
    """

    schema: pa.Schema
    cut: Cut | None = None
    may_replay: bool = True
    partial_schema: pa.Schema | None = None
    renamed: Renamed = field(default_factory=dict)
    uid: str = ""


def channel_part(elements: Sequence[InFlightElement], subtask: int, parallelism: int) -> StatePart:
    """Return the part that holds `elements`, each channel's in order. Encodes batches: call it on a snapshot writer."""
    count = len(elements)
    columns: dict[str, Any] = {
        "parallelism": [parallelism] * count,
        "subtask": [subtask] * count,
        "sequence": range(count),
        "input": [e.input_index for e in elements],
        "source": [e.source for e in elements],
        "watermark_us": [e.element if isinstance(e.element, int) else None for e in elements],
        "batch": [None if isinstance(e.element, int) else _encode(e.element) for e in elements],
    }
    return StatePart(PART_NAME, "channel", pa.table(columns, schema=SCHEMA))


def replay_elements(
    parts: Sequence[StatePart], inputs: Mapping[int, ReplayInput], subtask: int, parallelism: int, *, where: str
) -> list[InFlightElement]:
    """Return the elements that subtask `subtask` of `parallelism` must process before new elements of its channels.

    Without a rescale these are the subtask's own elements, channel by channel, with watermarks among the records. After
    a rescale they are: for hash inputs, the rows of its key groups; for other inputs, the batches of old subtasks whose
    number is congruent to its own. Per old subtask and old channel the order is kept, so that the rows of a key stay in
    order. They count as elements of the input's first channel. Watermarks are dropped after a rescale: they were valid
    for other channels, and the sources send new ones.

    Args:
        parts: state parts, of which kind "channel" is used: the subtask's own, or after a rescale the parts of all old
            subtasks.
        inputs: inputs by index.
        where: operator, for errors.

    Raises:
        SnapshotError: the pipeline no longer has the input, its columns have changed, or it cannot be replayed.
    """
    rows = [row for part in parts if part.kind == "channel" for row in part.table.to_pylist()]
    rows.sort(key=lambda row: (row["subtask"], row["sequence"]))
    replay: list[InFlightElement] = []
    for row in rows:
        element = row["watermark_us"] if row["batch"] is None else _decode(row["batch"], where)
        given, element = _checked_input(inputs, row["input"], element, where)
        if row["parallelism"] == parallelism:
            if row["subtask"] == subtask:
                replay.append(InFlightElement(row["input"], row["source"], element))
        elif isinstance(element, pa.RecordBatch):
            mine = _share(given, element, row["subtask"], subtask, parallelism)
            if mine is not None and mine.num_rows:
                replay.append(InFlightElement(row["input"], 0, mine))
    return replay


def _share(
    given: ReplayInput, batch: pa.RecordBatch, old_subtask: int, subtask: int, parallelism: int
) -> pa.RecordBatch | None:
    if given.cut is not None:
        return given.cut(batch)[subtask]
    return batch if old_subtask % parallelism == subtask else None


def _checked_input(
    inputs: Mapping[int, ReplayInput], index: int, element: pa.RecordBatch | int, where: str
) -> tuple[ReplayInput, pa.RecordBatch | int]:
    """Return the input and the element, with the columns that the input reads."""
    given = inputs.get(index)
    if given is None or not given.may_replay:
        change = "the pipeline no longer has" if given is None else "is a forward or broadcast input in the pipeline"
        raise _schema_mismatch(f"records in flight to input {index} of the operator, which {change}", where)
    if isinstance(element, pa.RecordBatch) and is_partial(element.schema):
        return given, _checked_partial(given, index, element, where)
    if isinstance(element, pa.RecordBatch):
        missing = [name for name in given.schema.names if name not in element.schema.names]
        if missing:
            raise _schema_mismatch(
                f"records in flight to input {index} of the operator without the columns {missing}, which the pipeline "
                f"reads; the records have {element.schema.names}",
                where,
            )
        if element.schema.names != given.schema.names:
            element = element.select(given.schema.names)
        if not _same_types(element.schema, given.schema):
            types = ", ".join(f"{field.name}: {field.type}" for field in element.schema)
            raise _schema_mismatch(
                f"records in flight to input {index} of the operator with other types ({types})", where
            )
    return given, element


def _checked_partial(given: ReplayInput, index: int, element: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """Return partial rows with the columns that the input reads. They change as the state of its operator does
    (S5.5)."""
    if given.partial_schema is None:
        raise _schema_mismatch(
            f"partial rows in flight to input {index} of the operator, which reads only whole rows in the pipeline",
            where,
        )
    part = StatePart(PART_NAME, "channel", pa.Table.from_batches([element]))
    table = evolve_part(part, given.partial_schema, given.uid, given.renamed, fills=False).table
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=given.partial_schema)


def _same_types(found: pa.Schema, declared: pa.Schema) -> bool:
    """Return whether the types of equal columns are equal, ignoring nullability, also in nested types.

    A source's batches may differ in nullability from the schema that it declares, and no operator depends on it.
    """
    return all(
        old == new or _without_nullability(old) == _without_nullability(new)
        for old, new in zip(found.types, declared.types, strict=True)
    )


def _without_nullability(data_type: pa.DataType) -> str:
    return str(data_type).replace(" not null", "")


def _schema_mismatch(what: str, where: str) -> SnapshotError:
    return SnapshotError(
        f"the snapshot holds {what}",
        where=where,
        cause="an unaligned checkpoint holds records that were in flight between the operators of the old pipeline",
        remedy="Take a savepoint with the old pipeline and restore the savepoint, which holds no records in flight",
    )


def _encode(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(out.getvalue())


def _decode(data: bytes, where: str) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            return reader.read_next_batch()
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise SnapshotError(
            "a record batch in flight in the snapshot cannot be read",
            where=where,
            cause=str(error),
            remedy="Restore another snapshot",
        ) from error
