"""Paced sources: how their rows are cut into batches when the loop polls without a pause (S4)."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.datagen import DataGen
from tidegate.connectors.interface import Source, SourceContext, SourceReader
from tidegate.connectors.replay import Replay

TICK_MS = 5
ROWS_PER_S = 20_000


def generated(folder: Path, batch_rows: int) -> Source:
    schema = pa.schema([("n", pa.int64())])
    return DataGen(lambda numbers: {"n": numbers}, schema, rate=ROWS_PER_S, batch_rows=batch_rows)


def recorded(folder: Path) -> Path:
    start = datetime(2026, 1, 1)
    at = [start + timedelta(microseconds=50 * n) for n in range(ROWS_PER_S)]
    path = folder / "recorded.parquet"
    pq.write_table(pa.table({"n": np.arange(ROWS_PER_S), "at": pa.array(at, pa.timestamp("us"))}), path)
    return path


def replayed_at_a_rate(folder: Path, batch_rows: int) -> Source:
    return Replay(recorded(folder), time_column="at", rate=ROWS_PER_S, batch_rows=batch_rows)


def replayed_at_a_speed(folder: Path, batch_rows: int) -> Source:
    return Replay(recorded(folder), time_column="at", speedup=1.0, batch_rows=batch_rows)


SOURCES = [generated, replayed_at_a_rate, replayed_at_a_speed]


def reader_of(source: Source) -> SourceReader:
    reader = source.create_reader(SourceContext("paced", 0, 1))
    reader.add_splits(source.discover(1))
    return reader


def polled_without_a_pause(reader: SourceReader, from_ms: int, until_ms: int) -> list[tuple[int, int]]:
    """(time, rows) of each batch; the loop asks four times a millisecond."""
    found: list[tuple[int, int]] = []
    for now_ms in range(from_ms, until_ms):
        for _ in range(4):
            polled = reader.poll(now_ms)
            if polled.batch is not None:
                found.append((now_ms, polled.batch.num_rows))
            else:
                assert polled.retry_at_ms is not None and polled.retry_at_ms > now_ms
    return found


@pytest.mark.parametrize("make", SOURCES)
def test_a_busy_loop_gets_one_batch_a_tick(make: Any, tmp_path: Path) -> None:
    batches = polled_without_a_pause(reader_of(make(tmp_path, 65_536)), 1_000, 1_500)
    assert len(batches) <= 500 // TICK_MS, f"{len(batches)} batches of {batches[-1][1]} rows"
    assert sum(rows for _, rows in batches) >= ROWS_PER_S // 2 - TICK_MS * ROWS_PER_S // 1000
    assert min(later - sooner for (sooner, _), (later, _) in zip(batches, batches[1:], strict=False)) >= TICK_MS


@pytest.mark.parametrize("make", SOURCES)
def test_a_backlog_does_not_wait_for_the_next_tick(make: Any, tmp_path: Path) -> None:
    reader = reader_of(make(tmp_path, 1_000))
    assert reader.poll(0).batch is not None
    batches = polled_without_a_pause(reader, 400, 401)
    assert [rows for _, rows in batches] == [1_000] * 4, "8,000 rows are due at once"
    assert sum(rows for _, rows in polled_without_a_pause(reader, 401, 402)) == 4_000
    later = [at_ms for at_ms, _ in polled_without_a_pause(reader, 402, 412)]
    assert later[1:] == [405, 410], "and then it keeps the tick"


def test_a_slow_rate_asks_again_when_the_next_row_is_due() -> None:
    reader = reader_of(DataGen(lambda numbers: {"n": numbers}, pa.schema([("n", pa.int64())]), rate=3))
    assert reader.poll(0).batch is not None
    assert reader.poll(1).retry_at_ms == 334
    assert reader.poll(333).retry_at_ms == 336, "no sooner than the next tick"
    assert reader.poll(336).batch is not None


@pytest.mark.parametrize(("rate", "batches"), [(12_000, 17), (13_000, 20)])
def test_splits_with_few_rows_have_a_longer_tick(rate: int, batches: int) -> None:
    """Batches below 64 rows cost the same, whatever their number of rows. Both ticks meet at multiples of 100 ms, where
    most windows end.
    """
    reader = reader_of(DataGen(lambda numbers: {"n": numbers}, pa.schema([("n", pa.int64())]), rate=rate))
    at_ms = [now_ms for now_ms, _ in polled_without_a_pause(reader, 0, 301)]
    assert at_ms[1:] == [-(-100 * n // batches) for n in range(1, 3 * batches + 1)]
    assert {100, 200, 300} <= set(at_ms)


@pytest.mark.parametrize("make", SOURCES)
def test_sources_that_begin_at_different_times_emit_together(make: Any, tmp_path: Path) -> None:
    """So their batches are merged after an exchange, and no watermark waits for another source."""
    sooner, later = (
        [at_ms for at_ms, _ in polled_without_a_pause(reader_of(make(tmp_path, 65_536)), from_ms, 1_100)]
        for from_ms in (1_000, 1_003)
    )
    assert later[1:] == sooner[1:]
    assert len(later) == 100 // TICK_MS
