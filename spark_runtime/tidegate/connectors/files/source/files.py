"""Files: a source that reads Parquet, CSV and JSON lines once."""

from __future__ import annotations

import copy
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Literal, Self, get_args

import pyarrow as pa

from tidegate.connectors.files.source.bad_records import BAD_RECORDS, BadRecord, OnBadRecord, bad_batch
from tidegate.connectors.files.source.file_disposal import FileDisposal
from tidegate.connectors.files.source.file_errors import truncated_file_error
from tidegate.connectors.files.source.file_formats import FormatName
from tidegate.connectors.files.source.file_listing import FoundFile
from tidegate.connectors.files.source.file_schema import DEFAULT_NULL_VALUES, FilePolicy, OnMissingField, OnNewField
from tidegate.connectors.files.source.file_set import FileSet, Paths
from tidegate.connectors.files.source.text_records import Chunk
from tidegate.connectors.files.source.watched_files import Watch, WatchedFiles, missing_paths, missing_text
from tidegate.connectors.found_schema import FoundSchema
from tidegate.connectors.interface import (
    Boundedness,
    ContinuousDiscovery,
    Discovery,
    PollResult,
    Source,
    SourceContext,
    SourceReader,
    Split,
    SplitEnumerator,
)
from tidegate.errors import OptionError, PipelineError
from tidegate.units import format_duration

logger = logging.getLogger("tidegate.connectors")

Assignment = Literal["at_start", "on_demand"]
"""When readers get the splits of files that exist when the job starts."""
OPEN_FILES = 2
"""Most splits that a reader has if it gets them while it reads: the one that it reads, and the next."""
SEARCH_AGAIN = timedelta(seconds=10)
"""Pause after a listing that failed, if readers get splits on demand."""
RETRY_MS = 1_000
"""Wait for the next poll of a reader that has no file, milliseconds. An assignment ends it."""
_TOTALS = "totals"
"""Key in the data of the split that holds the counts of files that were read."""
MAX_SPLITS_OF_FILES = 1_000
"""Parts into which all Parquet files together are cut, at most, if readers get splits on demand. Snapshots contain
those that no reader has."""
MIN_SPLIT_ROWS = 65_536
"""Least number of rows in a split of a Parquet file, which consists of whole row groups."""


@dataclass(frozen=True)
class FilePosition:
    """Position in a file. Version 2; version 1 was the number of records emitted, and is still read.

    Attributes:
        at: see `Chunk.at`.
        rows: records emitted.
        bad: records that could not be read. A record that is skipped and read again counts once, because it is counted
            together with the position after it.
        missing, new: columns by path, see `FilePolicy`.
        skip: for version 1 in a text file: records to read again and drop until `at` is known.
    """

    at: int = 0
    rows: int = 0
    bad: int = 0
    missing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    skip: int = 0

    @classmethod
    def from_json(cls, position: Any, *, is_text: bool) -> FilePosition:
        """Parse a position of any version. Args: position: None: the start."""
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
        """Return the newest version, without empty values, because a job has many splits."""
        found = {"bad": self.bad, "missing": list(self.missing), "new": list(self.new)}
        return {"at": self.at, "rows": self.rows, **{name: value for name, value in found.items() if value}}

    def noting(self, missing: Sequence[str], new: Sequence[str]) -> FilePosition:
        """Return the position with columns that the file lacks or has beyond the schema, each once."""
        return replace(
            self,
            missing=tuple(dict.fromkeys((*self.missing, *missing))),
            new=tuple(dict.fromkeys((*self.new, *new))),
        )

    def after(self, chunk: Chunk) -> tuple[FilePosition, pa.RecordBatch, Sequence[BadRecord]]:
        """Return the position after a chunk, with its new rows and bad records. Version 1 counted bad records as
        records.
        """
        rows = chunk.batch.num_rows
        if not self.skip:
            moved = replace(self, at=chunk.at, rows=self.rows + rows, bad=self.bad + len(chunk.bad))
            return moved, chunk.batch, chunk.bad
        if self.skip >= rows + len(chunk.bad):
            return replace(self, at=chunk.at, skip=self.skip - rows - len(chunk.bad)), chunk.batch.slice(rows), ()
        batch = chunk.batch.slice(min(self.skip, rows))
        moved = replace(self, at=chunk.at, rows=self.rows + batch.num_rows, bad=self.bad + len(chunk.bad), skip=0)
        return moved, batch, chunk.bad


