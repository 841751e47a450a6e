"""The pipeline of `benchmarks/end_of_job.py`: two source subtasks and a chain of two-phase-commit sinks.

It is one file, so that it can be pinned as the job's artifact. Arguments: `stages`, `rows` (integers); `sink`: one of
`SINKS`; `out`: a folder with one subfolder for each stage; `report`: a local folder in which each source subtask
records the time of its last record.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

import tidegate
from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.transactions import Committable, SinkContext

SOURCES = 2
ROWS_PER_S = 20_000
"""Rows of both subtasks together."""
WAIT_S = 0.05
REQUEST_S = 0.02
SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.float64())])


class Rows:
    """Computes rows from their numbers; records the time of a source subtask's last row."""

    def __init__(self, rows: int, report: str) -> None:
        self._last = {(s + 1) * rows // SOURCES - 1: s for s in range(SOURCES)}
        self._report = report

    def __call__(self, numbers: Any) -> dict[str, Any]:
        """Convert row numbers to columns."""
        made = {"k": numbers % 1000, "v": np.sqrt(numbers)}
        if int(numbers[-1]) in self._last:
            now_ns = time.time_ns()
            with open(os.path.join(self._report, f"source-{self._last[int(numbers[-1])]}"), "w") as file:
                file.write(str(now_ns))
        return made


class Distant(DirFileSystem):
    """This machine's disk as a remote object store: every request takes `REQUEST_S` longer.

    Sinks treat it as remote: they upload, copy and delete, instead of rename and fsync as on a local disk.
    """

    protocol = "distant"

    def __init__(self, **options: Any) -> None:
        super().__init__(path="/", fs=LocalFileSystem(auto_mkdir=True), **options)


def _as_request(name: str) -> Callable[..., Any]:
    asked = getattr(DirFileSystem, name)

    def request(self: Distant, *args: Any, **options: Any) -> Any:
        time.sleep(REQUEST_S)
        return asked(self, *args, **options)

    return request


READING = ("exists", "isfile", "isdir", "info", "size", "ls", "find", "cat_file")
WRITING = ("put_file", "pipe_file", "cp_file", "rm_file")
for _name in (*READING, *WRITING):
    setattr(Distant, _name, _as_request(_name))
fsspec.register_implementation(Distant.protocol, Distant, clobber=True)


def distant_parquet(folder: str) -> Sink:
    """Return the Parquet sink on `Distant`."""
    return tidegate.Parquet(f"{Distant.protocol}://{folder}")


class Waiting(Sink):
    """A two-phase-commit sink whose store takes `WAIT_S` to stage and `WAIT_S` to commit, like a remote one.

    It uses almost no CPU, so that the measured time is the runtime's own. Each commit writes a file with its row count.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer; see the class."""
        os.makedirs(self.folder, exist_ok=True)
        return WaitingWriter(self.folder, ctx.subtask)

    def describe(self) -> str:
        """Return the name; see the class."""
        return f"Waiting({self.folder!r})"


class WaitingWriter(SinkWriter):
    """Writer of Waiting."""

    def __init__(self, folder: str, subtask: int) -> None:
        self._folder, self._subtask, self._rows = folder, subtask, 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Count rows."""
        self._rows += batch.num_rows

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Stage the counted rows."""
        handle = Committable(f"{self._subtask}-{checkpoint_id}", {"rows": self._rows})

        def stage() -> Sequence[Committable]:
            time.sleep(WAIT_S)
            return [handle]

        return stage

    def commit(self, committables: Sequence[Committable]) -> None:
        """Commit the staged rows."""
        time.sleep(WAIT_S)
        for handle in committables:
            with open(os.path.join(self._folder, handle.transaction_id), "w") as file:
                file.write(str(handle.data["rows"]))

    def abort(self, committables: Sequence[Committable]) -> None:
        """Do nothing: nothing is staged in a store."""

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        """Do nothing: nothing is staged in a store."""


SINKS: dict[str, Callable[[str], Sink]] = {"parquet": tidegate.Parquet, "distant": distant_parquet, "waiting": Waiting}


def build(args: dict[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    rows = int(args["rows"])
    p = tidegate.Pipeline()
    source = tidegate.DataGen(
        Rows(rows, str(args["report"])), SCHEMA, rows=rows, splits=SOURCES, rate=ROWS_PER_S, batch_rows=1024
    )
    stream = p.read(source, uid="numbers")
    for n in range(int(args["stages"])):
        sink = SINKS[args["sink"]](os.path.join(str(args["out"]), f"stage-{n}"))
        stream = stream.write_through(sink, uid=f"stage-{n}")
    return p
