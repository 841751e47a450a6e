"""How far a split of files has been read, and what was counted on the way (S4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tidegate.connectors.files.source.bad_records import BadRecord
from tidegate.connectors.files.source.text_records import Chunk


@dataclass(frozen=True)
class FilePosition:
    """Version 2; version 1 was the number of records emitted, and is still read.

    Attributes:
        at: see `Chunk.at`.
        rows: records emitted.
        bad: records that could not be read; those that were skipped and read again count once, since they are counted
            with the position behind them.
        missing, new: columns by path, see `FilePolicy`.
        skip: of version 1 of a text file: records that are read again and dropped before `at` is known.
    """

    at: int = 0
    rows: int = 0
    bad: int = 0
    missing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    skip: int = 0

    @classmethod
    def from_json(cls, position: Any, *, is_text: bool) -> FilePosition:
        """Of any version. Args: position: None: the start."""
        if position is None:
            return cls()
        if isinstance(position, int):
            return cls(rows=position, skip=position) if is_text else cls(at=position, rows=position)
        fields = dict(position)
        return cls(
            fields["at"],
            fields["rows"],
            fields.get("bad", 0),
            tuple(fields.get("missing", ())),
            tuple(fields.get("new", ())),
        )

    def to_json(self) -> Any:
        """The newest version. Only what is not empty: a job has many splits."""
        found = {"bad": self.bad, "missing": list(self.missing), "new": list(self.new)}
        return {"at": self.at, "rows": self.rows, **{name: value for name, value in found.items() if value}}

    def noting(self, missing: Sequence[str], new: Sequence[str]) -> FilePosition:
        """With columns that the file lacks or has beyond the schema, each once."""
        return replace(
            self,
            missing=tuple(dict.fromkeys((*self.missing, *missing))),
            new=tuple(dict.fromkeys((*self.new, *new))),
        )

    def after(self, chunk: Chunk) -> tuple[FilePosition, pa.RecordBatch, Sequence[BadRecord]]:
        """The position behind a chunk, and what of it is new. Version 1 counted what is bad now as a record."""
        rows = chunk.batch.num_rows
        if not self.skip:
            moved = replace(self, at=chunk.at, rows=self.rows + rows, bad=self.bad + len(chunk.bad))
            return moved, chunk.batch, chunk.bad
        if self.skip >= rows + len(chunk.bad):
            return replace(self, at=chunk.at, skip=self.skip - rows - len(chunk.bad)), chunk.batch.slice(rows), ()
        batch = chunk.batch.slice(min(self.skip, rows))
        moved = replace(self, at=chunk.at, rows=self.rows + batch.num_rows, bad=self.bad + len(chunk.bad), skip=0)
        return moved, batch, chunk.bad
