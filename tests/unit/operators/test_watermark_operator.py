"""Watermarks from event times (S4.4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.channel.elements import Watermark
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.snapshot.parts import OWNER_COLUMN, StatePart
from tidegate.snapshot.streams import decode_parts

GOLDEN = Path(__file__).parent / "golden"
SPEC = WatermarkSpec("t", delay_us=10, unit="us")


def feed(operator: Any, times: list[int | None], split: str | None = None, active: set[str] | None = None) -> list[int]:
    """Feed a batch; the watermarks that came after it."""
    operator.ctx.current_split = split
    operator.ctx.active_splits = frozenset(active or ())
    batch = pa.record_batch({"t": pa.array(times, pa.int64())})
    first, *rest = operator.process(batch, 0)
    assert first is batch
    assert all(isinstance(w, Watermark) for w in rest)
    return [w.time_us for w in rest]


def test_the_watermark_follows_the_latest_time_by_the_delay_and_never_goes_back(open_operator: Any) -> None:
    operator = open_operator(SPEC)
    assert feed(operator, [100, 120, 110]) == [110]
    assert feed(operator, [90]) == []
    assert feed(operator, [120]) == []
    assert feed(operator, [121]) == [111]


def test_an_unread_split_holds_the_watermark_back(open_operator: Any) -> None:
    """S4.4."""
    operator = open_operator(SPEC)
    assert feed(operator, [100], "a", {"a", "b"}) == []
    assert feed(operator, [50], "b", {"a", "b"}) == [40]
    assert feed(operator, [70], "b", {"a", "b"}) == [60]
    assert feed(operator, [500], "b", {"a", "b"}) == [90]


def test_a_finished_split_drops_out_of_the_minimum(open_operator: Any) -> None:
    operator = open_operator(SPEC)
    assert feed(operator, [100], "a", {"a", "b"}) == []
    assert feed(operator, [300], "b", {"b"}) == [290]


def test_the_last_batch_of_the_last_split_advances_the_watermark(open_operator: Any) -> None:
    operator = open_operator(SPEC)
    feed(operator, [100], "a", {"a", "b"})
    assert feed(operator, [300], "b", set()) == [290]


def test_null_times_move_nothing_and_are_counted(open_operator: Any) -> None:
    operator = open_operator(SPEC)
    assert feed(operator, [None, 100, None]) == [90]
    assert feed(operator, [None]) == []
    assert operator.ctx.counters == {"null_event_time": 3}


@pytest.mark.parametrize(("unit", "time"), [("s", 7), ("ms", 7_000), ("us", 7_000_000), ("ns", 7_000_000_999)])
def test_times_count_in_their_unit(open_operator: Any, unit: Any, time: int) -> None:
    operator = open_operator(WatermarkSpec("t", 1_000_000, unit))
    batch = pa.record_batch({"t": pa.array([time]).cast(pa.timestamp(unit, "UTC"))})
    assert list(operator.process(batch, 0))[1:] == [Watermark(6_000_000)]


def test_incoming_watermarks_stop_here(open_operator: Any) -> None:
    operator = open_operator(SPEC)
    assert list(operator.on_watermark(5)) == [] and not operator.forwards_watermarks()


def test_a_restored_assigner_holds_back_for_the_splits_as_before(open_operator: Any) -> None:
    """S4.4."""
    operator = open_operator(SPEC)
    feed(operator, [100], "a", {"a", "b"})
    feed(operator, [50], "b", {"a", "b"})
    restored = open_operator(SPEC, operator.snapshot(1)())
    assert feed(restored, [20], "a", {"a", "b"}) == [40]
    assert feed(restored, [200], "b", {"a", "b"}) == [90]


@pytest.mark.parametrize("after_drain", [False, True])
def test_the_watermark_is_told_ahead_of_the_first_rows_only_behind_a_drain(
    open_operator: Any, after_drain: bool
) -> None:
    """S7.5: elsewhere rows in flight, which others have in other channels, would be late by it."""
    operator = open_operator(SPEC)
    feed(operator, [50], "a", {"a"})
    restored = open_operator(SPEC)
    restored.ctx.after_drain = after_drain
    restored.restore(operator.snapshot(1)())
    restored.ctx.current_split, restored.ctx.active_splits = "a", frozenset({"a"})
    batch = pa.record_batch({"t": pa.array([20], pa.int64())})
    assert list(restored.process(batch, 0)) == ([Watermark(40), batch] if after_drain else [batch, Watermark(40)])


def test_finished_splits_are_not_in_the_state(open_operator: Any) -> None:
    operator = open_operator(SPEC)
    feed(operator, [100], "a", {"a", "b"})
    feed(operator, [50], "b", {"b"})
    (part,) = operator.snapshot(1)()
    row = {"split": "b", "time_us": 50, "untold": False, OWNER_COLUMN: None}
    assert (part.kind, part.table.to_pylist()) == ("list", [row])


def behind_a_drain(open_operator: Any, *splits: str) -> Any:
    """Restored behind a drain with these splits at 50, and no row yet."""
    operator, restored = open_operator(SPEC), open_operator(SPEC)
    for split in splits:
        feed(operator, [50], split, set(splits))
    restored.ctx.after_drain = True
    restored.restore(operator.snapshot(1)())
    restored.ctx.active_splits = frozenset(splits)
    return restored


def tells_first(operator: Any, split: str | None, active: set[str]) -> bool:
    """Whether its watermark goes ahead of a late row of `split`."""
    operator.ctx.current_split, operator.ctx.active_splits = split, frozenset(active)
    return isinstance(next(iter(operator.process(pa.record_batch({"t": pa.array([20], pa.int64())}), 0))), Watermark)


def test_what_is_still_to_be_told_is_state_until_the_first_rows(open_operator: Any) -> None:
    """S7.5."""
    operator = behind_a_drain(open_operator, "a")
    restored = open_operator(SPEC, operator.snapshot(2)())
    assert tells_first(open_operator(SPEC, restored.snapshot(3)()), "a", {"a"}) is False, "it does not read a any more"
    restored.ctx.active_splits = frozenset({"a"})
    again = open_operator(SPEC, restored.snapshot(3)())
    assert tells_first(again, "a", {"a"}) and not tells_first(again, "a", {"a"})
    assert not tells_first(open_operator(SPEC, again.snapshot(4)()), "a", {"a"})


def test_at_another_parallelism_it_is_told_by_who_has_only_splits_without_a_row(open_operator: Any) -> None:
    """S7.5: of the others rows may be in flight."""
    silent, heard = behind_a_drain(open_operator, "a"), behind_a_drain(open_operator, "b")
    assert tells_first(heard, "b", {"b"})
    parts = [*silent.snapshot(2)(), *heard.snapshot(2)()]
    assert tells_first(open_operator(SPEC, merged(parts)), "a", {"a"})
    assert not tells_first(open_operator(SPEC, merged(parts)), "b", {"b"})
    assert not tells_first(open_operator(SPEC, merged(parts)), "a", {"a", "b"})


def merged(parts: list[StatePart]) -> list[StatePart]:
    """As every subtask gets them at another parallelism."""
    return [StatePart("progress", "list", pa.concat_tables([part.table for part in parts]))]


@pytest.mark.parametrize("version", [1, 2])
def test_progress_of_every_version_is_read(open_operator: Any, version: int) -> None:
    """ADR 0016: version 1 did not know what is still to be told."""
    parts = decode_parts((GOLDEN / f"watermark-progress-v{version}.bin").read_bytes())
    operator = open_operator(SPEC, parts)
    assert tells_first(operator, "a", {"a"}) is (version == 2)
    assert feed(operator, [70], "a", {"a"}) == [60]


def test_progress_is_written_as_in_its_golden_file(open_operator: Any) -> None:
    (golden,) = decode_parts((GOLDEN / "watermark-progress-v2.bin").read_bytes())
    (part,) = behind_a_drain(open_operator, "a").snapshot(1)()
    assert (part.name, part.kind, part.table) == (golden.name, golden.kind, golden.table)
