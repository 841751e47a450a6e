"""Raw state: bytes that a process writes into every snapshot and reads back itself (S5.1).

The process divides its stream into pieces; each piece is one row of a part. A restore at the same parallelism returns a
subtask's pieces to it; at another parallelism, the pieces are split evenly, in order. Pieces of keyed raw state belong
to key groups and move with them (S5.5).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, StateKind, StatePart
from tidegate.state.state_layout import marked_schema

BYTES_COLUMN = "bytes"


@dataclass(frozen=True)
class RawDescriptor:
    """One raw state.

    Attributes:
        name: unique among all states of the operator.
        keyed: whether its pieces belong to key groups.
    """

    name: str
    keyed: bool = False

    @property
    def kind(self) -> StateKind:
        """Return the kind, by which a restore distributes its pieces."""
        return "keyed" if self.keyed else "list"

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of its part: a row for each piece."""
        fields = [pa.field(BYTES_COLUMN, pa.large_binary(), nullable=False)]
        if self.keyed:
            fields.insert(0, pa.field(KEY_GROUP_COLUMN, pa.uint16()))
        return marked_schema("keyed raw" if self.keyed else "raw", pa.schema(fields))


class RawOutput:
    """Output stream of a raw state. Valid during `write_raw`."""

    def __init__(self, descriptor: RawDescriptor, key_groups: range) -> None:
        """Create an empty output. Args: key_groups: key groups of the subtask."""
        self._descriptor = descriptor
        self._key_groups = key_groups
        self._pieces: list[tuple[int, io.BytesIO]] = []

    def start(self, key_group: int | None = None) -> None:
        """Begin the next piece, which a restore does not divide.

        Args:
            key_group: key group of the piece, one of `ctx.key_groups`; for keyed raw state, and only for it.

        Raises:
            PipelineError: another subtask's key group, or none where one is required.
        """
        if self._descriptor.keyed != (key_group is not None) or (
            key_group is not None and key_group not in self._key_groups
        ):
            first, last = self._key_groups.start, self._key_groups.stop - 1
            raise PipelineError(
                f"a piece of raw state {self._descriptor.name!r} cannot have key group {key_group}",
                where=f"state {self._descriptor.name!r}",
                cause=f"this subtask has the key groups {first} to {last}"
                if self._descriptor.keyed
                else "the state is not keyed",
                remedy="Call out.start(group) with a key group of keys.groups"
                if self._descriptor.keyed
                else "Call out.start(), or declare the state with keyed_raw_state",
            )
        self._pieces.append((key_group or 0, io.BytesIO()))

    def write(self, data: Any) -> int:
        """Add bytes to the piece, and return their number. The first piece without a key group begins automatically."""
        if not self._pieces:
            self.start()
        return self._pieces[-1][1].write(data)

    def part(self) -> StatePart:
        """Return the pieces as a part of the snapshot."""
        pieces = sorted(self._pieces, key=lambda piece: piece[0])
        columns = [pa.array([piece.getvalue() for _, piece in pieces], pa.large_binary())]
        if self._descriptor.keyed:
            columns.insert(0, pa.array([group for group, _ in pieces], pa.uint16()))
        return StatePart(
            self._descriptor.name, self._descriptor.kind, pa.table(columns, schema=self._descriptor.schema)
        )


class RawInput(io.BytesIO):
    """A piece of raw state to read, as a binary stream.

    Attributes:
        key_group: key group of the piece; None: raw state without keys.
    """

    def __init__(self, data: bytes, key_group: int | None) -> None:
        super().__init__(data)
        self.key_group = key_group


def raw_inputs(part: StatePart) -> Sequence[RawInput]:
    """Return the pieces of a part, in order."""
    found: list[RawInput] = []
    for table in part.tables():
        groups = table[KEY_GROUP_COLUMN].to_pylist() if KEY_GROUP_COLUMN in table.column_names else None
        for number, data in enumerate(table[BYTES_COLUMN]):
            found.append(RawInput(data.as_py(), None if groups is None else groups[number]))
    return found
