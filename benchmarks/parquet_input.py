"""Input of the Parquet benchmarks: rows in order of time, a million rows a second."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 8
ROWS_PER_SECOND = 1_000_000
MULTIPLIER = 2654435761
OTHER_COLUMNS = 17
"""Columns of a wide input beside the key, the value and the time: one third is text."""


@dataclass(frozen=True)
class Input:
    """Rows, number of keys, whether keys are text of 20 characters, whether there are columns that nobody reads, and
    the seconds of a window.
    """

    rows: int
    keys: int
    text: bool = False
    wide: bool = False
    window_s: int = 1

    @property
    def name(self) -> str:
        """Return a short name for folders and tables."""
        extra = (", text" if self.text else "") + (", 20 columns" if self.wide else "")
        extra += f", windows of {self.window_s} s" if self.window_s > 1 else ""
        return f"{self.rows:,} rows, {self.keys:,} keys{extra}"

    @property
    def newest_window_us(self) -> int:
        """Return the start of the newest window, microseconds since the epoch."""
        return ((self.rows - 1) // (ROWS_PER_SECOND * self.window_s)) * self.window_s * 1_000_000

    def write(self, folder: Path) -> None:
        """Write the files. Row i has key i * 2654435761 modulo the number of keys."""
        folder.mkdir(parents=True)
        per_file = self.rows // FILES
        names = pa.array([f"key-of-a-user-{key:06d}" for key in range(self.keys)]) if self.text else None
        for number in range(FILES):
            i = np.arange(number * per_file, (number + 1) * per_file)
            k = i * MULTIPLIER % self.keys
            times = pa.array(i * 1_000_000 // ROWS_PER_SECOND).view(pa.timestamp("us"))
            columns = {"k": pa.array(k) if names is None else names.take(pa.array(k)), "v": i % 1000, "ts": times}
            if self.wide:
                texts = pa.array([f"a text of some length {n:04d}" for n in range(10_000)])
                for other in range(OTHER_COLUMNS):
                    mixed = (i * (other + 3)) % 9973
                    columns[f"c{other}"] = texts.take(pa.array(mixed)) if other % 3 == 0 else mixed
            pq.write_table(pa.table(columns), folder / f"{number:02d}.parquet")
