"""The connectors of a distribution of its own, as a user would write them: lines of text on one disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from tidegate.connectors.interface import (
    Boundedness,
    PollResult,
    Sink,
    SinkWriter,
    Source,
    SourceContext,
    SourceReader,
    Split,
)
from tidegate.connectors.transactions import Committable, SinkContext, check_writer, is_leftover, transaction_id
from tidegate.errors import TidegateError
from tidegate.jobs.history.sink_identity import SinkIdentity

SCHEMA = pa.schema([("n", pa.int64())])
BATCH_LINES = 50


class NumberLines(Source):
    """Files with a number in each line; a split is a file, its position the lines that were read."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @property
    def boundedness(self) -> Boundedness:
        """Files end."""
        return "bounded"

    def schema(self) -> pa.Schema:
        """One column."""
        return SCHEMA

    def discover(self, parallelism: int) -> Sequence[Split]:
        """The files there are."""
        return [Split(path.name, {"path": str(path)}) for path in sorted(Path(self.folder).iterdir())]

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Reads one file after the other."""
        return _Reader()


class _Reader(SourceReader):
    def __init__(self) -> None:
        self._splits: list[Split] = []

    def add_splits(self, splits: Sequence[Split]) -> None:
        self._splits = list(splits)

    def poll(self, now_ms: int) -> PollResult:
        at = next((at for at, split in enumerate(self._splits) if not split.finished), None)
        if at is None:
            return PollResult(state="end")
        split = self._splits[at]
        lines = Path(split.data["path"]).read_text().splitlines()
        first = split.position or 0
        taken = lines[first : first + BATCH_LINES]
        done = first + len(taken)
        self._splits[at] = Split(split.split_id, split.data, done, finished=done == len(lines))
        if not taken:
            return PollResult(splits_changed=True)
        return PollResult(pa.record_batch({"n": pa.array(map(int, taken), pa.int64())}, schema=SCHEMA), split.split_id)

    def snapshot(self) -> Sequence[Split]:
        return list(self._splits)


class Lines(Sink):
    """One file for each transaction, staged beside the shown ones."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def identity(self) -> SinkIdentity:
        """The folder."""
        return SinkIdentity("Lines", (self.folder,))

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Writes lines."""
        return _Writer(Path(self.folder), ctx)


class _Writer(SinkWriter):
    def __init__(self, folder: Path, ctx: SinkContext) -> None:
        self._ctx = ctx
        self._rows: list[int] = []
        self._number = 0
        self._staged, self._shown = folder / "staged", folder / "shown"
        for place in (self._staged, self._shown):
            place.mkdir(parents=True, exist_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.column("n").to_pylist()

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        rows, self._rows, self._number = self._rows, [], self._number + 1
        name = transaction_id(self._ctx, checkpoint_id, self._number)

        def stage() -> Sequence[Committable]:
            if not rows:
                return ()
            (self._staged / name).write_text("".join(f"{row}\n" for row in rows))
            return (Committable(name, {}),)

        return stage

    def commit(self, committables: Sequence[Committable]) -> None:
        for handle in committables:
            check_writer(self._ctx, handle)
            staged, shown = self._staged / handle.transaction_id, self._shown / handle.transaction_id
            if shown.exists():
                continue
            if not staged.exists():
                raise TidegateError("neither committed nor staged", where=handle.transaction_id)
            os.replace(staged, shown)

    def abort(self, committables: Sequence[Committable]) -> None:
        for handle in committables:
            check_writer(self._ctx, handle)
            (self._staged / handle.transaction_id).unlink(missing_ok=True)

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        kept = {handle.transaction_id for handle in pending}
        for file in self._staged.iterdir():
            if file.name not in kept and is_leftover(self._ctx, file.name):
                file.unlink(missing_ok=True)
