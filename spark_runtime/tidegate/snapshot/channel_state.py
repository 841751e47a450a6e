"""In-flight data of a subtask's input channels as state, and its replay (S3.7). Pure.

One part of kind "channel" for each subtask that had any, under the uid of its chain's head; one row for each element,
in the order of its channel. Rows name subtask and parallelism they were captured at, so that the parts of several
subtasks can be put together and a rescale can tell them apart. A batch carries its schema: one that no longer fits is
refused, never misread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.snapshot.parts import StatePart

PART_NAME = "__in_flight"
"""State name; operators' own names do not begin with underscores."""
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
"""Cuts a batch into one (or None) for each subtask."""


@dataclass(frozen=True)
class InFlightElement:
    """One element of an input channel.

    Attributes:
        input_index: of the chain's head.
        source: subtask index at the channel's other end.
        element: a batch, or a watermark in microseconds since the epoch.
    """

    input_index: int
    source: int
    element: pa.RecordBatch | int

    @property
    def size_bytes(self) -> int:
        """Of a batch; a watermark counts nothing."""
        return 0 if isinstance(self.element, int) else int(self.element.nbytes)


@dataclass(frozen=True)
class ReplayInput:
    """One input of a chain's head in the job that restores.

    Attributes:
        schema: of its records.
        cut: how they find their subtask, for a hash input; None: any subtask may take them.
        may_replay: False for inputs whose records have one place they must come from, or go to all subtasks.
    """

    schema: pa.Schema
    cut: Cut | None = None
    may_replay: bool = True


def channel_part(elements: Sequence[InFlightElement], subtask: int, parallelism: int) -> StatePart:
    """The part that holds `elements`, each channel's in order. Encodes batches: for a snapshot writer."""
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
    """What subtask `subtask` of `parallelism` must process before anything new comes from its channels.

    At the parallelism of the snapshot: its own, channel by channel, watermarks among the records. At another: of hash
    inputs the rows of its key groups; of others the batches of the old subtasks congruent to it; from old subtask and
    old channel in their order, so that the rows of a key keep theirs, attributed to the input's first channel. The
    watermarks are dropped then: they held for other channels, and the sources tell theirs again.

    Args:
        parts: state parts, of which kind "channel" is looked at: its own, or at another parallelism those of all old
            subtasks.
        inputs: by input index.
        where: operator, for errors.

    Raises:
        SnapshotError: the pipeline has no such input any more, or of other columns, or one that cannot be replayed.
    """
    rows = [row for part in parts if part.kind == "channel" for row in part.table.to_pylist()]
    rows.sort(key=lambda row: (row["subtask"], row["sequence"]))
    replay: list[InFlightElement] = []
    for row in rows:
        element = row["watermark_us"] if row["batch"] is None else _decode(row["batch"], where)
        given = _checked_input(inputs, row["input"], element, where)
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
) -> ReplayInput:
    given = inputs.get(index)
    if given is None or not given.may_replay:
        change = "is gone from the pipeline" if given is None else "is a forward or broadcast one in the pipeline"
        raise _schema_mismatch(f"records in flight to its input {index}, which {change}", where)
    if isinstance(element, pa.RecordBatch) and not _same_columns(element.schema, given.schema):
        raise _schema_mismatch(
            f"records in flight to its input {index} with other columns ({element.schema.names})", where
        )
    return given


def _same_columns(found: pa.Schema, declared: pa.Schema) -> bool:
    """Same names and types. Nullability may differ, also in nested types: a source's batches need not have that of the
    schema it declares, and nothing that processes them minds."""
    return found.names == declared.names and all(
        old == new or _without_nullability(old) == _without_nullability(new)
        for old, new in zip(found.types, declared.types, strict=True)
    )


def _without_nullability(data_type: pa.DataType) -> str:
    return str(data_type).replace(" not null", "")


def _schema_mismatch(what: str, where: str) -> SnapshotError:
    return SnapshotError(
        f"the snapshot holds {what}",
        where=where,
        cause="an unaligned checkpoint holds what was on its way between the operators of the old pipeline",
        remedy="Change a pipeline over a savepoint: savepoints hold nothing in flight",
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
        raise SnapshotError("a record batch in flight cannot be read", where=where, cause=str(error)) from error
