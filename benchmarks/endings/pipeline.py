"""The job on tidegate: keyed tumbling windows from a folder of files into a two-phase-commit file sink.

It is one file, so that it can be pinned as the job's artifact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate import JsonLines, Pipeline, count, sum, tumbling
from tidegate.connectors.interface import Boundedness, PollResult, Source, SourceContext, SourceReader, Split

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts_ms", pa.int64())])
LOOK_MS = 100
"""Interval of checks of the folder for new files, milliseconds."""


class Feed(Source):
    """Reads the rows of files in a folder; unless it is bounded, also files that arrive later. Position: rows read."""

    def __init__(self, folder: str, bounded: bool) -> None:
        self._folder, self._bounded = folder, bounded

    @property
    def boundedness(self) -> Boundedness:
        """Return the requested boundedness."""
        return "bounded" if self._bounded else "unbounded"

    def schema(self) -> pa.Schema:
        """Return the schema: key, value, event time in milliseconds."""
        return SCHEMA

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return one split: the folder."""
        return [Split("feed", {})]

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader of the whole folder, or of nothing."""
        return FeedReader(Path(self._folder), self._bounded)


class FeedReader(SourceReader):
    """Reads the folder's files ordered by name, each file as a whole."""

    def __init__(self, folder: Path, bounded: bool) -> None:
        self._folder, self._bounded = folder, bounded
        self._split: Split | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Store the folder."""
        self._split = next(iter(splits), None)

    def poll(self, now_ms: int) -> PollResult:
        """Return all new rows."""
        if self._split is None or self._split.finished:
            return PollResult(state="end" if self._bounded else "nothing_now", retry_at_ms=now_ms + LOOK_MS)
        lines = [line for path in sorted(self._folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
        new = lines[self._split.position or 0 :]
        if new:
            self._split = replace(self._split, position=len(lines))
            return PollResult(pa.RecordBatch.from_pylist([json.loads(line) for line in new], SCHEMA), "feed")
        if self._bounded:
            self._split = replace(self._split, finished=True)
            return PollResult(state="end")
        return PollResult(state="nothing_now", retry_at_ms=now_ms + LOOK_MS)

    def snapshot(self) -> Sequence[Split]:
        """Return the folder, with the number of rows read."""
        return [self._split] if self._split else []


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: kind ("event" or "processing"), window (such as "10 s"), bounded, in and out (folders)."""
    p = Pipeline()
    rows = p.read(Feed(args["in"], args["bounded"]), uid="feed")
    if args["kind"] == "event":
        rows = rows.with_watermark("ts_ms", "0 s", unit="ms")
    (
        rows.group_by("k")
        .window(tumbling(args["window"], time=args["kind"]))
        .agg(n=count(), total=sum("v"), uid="window")
        .write(JsonLines(args["out"]), uid="out")
    )
    return p
