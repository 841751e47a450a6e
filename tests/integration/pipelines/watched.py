"""Rows of files that arrive in a folder while the job runs, sent to the subtask of their key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate import Files, Parquet, Pipeline, Watch

SCHEMA = pa.schema([("file", pa.int64()), ("n", pa.int64())])


def deliver(folder: Path, file: int, rows: int) -> list[tuple[int, int]]:
    """Write a file as a careful writer does: under a hidden name, then renamed. Return its rows."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"file": [file] * rows, "n": list(range(rows))}, schema=SCHEMA)
    pq.write_table(table, folder / f"_{file:05d}.parquet", row_group_size=500)
    os.rename(folder / f"_{file:05d}.parquet", folder / f"{file:05d}.parquet")
    return [(file, n) for n in range(rows)]


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: out (folder of the results); the files arrive in the folder `in` beside it."""
    p = Pipeline()
    folder = Path(str(args["out"])).parent / "in"
    watched = Files(folder, schema=SCHEMA, watch=Watch("200 ms", complete="listed"))
    p.read(watched, uid="files").repartition("n").write(Parquet(str(args["out"])), uid="out")
    return p
