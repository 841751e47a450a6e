"""S4.4, S5.5: operators that take state over from several subtasks whose watermarks differed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.channel.elements import MAX_WATERMARK, Watermark
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.joins.join_specs import BroadcastJoinSpec
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.redistribution import Rescale, redistributed
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.keys.key_hash import hash_keys, key_groups, subtask_of_key_groups

GROUPS = 128
INPUT = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us"))])
WINDOWS = WindowAggSpec(
    ("k",),
    "t",
    "us",
    10,
    0,
    (BoundAggregate("n", "count"),),
    INPUT,
    pa.schema(
        [
            ("k", pa.int64()),
            ("window_start", pa.timestamp("us")),
            ("window_end", pa.timestamp("us")),
            ("n", pa.int64()),
        ]
    ),
)
TIMES = WatermarkSpec("t", 10, "us")
LEFT = pa.schema([("k", pa.int64())])
JOIN = BroadcastJoinSpec(
    ("k",), "inner", LEFT, pa.schema([("k", pa.int64()), ("v", pa.int64())]), pa.schema([*LEFT, ("v", pa.int64())])
)


def opened(spec: OperatorSpec, subtask: int, parallelism: int) -> Any:
    operator: Any = create_operator(spec)
    operator.open(OperatorContext("job", "l", "op", subtask, parallelism, GROUPS, 1, "r", (pa.schema([]),), lambda: 0))
    return operator


def rescaled(spec: OperatorSpec, old: Sequence[Any], parallelism: int, broadcast_from: int = 0) -> list[Any]:
    """The operators of a job of `parallelism` that take over from `old`."""
    streams = [encode_parts(operator.snapshot(1)()) for operator in old]
    out = []
    for index in range(parallelism):
        operator = opened(spec, index, parallelism)
        former = {i: decode_parts(stream) for i, stream in enumerate(streams)}
        operator.restore(redistributed(former, broadcast_from, Rescale(len(old), parallelism, GROUPS, index)))
        out.append(operator)
    return out


def owner(key: int, parallelism: int) -> int:
    group = key_groups(hash_keys(pa.record_batch({"k": [key]}), ["k"]), GROUPS)[0]
    return int(subtask_of_key_groups(parallelism, GROUPS)[group])


def key_of(subtask: int, parallelism: int) -> int:
    """Some key of a subtask."""
    return next(key for key in range(1000) if owner(key, parallelism) == subtask)


def rows(*pairs: tuple[int, int]) -> pa.RecordBatch:
    columns = [pa.array([k for k, _ in pairs], pa.int64()), pa.array([t for _, t in pairs], pa.int64())]
    return pa.record_batch([columns[0], columns[1].cast(pa.timestamp("us"))], schema=INPUT)


def fired(operator: Any, watermark_us: int) -> list[tuple[int, int, int]]:
    return sorted(
        (row["k"], int(start), row["n"])
        for batch in operator.on_watermark(watermark_us)
        for row, start in zip(batch.to_pylist(), batch.column("window_start").cast(pa.int64()).to_pylist())
    )


def feed(operator: Any, *pairs: tuple[int, int]) -> None:
    assert list(operator.process(rows(*pairs), 0)) == []


def two_windows() -> tuple[list[Any], int, int]:
    """Two subtasks whose watermarks are 10 and 30, and a key of each."""
    old = [opened(WINDOWS, i, 2) for i in range(2)]
    slow, fast = key_of(0, 2), key_of(1, 2)
    feed(old[0], (slow, 15))
    assert fired(old[0], 10) == []
    feed(old[1], (fast, 15), (fast, 35))
    assert fired(old[1], 30) == [(fast, 10, 1)]
    return old, slow, fast


def test_no_row_is_late_that_was_not_late_before_and_no_window_fires_twice() -> None:
    """S4.4: one subtask takes over from two at watermarks 10 and 30."""
    old, slow, fast = two_windows()
    (merged,) = rescaled(WINDOWS, old, 1)
    feed(merged, (slow, 16), (fast, 16), (slow, 9), (fast, 36))
    assert merged.ctx.counters == {"late_dropped": 2}, "row 16 of the fast key and row 9 of the slow one"
    assert fired(merged, 25) == [(slow, 10, 2)]
    feed(merged, (slow, 16), (fast, 29), (slow, 29))
    assert merged.ctx.counters == {"late_dropped": 4}
    assert fired(merged, MAX_WATERMARK) == sorted([(slow, 20, 1), (fast, 30, 2)])


def test_the_watermarks_of_key_groups_survive_a_second_rescale() -> None:
    """S4.4: 2 -> 1 -> 3 before the watermark has caught up."""
    old, slow, fast = two_windows()
    merged = rescaled(WINDOWS, old, 1)
    list(merged[0].on_watermark(12))
    after = rescaled(WINDOWS, merged, 3)
    for key, time, late in ((slow, 16, 0), (fast, 16, 1), (fast, 29, 1), (slow, 9, 1), (fast, 30, 0)):
        operator = after[owner(key, 3)]
        operator.ctx.counters.clear()
        feed(operator, (key, time))
        assert operator.ctx.counters.get("late_dropped", 0) == late, (key, time)
    assert sorted(out for operator in after for out in fired(operator, MAX_WATERMARK)) == sorted(
        [(slow, 10, 2), (fast, 30, 2)]
    )


def test_once_the_watermark_has_caught_up_it_alone_decides() -> None:
    """S4.4."""
    old, _, fast = two_windows()
    (merged,) = rescaled(WINDOWS, old, 1)
    fired(merged, 40)
    progress = merged.snapshot(1)()[1]
    assert set(progress.table["watermark_us"].to_pylist()) == {40}
    feed(merged, (fast, 39))
    assert merged.ctx.counters == {"late_dropped": 1}


@pytest.mark.parametrize("parallelisms", [(2, 3, 1), (1, 4, 2), (5, 2, 2)])
def test_windows_of_many_keys_move_with_their_key_groups(parallelisms: Sequence[int]) -> None:
    """S5.5."""
    numbers = np.random.default_rng(7)
    operators = [opened(WINDOWS, i, parallelisms[0]) for i in range(parallelisms[0])]
    expected: Counter[tuple[int, int]] = Counter()
    for parallelism in parallelisms:
        if parallelism != len(operators):
            operators = rescaled(WINDOWS, operators, parallelism)
        for key, time in zip(numbers.integers(0, 50, 300).tolist(), numbers.integers(0, 60, 300).tolist()):
            feed(operators[owner(key, parallelism)], (key, time))
            expected[key, time // 10 * 10] += 1
    found = [out for operator in operators for out in fired(operator, MAX_WATERMARK)]
    assert sorted(found) == sorted((k, start, n) for (k, start), n in expected.items())


def test_windows_come_back_whole_from_a_table_of_several_batches() -> None:
    """S5.5: state of more than 2 GiB of text cannot be one batch."""
    old = opened(WINDOWS, 0, 1)
    feed(old, *((key, time) for time in (15, 25) for key in range(6)))
    windows = next(part for part in old.snapshot(1)() if part.name == "windows")
    cuts = [windows.table.slice(first, 4) for first in range(0, 12, 4)]
    none = windows.table.slice(0, 0).combine_chunks()
    new = opened(WINDOWS, 0, 1)
    new.restore([StatePart("windows", "keyed", pa.concat_tables([none, *cuts, none]))])
    assert fired(new, MAX_WATERMARK) == [(key, start, 1) for key in range(6) for start in (10, 20)]


def progress(split: str | None, active: set[str], time: int, operator: Any) -> list[int]:
    """Watermarks after one record."""
    operator.ctx.current_split, operator.ctx.active_splits = split, frozenset(active)
    return [out.time_us for out in operator.process(rows((0, time)), 0) if isinstance(out, Watermark)]


def test_the_progress_of_a_split_follows_it_to_its_new_subtask() -> None:
    """S4.4: three splits of two subtasks come to one, then each to its own."""
    old = [opened(TIMES, i, 2) for i in range(2)]
    progress("a", {"a", "b"}, 100, old[0])
    progress("b", {"a", "b"}, 50, old[0])
    progress("c", {"c"}, 70, old[1])
    (merged,) = rescaled(TIMES, old, 1)
    assert progress("a", {"a", "b", "c"}, 200, merged) == [40], "b holds back, as it stood at 50"
    assert progress("b", {"a", "b", "c"}, 90, merged) == [60], "and then c, as it stood at 70"
    alone = rescaled(TIMES, old, 3)
    assert progress("a", {"a"}, 20, alone[0]) == [90], "a stood at 100: no going back"
    assert progress("c", {"b", "c"}, 300, alone[1]) == [40]


def test_a_split_without_a_record_still_holds_back_after_a_rescale() -> None:
    """S4.4."""
    old = [opened(TIMES, i, 2) for i in range(2)]
    progress("a", {"a", "unread"}, 100, old[0])
    (merged,) = rescaled(TIMES, old, 1)
    assert progress("a", {"a", "unread"}, 200, merged) == []


def test_progress_of_finished_splits_is_not_carried_along() -> None:
    """S4.4: else a later restore would hold back for them."""
    old = opened(TIMES, 0, 1)
    progress("a", {"a"}, 100, old)
    old.ctx.active_splits = frozenset()
    (part,) = old.snapshot(1)()
    assert "a" not in part.table["split"].to_pylist()


@pytest.mark.parametrize("second", [50, None])
def test_outside_a_source_the_subtask_furthest_behind_decides(second: int | None) -> None:
    """S4.4: also when it has seen nothing yet."""
    old = [opened(TIMES, i, 2) for i in range(2)]
    progress(None, set(), 100, old[0])
    if second is not None:
        progress(None, set(), second, old[1])
    (merged,) = rescaled(TIMES, old, 1)
    assert progress(None, set(), 20, merged) == [40 if second is not None else 10]


def joins(held: Sequence[int | None]) -> list[Any]:
    """Subtasks with a waiting probe row each, the build row 7, and a held watermark."""
    out = []
    for index, time_us in enumerate(held):
        operator = opened(JOIN, index, len(held))
        list(operator.process(pa.record_batch({"k": pa.array([1])}), 0))
        list(operator.process(pa.record_batch({"k": [1], "v": [7]}), 1))
        if time_us is not None:
            assert list(operator.on_watermark(time_us)) == []
        out.append(operator)
    return out


@pytest.mark.parametrize(("held", "told"), [((40, 60), [40]), ((40, None), []), ((None, 60), [])])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_held_watermark_is_the_earliest_of_all(held: Sequence[int | None], told: list[int], parallelism: int) -> None:
    """S4.4: rows of any old subtask may come to any new one."""
    for operator in rescaled(JOIN, joins(held), parallelism):
        out = list(operator.end_input(1))
        assert [o.time_us for o in out if isinstance(o, Watermark)] == told


def test_waiting_probe_rows_come_out_once_and_the_build_side_is_whole_everywhere() -> None:
    """S5.5."""
    after = rescaled(JOIN, joins((None, None)), 3, broadcast_from=1)
    out = [row for operator in after for b in operator.end_input(1) for row in b.to_pylist()]
    assert out == [{"k": 1, "v": 7}] * 2
    assert all(
        [b.to_pylist() for b in operator.process(pa.record_batch({"k": [1]}), 0)] == [[{"k": 1, "v": 7}]]
        for operator in after
    )


@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_waiting_probe_rows_of_one_subtask_stay_together_and_in_order(parallelism: int) -> None:
    """S5.5: cut anywhere, two new subtasks would bring the rows of one key, in any order."""
    old = joins((None, None))
    for key in (2, 3):
        for number in range(6):
            list(old[key - 2].process(pa.record_batch({"k": [key * 10 + number]}), 0))
    build = pa.record_batch({"k": list(range(60)), "v": [7] * 60})
    waiting = []
    for operator in rescaled(JOIN, old, parallelism):
        list(operator.process(build, 1))
        waiting.append([row["k"] for batch in operator.end_input(1) for row in batch.to_pylist() if row["k"] > 1])
    of_old = [list(range(20, 26)), list(range(30, 36))]
    assert waiting == [
        [k for i, keys in enumerate(of_old) if i % parallelism == new for k in keys] for new in range(parallelism)
    ]


def test_a_complete_build_side_stays_complete() -> None:
    """S5.5."""
    old = joins((None, None))
    for operator in old:
        list(operator.end_input(1))
    assert all(operator.forwards_watermarks() for operator in rescaled(JOIN, old, 3))


def test_state_that_the_first_version_wrote_is_read_at_its_own_parallelism() -> None:
    """S5.5: one watermark for all key groups, and a join's held watermark beside the end of its build side."""
    windows = opened(WINDOWS, 0, 1)
    marks = pa.table({"watermark_us": [20], "size_us": [10], "offset_us": [0]})
    windows.restore([StatePart("progress", "list", marks)])
    feed(windows, (1, 19), (1, 20))
    assert windows.ctx.counters == {"late_dropped": 1}
    join = opened(JOIN, 0, 1)
    join.restore([StatePart("progress", "list", pa.table({"build_ended": [False], "held_us": [5]}))])
    assert list(join.end_input(1)) == [Watermark(5)]


def test_waiting_probe_rows_that_the_first_version_wrote_are_read() -> None:
    """S5.5: without the subtask that they waited in."""
    join = opened(JOIN, 0, 1)
    join.restore([StatePart("buffered", "list", pa.table({"k": [1]}))])
    list(join.process(pa.record_batch({"k": [1], "v": [7]}), 1))
    assert [row for batch in join.end_input(1) for row in batch.to_pylist()] == [{"k": 1, "v": 7}]
