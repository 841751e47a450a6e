"""The benchmark of many slots: rows and expected results."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import scaling
from engine_runs import WINDOWS, digest_of
from generated_runs import Generated
from pipelines.generated import make_generator


@pytest.mark.parametrize("slots", [2, 4, 32])
def test_expected_results_are_those_of_the_generated_rows(tmp_path: Path, slots: int) -> None:
    given = Generated(12_000_000, 7)
    batch = make_generator(given.rows, given.keys, slots)(np.arange(given.rows))
    rows = pa.table({name: batch[name] for name in batch.schema.names})
    target = tmp_path / "generated"
    target.mkdir()
    with duckdb.connect() as connection:
        connection.register("generated", rows)
        windows = (
            "SELECT k, make_timestamp(ts_ms // 10000 * 10000000) AS window_start, count(*) AS n, "
            "CAST(sum(v) AS BIGINT) AS total FROM generated GROUP BY ALL"
        )
        connection.execute(f"COPY ({windows}) TO '{target}/part.parquet'")
    assert scaling.expected_digest(tmp_path, given, slots) == digest_of(WINDOWS.results, target, given.newest_window_us)


def test_each_slot_reads_rows_of_the_whole_time() -> None:
    rows, slots = 1_000_000, 4
    generate = make_generator(rows, 10, slots)
    for slot in range(slots):
        times = generate(np.arange(slot * rows // slots, (slot + 1) * rows // slots))["ts_ms"].to_numpy()
        assert (times[0], times[-1]) == (0, (rows - slots) // 500)
