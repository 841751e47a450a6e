"""Replay: order, pace by the injected clock, and what comes after the last record (S4)."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.interface import PollResult, Source, SourceContext, SourceReader
from tidegate.connectors.replay import Replay
from tidegate.errors import OptionError, PipelineError

START = datetime(2013, 1, 1)


def write(path: Path, minutes: list[int | None], first: int = 0) -> Path:
    times = [None if m is None else START + timedelta(minutes=m) for m in minutes]
    numbers = range(first, first + len(minutes))
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64()), "at": pa.array(times, pa.timestamp("us"))}), path)
    return path


def reader_of(source: Source, parallelism: int = 1, subtask: int = 0) -> SourceReader:
    reader = source.create_reader(SourceContext("replay", subtask, parallelism))
    reader.add_splits(source.discover(parallelism)[subtask::parallelism])
    return reader


def rows_due(reader: SourceReader, now_ms: int) -> tuple[list[dict[str, Any]], PollResult]:
    seen: list[dict[str, Any]] = []
    while (polled := reader.poll(now_ms)).batch is not None:
        seen += polled.batch.to_pylist()
    return seen, polled


def numbers_due(reader: SourceReader, now_ms: int) -> list[int]:
    return [row["n"] for row in rows_due(reader, now_ms)[0]]


def test_records_of_all_files_play_in_order_of_time_then_file_with_timeless_ones_last(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [5, None, 1, 5], first=0)
    write(tmp_path / "b.parquet", [5, 0], first=10)
    assert numbers_due(reader_of(Replay(tmp_path, time_column="at")), 0) == [11, 2, 0, 3, 10, 1]


def test_record_r_belongs_to_split_r_modulo_the_number_of_splits(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", list(range(7)))
    source = Replay(tmp_path, time_column="at", splits=3)
    assert [numbers_due(reader_of(source, 3, s), 0) for s in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert len(source.discover(8)) == 3


def test_after_the_last_record_it_stays_open_and_idle_and_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [0, 1, None])
    reader = reader_of(Replay(tmp_path, time_column="at", batch_rows=2))
    assert reader.poll(0).batch is not None
    assert reader.progress() == {"played_all": False, "rows": 2, "null_times": 1}
    assert reader.poll(0).batch is not None
    assert reader.progress() == {"played_all": True, "rows": 3, "null_times": 1}
    for now_ms in (0, 10**9):
        polled = reader.poll(now_ms)
        assert (polled.state, polled.idle, polled.batch) == ("nothing_now", True, None)
        assert polled.retry_at_ms > now_ms


def test_a_restored_replay_that_had_played_all_is_idle_at_once_and_still_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [0, 1])
    source = Replay(tmp_path, time_column="at")
    reader = reader_of(source)
    numbers_due(reader, 0)
    again = source.create_reader(SourceContext("replay", 0, 1))
    again.add_splits(reader.snapshot())
    assert again.poll(0).idle
    assert again.progress()["played_all"]


def test_a_replay_with_an_end_goes_on_where_an_idle_one_stood_and_ends(tmp_path: Path) -> None:
    """S7.4: a fork of a job that replays works off the rest."""
    write(tmp_path / "a.parquet", [0, 1, 2, 3])
    idle = reader_of(Replay(tmp_path, time_column="at", batch_rows=3))
    assert idle.poll(0).batch is not None
    source = Replay(tmp_path, time_column="at", at_end="end")
    assert (source.boundedness, Replay(tmp_path, time_column="at").boundedness) == ("bounded", "unbounded")
    ending = source.create_reader(SourceContext("replay", 0, 1))
    ending.add_splits(idle.snapshot())
    assert ending.active_splits() == {"replay-00000-of-00001"}
    seen, polled = rows_due(ending, 0)
    assert ([row["n"] for row in seen], polled.state) == ([3], "end")
    assert [split.finished for split in ending.snapshot()] == [True]
    assert ending.active_splits() == frozenset()
    again = source.create_reader(SourceContext("replay", 0, 1))
    again.add_splits(ending.snapshot())
    assert again.poll(0).state == "end"


def test_a_loop_plays_again_with_times_moved_on_by_the_span(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [0, 10, None])
    reader = reader_of(Replay(tmp_path, time_column="at", at_end="loop"))
    played = []
    for _ in range(3):
        batch = reader.poll(0).batch
        assert batch is not None
        played += batch.to_pylist()
    assert [row["n"] for row in played] == [0, 1, 2] * 3
    minutes = [None if row["at"] is None else (row["at"] - START) // timedelta(minutes=1) for row in played]
    assert minutes == [0, 10, None, 10, 20, None, 20, 30, None]
    assert reader.progress() == {"played_all": True, "rows": 9, "null_times": 1}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_loops_move_times_exactly_in_every_unit(tmp_path: Path, unit: str) -> None:
    times = pa.array([START, START + timedelta(hours=1)], pa.timestamp(unit, "UTC"))
    pq.write_table(pa.table({"at": times}), tmp_path / "a.parquet")
    source = Replay(tmp_path, time_column="at", at_end="loop")
    reader = reader_of(source)
    first, second = reader.poll(0).batch, reader.poll(0).batch
    assert first is not None and second is not None
    assert second.schema == source.schema()
    assert second.column("at")[0] == first.column("at")[1]


def test_the_rate_counts_records_of_all_splits_from_the_first_poll(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", list(range(1_000)))
    reader = reader_of(Replay(tmp_path, time_column="at", rate=100, splits=2))
    assert len(numbers_due(reader, 5_000)) == 2
    assert len(numbers_due(reader, 5_999)) == 98
    assert len(numbers_due(reader, 6_004)) == 2, "a tick after the batch before"
    assert len(numbers_due(reader, 60_000)) == 898


def test_the_pace_starts_anew_after_a_restore(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", list(range(100)))
    source = Replay(tmp_path, time_column="at", rate=1)
    reader = reader_of(source)
    numbers_due(reader, 10_000)
    assert numbers_due(reader, 13_000) == [1, 2, 3]
    again = source.create_reader(SourceContext("replay", 0, 1))
    again.add_splits(reader.snapshot())
    assert numbers_due(again, 90_000) == [4]
    assert numbers_due(again, 92_000) == [5, 6]


def test_speedup_plays_by_event_time_and_says_when_the_next_record_is_due(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [0, 1, 1, 60, None])
    reader = reader_of(Replay(tmp_path, time_column="at", speedup=60))
    rows, polled = rows_due(reader, 7_000)
    assert [r["n"] for r in rows] == [0]
    assert polled.retry_at_ms == 8_000
    assert not polled.idle
    assert numbers_due(reader, 7_999) == []
    assert numbers_due(reader, 8_000) == [1, 2]
    assert numbers_due(reader, 66_999) == []
    assert numbers_due(reader, 67_000) == [3, 4]


def test_speedup_goes_on_through_loops(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [0, 1])
    reader = reader_of(Replay(tmp_path, time_column="at", speedup=60, at_end="loop"))
    assert numbers_due(reader, 0) == [0]
    assert numbers_due(reader, 1_000) == [1, 0]
    assert numbers_due(reader, 2_000) == [1, 0]


def test_integer_times_are_microseconds(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([3_000_000, 0], pa.int64())}), tmp_path / "a.parquet")
    reader = reader_of(Replay(tmp_path, time_column="at", speedup=1))
    assert [r["at"] for r in rows_due(reader, 0)[0]] == [0]
    assert [r["at"] for r in rows_due(reader, 3_000)[0]] == [3_000_000]


def test_no_records_at_all_are_idle_not_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [])
    for at_end in ("idle", "loop"):
        reader = reader_of(Replay(tmp_path, time_column="at", at_end=at_end))
        assert reader.poll(0).idle


def test_a_split_without_records_is_finished_and_holds_no_watermark_back(tmp_path: Path) -> None:
    """S4.4: two records make two of three splits; at another parallelism all may come to one reader."""
    write(tmp_path / "a.parquet", [0, 1])
    for at_end in ("idle", "loop"):
        reader = reader_of(Replay(tmp_path, time_column="at", at_end=at_end, splits=3))
        assert [split.finished for split in reader.snapshot()] == [False, False, True]
        assert reader.active_splits() == {"replay-00000-of-00003", "replay-00001-of-00003"}


def test_a_split_that_brings_no_more_times_holds_no_watermark_back(tmp_path: Path) -> None:
    """S4.4: one that has played all, and one all of whose records are without a time."""
    write(tmp_path / "a.parquet", [0, 1, None])
    for at_end, left in (("idle", set()), ("loop", {"replay-00000-of-00003", "replay-00001-of-00003"})):
        reader = reader_of(Replay(tmp_path, time_column="at", at_end=at_end, splits=3))
        assert reader.active_splits() == {"replay-00000-of-00003", "replay-00001-of-00003"}
        for _ in range(3):
            assert reader.poll(0).batch is not None
        assert reader.active_splits() == left
        assert not any(split.finished for split in reader.snapshot())


def test_files_that_came_later_do_not_change_a_restored_replay(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [0, 2])
    source = Replay(tmp_path, time_column="at")
    splits = source.discover(1)
    write(tmp_path / "b.parquet", [1], first=9)
    reader = Replay(tmp_path, time_column="at").create_reader(SourceContext("replay", 0, 1))
    reader.add_splits(splits)
    assert numbers_due(reader, 0) == [0, 1]


def test_a_time_column_that_is_missing_or_no_time_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": ["x"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(PipelineError, match=r"no column 'when', which time_column=.*columns are at, n"):
        Replay(tmp_path, time_column="when").schema()
    with pytest.raises(PipelineError, match="'at' has type string, which is not a time"):
        Replay(tmp_path, time_column="at").schema()


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"speedup": -1}, {"splits": 0}, {"at_end": "stop"}, {"batch_rows": 0}])
def test_a_value_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Replay("x", time_column="at", **wrong)


def test_rate_and_speedup_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="exclude"):
        Replay("x", time_column="at", rate=1, speedup=1)
