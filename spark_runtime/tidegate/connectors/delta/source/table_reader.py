"""Reader of a Delta table: one data file after the other, in the order of the splits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidegate.connectors.delta.source.file_rows import FilePart, FileRows
from tidegate.connectors.interface import PollResult, SourceReader, Split

RETRY_MS = 1_000
"""Wait for the next poll of a reader that has no file, milliseconds. An assignment ends it."""


class TableReader(SourceReader):
    """Reader of splits, which are lists of data files. A position is [number of the file, rows of it that were read].

    Args:
        rows: reads the files.
        follows: splits may be added later, and splits that are read to their end are forgotten.
    """

    def __init__(self, rows: FileRows, follows: bool) -> None:
        self._rows = rows
        self._follows = follows
        self._splits: dict[str, Split] = {}
        self._left: deque[str] = deque()
        self._reading: Iterator[tuple[pa.RecordBatch, int]] | None = None
        self._file, self._row = 0, 0
        self._changed = False

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits; no file is opened yet."""
        self._splits |= {split.split_id: split for split in splits}
        self._left.extend(split.split_id for split in splits if not split.finished)

    def poll(self, now_ms: int) -> PollResult:
        """Return the next batch of the file being read, or the first of the next file."""
        while self._left:
            split = self._splits[self._left[0]]
            if self._reading is None and not self._open(split):
                self._finish()
                continue
            assert self._reading is not None
            found = next(self._reading, None)
            if found is not None:
                batch, self._row = found
                self._splits[split.split_id] = replace(split, position=[self._file, self._row])
                return PollResult(batch, split.split_id)
            self._reading = None
            self._splits[split.split_id] = replace(split, position=[self._file + 1, 0])
        if not self._follows:
            return PollResult(state="end")
        changed, self._changed = self._changed, False
        return PollResult(state="nothing_now", retry_at_ms=now_ms + RETRY_MS, idle=True, splits_changed=changed)

    def _open(self, split: Split) -> bool:
        """Begin the file at the split's position. Return False if the split has no file left."""
        self._file, self._row = split.position or (0, 0)
        files = split.data["files"]
        if self._file >= len(files):
            return False
        part = FilePart.from_json(files[self._file])
        self._reading = self._rows.read(part, split.data.get("names"), self._row)
        return True

    def _finish(self) -> None:
        name = self._left.popleft()
        if self._follows:
            del self._splits[name]  # the state of the enumerator contains it
        else:
            self._splits[name] = replace(self._splits[name], finished=True)
        self._changed = True

    def snapshot(self) -> Sequence[Split]:
        """Return all splits with their positions. A followed table's finished splits are left out."""
        return list(self._splits.values())

    def readable_until_ms(self) -> int | None:
        """Return until when the table keeps the files that are not read to their end."""
        left = (self._splits[name].data.get("until_ms") for name in self._left)
        return min((until_ms for until_ms in left if until_ms is not None), default=None)

    def progress(self) -> Mapping[str, Any]:
        """Return the number of splits left."""
        return {"splits_left": len(self._left)}

    def close(self) -> None:
        """Close the open file."""
        if self._reading is not None:
            self._reading.close()  # type: ignore[attr-defined]
            self._reading = None