class Files(Source):
    """Reads files, each record once.

    Without `watch` it is bounded and reads the files that exist when the job starts. A restart or a restore reads the
    same files. With `watch` it is unbounded, and also reads files that arrive later.

    A split is a file, or some row groups of a Parquet file. Its position (S4.2) is the place after the last record,
    with counts of what has been read. Files must not change while the job, or a snapshot of it, uses them: their size,
    time of change and ETag are stored with the split, and a changed file fails the job. `key=value` folders add no
    columns.

    Args:
        paths: files, folders, globs or fsspec URLs.
        format: "parquet", "csv" or "json" (JSON lines); None: by the suffix.
        schema: schema of the records; None: found in the first file that has a record. Integers with leading zeros or
            beyond 64 bits, and floats with too many digits, are then strings.
        columns: names to read, in this order; None: all.
        storage_options: fsspec options; values may be references to secrets.
        null_values: texts that mean null in CSV; a string in quotes is never null. Default: the empty text.
        encoding: encoding of text files. Default: UTF-8.
        on_missing_field: what happens if a file lacks a column: "fail", or "null"; default: "fail", unless `schema` is
            passed.
        on_new_field: what happens if a file has a column beyond the schema: "ignore" it and count it, or "fail".
        on_bad_record: what happens if a record cannot be read: "fail" the job, "skip" and count it (`bad_records`), or
        "dead_letter": count it, and emit it to the side output `bad_records` (file, offset, raw, reason), which must
            have a reader.
        watch: list the paths again in this interval, such as "10 s", and read new files; a `Watch` has more options.
            Without `schema`, a file must exist when the job starts. None: read the files that exist.
        assign: without `watch`: "at_start" divides the splits among the readers when the job starts; "on_demand" gives
            a reader its next split while it reads one, so that a slow reader has fewer. Then a split that no reader has
            holds no watermark back, so pipelines with event time are refused.

    Raises:
        OptionError: an argument is unknown, or `encoding` is not an encoding of text.
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
        encoding: str = "utf-8",
        on_missing_field: OnMissingField | None = None,
        on_new_field: OnNewField = "ignore",
        on_bad_record: OnBadRecord = "fail",
        watch: str | timedelta | Watch | None = None,
        assign: Assignment = "at_start",
    ) -> None:
        if assign not in get_args(Assignment):
            remedy = f"Use one of {', '.join(map(repr, get_args(Assignment)))}"
            raise OptionError(f"assign={assign!r} is unknown", where="Files(assign=)", remedy=remedy)
        if watch is not None and assign != "at_start":
            raise OptionError(
                "watched files are always assigned on demand",
                where="Files(watch=, assign=)",
                remedy="Leave out assign=",
            )
        self._on_demand = assign == "on_demand"
        self._watch = watch if watch is None or isinstance(watch, Watch) else Watch(watch)
        self._files = FileSet(
            paths,
            format=format,
            schema=schema,
            columns=columns,
            storage_options=storage_options,
            policy=FilePolicy(null_values, encoding, on_missing_field, on_new_field, on_bad_record),
        )
        if self._watch is not None:
            self._watch = self._watch.resolved(self._files.urls)

    @property
    def boundedness(self) -> Boundedness:
        """Return `bounded`; with `watch` `unbounded`."""
        return "bounded" if self._watch is None else "unbounded"

    def schema(self) -> pa.Schema:
        """Return the declared schema, or the schema found in the first file; see `FileSet.schema`."""
        if self._watch is not None and self._files.needs_a_file and not self._files.has_files():
            raise PipelineError(
                "the watched paths have no file yet, so the schema is unknown",
                where=self._files.describe(),
                remedy="Pass schema=, or start the job when a file is there",
            )
        return self._files.schema()

    def found_schema(self) -> FoundSchema | None:
        """Return the schema of the first file with a record; None if `schema` was passed."""
        return self._files.found_schema()

    def with_found_schema(self, found: FoundSchema) -> Self:
        """Return the same source, whose files are read with that schema."""
        other = copy.copy(self)
        other._files = self._files.with_found_schema(found)
        return other

    def reading_only(self, columns: Sequence[str]) -> Self:
        """Return the same source; its readers read only these columns of Parquet files. See `FileSet.reading_only`."""
        other = copy.copy(self)
        other._files = self._files.reading_only(columns)
        return other

    def side_outputs(self) -> Mapping[str, pa.Schema]:
        """Return `bad_records` with `on_bad_record="dead_letter"`."""
        return self._files.side_outputs()

    def required_side_outputs(self) -> Mapping[str, str]:
        """Return the same: without a reader, dead letters would be lost without notice."""
        return self._files.must_be_read()

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return one split per file, several for a Parquet file with many rows; in the order of the paths.

        Raises:
            PipelineError: no file matches, or the files differ.
        """
        files = self._files.files()
        groups = [self._files.row_groups(file) for file in files]
        wanted_rows = max(MIN_SPLIT_ROWS, -(-sum(map(sum, groups)) // parallelism))
        splits = []
        for file, rows in zip(files, groups, strict=True):
            where = asdict(file)
            cuts = _cut(rows, wanted_rows)
            for cut in cuts:
                name = file.path if len(cuts) == 1 else f"{file.path}#{cut[0]}-{cut[1]}"
                weight = max(1, file.size_bytes // len(cuts))
                splits.append(
                    Split(f"{file.given}:{name}", {**where, "groups": list(cut) if rows else None}, weight=weight)
                )
        return splits

    def check_fresh_start(self) -> None:
        """Log a warning of each watched path that does not exist. It may appear while the job runs.

        Raises:
            OSError: a file system does not answer.
        """
        if self._watch is not None:
            for url in missing_paths(self._files.urls, self._files.storage_options):
                logger.warning(missing_text(url, self._watch.interval))

    def continuous_discovery(self) -> ContinuousDiscovery | None:
        """Return the interval of `watch`. A reader gets its next file while it reads one."""
        if self._watch is not None:
            return ContinuousDiscovery(self._watch.interval, OPEN_FILES)
        return ContinuousDiscovery(SEARCH_AGAIN, OPEN_FILES, fits_event_time=False) if self._on_demand else None

    def create_enumerator(self, state: Any) -> SplitEnumerator:
        """Return an enumerator that lists the paths: again and again with `watch`, else once."""
        return _PresentFiles(self) if self._watch is None else WatchedFiles(self._files, self._watch, state)

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader that reads its splits one after the other."""
        if self._watch is None and not self._on_demand:
            return FilesReader(self._files)
        disposal = None if self._watch is None else self._watch.disposal(self._files)
        return AssignedFilesReader(self._files, ctx.subtask, disposal, bounded=self._watch is None)

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        """Return the splits whose file is missing or was changed."""
        files = {split.split_id: file_of(split) for split in splits}
        found = {split_id: self._files.why_unreadable(file) for split_id, file in files.items()}
        return [(split_id, why) for split_id, why in found.items() if why]

    def describe(self) -> str:
        """Describe the paths."""
        how = "" if self._watch is None else f", watched every {format_duration(self._watch.interval)}"
        how += ", assigned on demand" if self._on_demand else ""
        return f"Files({self._files.describe()}{how})"


class _PresentFiles(SplitEnumerator):
    """Finds the files that exist, once."""

    def __init__(self, source: Files) -> None:
        self._source = source

    def discover(self) -> Discovery:
        """Return all splits, as small as possible: the smaller they are, the sooner all readers end."""
        # The state is not read: the runtime does not search again if a search was complete.
        return Discovery(self._source.discover(MAX_SPLITS_OF_FILES), {}, complete=True)


def _cut(rows: Sequence[int], wanted_rows: int) -> list[tuple[int, int]]:
    """Return ranges [first, last) of row groups of about `wanted_rows` rows, of similar size; at least one range."""
    total = sum(rows)
    parts = max(1, round(total / wanted_rows))
    cuts: list[tuple[int, int]] = []
    first, before = 0, 0
    for group, n in enumerate(rows):
        # A row group belongs to the part that contains its middle row. All numbers are doubled, so that they stay
        # whole.
        middle_in = (2 * before + n) * parts // (2 * total) if total else 0
        if middle_in > len(cuts) and group > first:
            cuts.append((first, group))
            first = group
        before += n
    return [*cuts, (first, len(rows))]


def file_of(split: Split) -> FoundFile:
    """Return the file of a split, as it was when it was listed."""
    data = split.data
    return FoundFile(data["given"], data["path"], data["size_bytes"], data.get("mtime"), data.get("etag"))


class FilesReader(SourceReader):
    """Reader of `Files`: one split after the other, in order."""

    def __init__(self, files: FileSet) -> None:
        self._files = files
        self._splits: dict[str, Split] = {}
        self._left: deque[str] = deque()
        self._at = FilePosition()
        self._reading: Iterator[Chunk] | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits; no file is opened yet."""
        self._splits |= {split.split_id: split for split in splits}
        self._left.extend(split.split_id for split in splits if not split.finished)

    def poll(self, now_ms: int) -> PollResult:
        """Return the next batch of the split being read, or the first of the next."""
        while self._left:
            split = self._splits[self._left[0]]
            if self._reading is None:
                self._at = FilePosition.from_json(split.position, is_text=split.data["groups"] is None)
                self._reading = self._open(split)
            chunk = next(self._reading, None)
            if chunk is None:
                self._refuse_shorter(split)
                self._finish(self._current(finished=True))
                continue
            self._at, batch, bad = self._at.after(chunk)
            sides = {}
            if bad and self._files.policy.on_bad_record == "dead_letter":
                sides = {BAD_RECORDS: bad_batch(split.data["path"], bad)}
            if batch.num_rows:
                return PollResult(batch, split.split_id, sides=sides)
            if chunk.bad:  # one poll must not read a whole file of bad records
                return PollResult(sides=sides, splits_changed=True)
        return self._without_splits(now_ms)

    def _finish(self, split: Split) -> None:
        """Record that the first split has been read."""
        self._splits[split.split_id] = split
        self._left.popleft()
        self._reading = None

    def _without_splits(self, now_ms: int) -> PollResult:
        return PollResult(state="end")

    def _open(self, split: Split) -> Iterator[Chunk]:
        groups = None if split.data["groups"] is None else (split.data["groups"][0], split.data["groups"][1])
        return self._files.chunks(file_of(split), groups=groups, at=self._at.at, noted=self._note)

    def _note(self, *, missing: Sequence[str], new: Sequence[str]) -> None:
        self._at = self._at.noting(missing, new)

    def _refuse_shorter(self, split: Split) -> None:
        if self._at.skip:
            raise truncated_file_error(split.data["path"], self._at.rows - self._at.skip, self._at.rows)

    def _current(self, *, finished: bool) -> Split:
        return replace(self._splits[self._left[0]], position=self._at.to_json(), finished=finished)

    def snapshot(self) -> Sequence[Split]:
        """Return all splits; the split being read has its position."""
        return self._open_and_read()

    def _open_and_read(self) -> list[Split]:
        now = dict(self._splits)
        # While records are skipped that an earlier run has emitted, only the restored position is valid.
        if self._reading is not None and not self._at.skip:
            now[self._left[0]] = self._current(finished=False)
        return list(now.values())

    def _positions(self) -> list[FilePosition]:
        return [FilePosition.from_json(split.position, is_text=True) for split in self._open_and_read()]

    def progress(self) -> Mapping[str, Any]:
        """Return records emitted over all runs, the number of splits, and the number of splits left."""
        rows = sum(position.rows for position in self._positions())
        return {"rows": rows, "splits": len(self._splits), "splits_left": len(self._left)}

    def counters(self) -> Mapping[str, int]:
        """Return `bad_records`, `missing_fields` and `new_fields`. The last two count columns, once for each file."""
        positions = self._positions()
        counts = {
            "bad_records": sum(position.bad for position in positions),
            "missing_fields": sum(len(position.missing) for position in positions),
            "new_fields": sum(len(position.new) for position in positions),
        }
        return {name: n for name, n in counts.items() if n}

    def close(self) -> None:
        """Close the open file. `counters` and `progress` keep their values, because the last heartbeat comes later."""
        if self._reading is not None:
            self._splits = {split.split_id: split for split in self._open_and_read()}
            self._reading.close()  # type: ignore[attr-defined]
            self._reading = None


class AssignedFilesReader(FilesReader):
    """Reader that gets splits while it reads. It forgets the splits that it has read, except for their counts.

    The counts are in its snapshot as a finished split, together with the files that are still to be deleted or
    archived.
    """

    def __init__(self, files: FileSet, subtask: int, disposal: FileDisposal | None, *, bounded: bool) -> None:
        super().__init__(files)
        self._subtask = subtask
        self._disposal = disposal
        self._totals: Counter[str] = Counter()
        self._changed = False
        self._bounded = bounded
        self._is_last = False

    def no_more_splits(self) -> None:
        """End after the splits that are there, if the source is bounded."""
        self._is_last = self._bounded

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits, and the counts of restored readers."""
        for split in splits:
            if _TOTALS in split.data:
                self._totals.update(split.position)
                if self._disposal is not None:
                    self._disposal.restore(split.data["read"])
        super().add_splits([split for split in splits if _TOTALS not in split.data])

    def snapshot(self) -> Sequence[Split]:
        """Return the splits that are not read to their end, and the counts of the others."""
        splits = self._open_and_read()
        if self._totals:
            totals = dict(sorted(self._totals.items()))
            read = [] if self._disposal is None else self._disposal.to_json()
            splits.append(Split(f"read by {self._subtask}", {_TOTALS: True, "read": read}, totals, finished=True))
        return splits

    def checkpoint_completed(self, checkpoint_id: int, splits: Sequence[Split]) -> None:
        """Delete or archive the files that had been read to their end in the checkpoint."""
        totals = next((split.position for split in splits if _TOTALS in split.data), None)
        if self._disposal is not None and totals is not None:
            self._disposal.completed(totals["files"])

    def progress(self) -> Mapping[str, Any]:
        """Return records emitted and files read over all runs, and the number of splits left."""
        rows = self._totals["rows"] + sum(position.rows for position in self._positions())
        return {"rows": rows, "files_read": self._totals["files"], "splits_left": len(self._left)}

    def counters(self) -> Mapping[str, int]:
        """See `FilesReader`."""
        counts = Counter(super().counters())
        counts.update({name: self._totals[name] for name in ("bad_records", "missing_fields", "new_fields")})
        return {name: n for name, n in counts.items() if n}

    def _finish(self, split: Split) -> None:
        super()._finish(split)
        position = FilePosition.from_json(split.position, is_text=True)
        del self._splits[split.split_id]
        counts = {
            "files": 1,
            "rows": position.rows,
            "bad_records": position.bad,
            "missing_fields": len(position.missing),
            "new_fields": len(position.new),
        }
        self._totals.update({name: n for name, n in counts.items() if n})
        self._changed = True
        if self._disposal is not None:
            self._disposal.read(self._totals["files"], file_of(split))

    def close(self) -> None:
        """Close the open file, and wait for files that are being deleted or archived."""
        super().close()
        if self._disposal is not None:
            self._disposal.close()

    def _without_splits(self, now_ms: int) -> PollResult:
        changed, self._changed = self._changed, False
        if self._is_last:
            return PollResult(state="end", splits_changed=changed)
        return PollResult(state="nothing_now", retry_at_ms=now_ms + RETRY_MS, idle=True, splits_changed=changed)
