"""Files: Parquet, CSV and JSON lines, read once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidegate.connectors.contract import Boundedness, Polled, Source, SourceContext, SourceReader, Split
from tidegate.connectors.file_formats import FormatName
from tidegate.connectors.file_listing import FoundFile
from tidegate.connectors.file_set import DEFAULT_NULL_VALUES, FileSet, Paths

MIN_SPLIT_ROWS = 65_536
"""A Parquet file is cut into splits of whole row groups, of at least this many rows."""


class Files(Source):
    """Reads the files that are there when the job starts, each record once; bounded.

    A split is a file, or some row groups of a Parquet file; its position is the number of records emitted (S4.2).
    Files must not
    change while the job, or a snapshot of it, uses them: one of another size is refused. A restored text file is read
    again up to its position. `key=value` folders add no columns.

    Args: see `FileSet`.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        format: FormatName | None = None,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        null_values: Sequence[str] = DEFAULT_NULL_VALUES,
    ) -> None:
        self._files = FileSet(
            paths,
            format=format,
            schema=schema,
            columns=columns,
            storage_options=storage_options,
            null_values=null_values,
        )

    @property
    def boundedness(self) -> Boundedness:
        """Bounded."""
        return "bounded"

    def schema(self) -> pa.Schema:
        """Given, or found in the first file; see `FileSet.schema`."""
        return self._files.schema()

    def discover(self, parallelism: int) -> Sequence[Split]:
        """One split per file, several for a Parquet file with many rows; in the order of the paths.

        Raises:
            PipelineError: no file matches, or the files differ.
        """
        files = self._files.files()
        groups = [self._files.row_groups(file) for file in files]
        wanted_rows = max(MIN_SPLIT_ROWS, -(-sum(map(sum, groups)) // parallelism))
        splits = []
        for file, rows in zip(files, groups, strict=True):
            where = {"given": file.given, "path": file.path, "size_bytes": file.size_bytes}
            cuts = _cut(rows, wanted_rows)
            for cut in cuts:
                name = file.path if len(cuts) == 1 else f"{file.path}#{cut[0]}-{cut[1]}"
                weight = max(1, file.size_bytes // len(cuts))
                splits.append(
                    Split(f"{file.given}:{name}", {**where, "groups": list(cut) if rows else None}, weight=weight)
                )
        return splits

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """A reader that takes its splits one after the other."""
        return FilesReader(self._files)

    def unavailable(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        """Those whose file is gone, or has another size."""
        files = {
            split.split_id: FoundFile(s["given"], s["path"], s["size_bytes"]) for split in splits for s in [split.data]
        }
        found = {split_id: self._files.why_unreadable(file) for split_id, file in files.items()}
        return [(split_id, why) for split_id, why in found.items() if why]

    def describe(self) -> str:
        """The paths."""
        return f"Files({self._files.describe()})"


def _cut(rows: Sequence[int], wanted_rows: int) -> list[tuple[int, int]]:
    """Ranges [first, last) of row groups, as equal as they get, of some `wanted_rows` rows; at least one range."""
    total = sum(rows)
    parts = max(1, round(total / wanted_rows))
    cuts: list[tuple[int, int]] = []
    first, before = 0, 0
    for group, n in enumerate(rows):
        middle_in = (2 * before + n) * parts // (2 * total) if total else 0
        if middle_in > len(cuts) and group > first:
            cuts.append((first, group))
            first = group
        before += n
    return [*cuts, (first, len(rows))]


class FilesReader(SourceReader):
    """Reader of `Files`: one split after the other, in the order given."""

    def __init__(self, files: FileSet) -> None:
        self._files = files
        self._splits: dict[str, Split] = {}
        self._left: deque[str] = deque()
        self._rows = 0
        self._reading: Iterator[pa.RecordBatch] | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take splits; nothing is opened yet."""
        self._splits = {split.split_id: split for split in splits}
        self._left = deque(split.split_id for split in splits if not split.finished)

    def poll(self, now_ms: int) -> Polled:
        """The next batch of the split being read, or the first of the next."""
        while self._left:
            split_id = self._left[0]
            if self._reading is None:
                split = self._splits[split_id]
                self._rows = split.position or 0
                self._reading = self._open(split)
            batch = next(self._reading, None)
            if batch is not None:
                self._rows += batch.num_rows
                return Polled(batch, split_id)
            self._splits[split_id] = self._current(finished=True)
            self._left.popleft()
            self._reading = None
        return Polled(state="end")

    def _open(self, split: Split) -> Iterator[pa.RecordBatch]:
        data = split.data
        file = FoundFile(data["given"], data["path"], data["size_bytes"])
        groups = None if data["groups"] is None else (data["groups"][0], data["groups"][1])
        return self._files.batches(file, groups=groups, skip_rows=self._rows)

    def _current(self, *, finished: bool) -> Split:
        return replace(self._splits[self._left[0]], position=self._rows, finished=finished)

    def snapshot(self) -> Sequence[Split]:
        """All splits; the one being read with its position."""
        now = dict(self._splits)
        if self._reading is not None:
            now[self._left[0]] = self._current(finished=False)
        return list(now.values())

    def progress(self) -> Mapping[str, Any]:
        """Records emitted over all runs, splits in all and left."""
        rows = sum(split.position or 0 for split in self.snapshot())
        return {"rows": rows, "splits": len(self._splits), "splits_left": len(self._left)}

    def close(self) -> None:
        """Close the open file."""
        if self._reading is not None:
            self._reading.close()  # type: ignore[attr-defined]
            self._reading = None
