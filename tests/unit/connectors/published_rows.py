"""What readers of a Parquet sink see."""

from __future__ import annotations

import fsspec
import pyarrow.parquet as pq


def rows_in(url: str) -> list[int]:
    """Column `n` of all published files, sorted."""
    filesystem, root = fsspec.core.url_to_fs(url)
    found = []
    for path in filesystem.glob(f"{root}/*.parquet"):
        with filesystem.open(path, "rb") as file:
            found += pq.read_table(file).column("n").to_pylist()
    return sorted(found)
