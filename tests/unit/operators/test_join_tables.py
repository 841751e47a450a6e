"""Rows of joins by time in tables in memory: the same results as a plain model, on any sequence of back ends (S5.2)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from driven_join import BACK_ENDS, GROUPS, PROPERTY, SECOND, Subtasks, batch_of, join_spec
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate as td
from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.operators.joins import span_table
from tidegate.operators.joins.span_kernels import NEW_PROBE, chain_rows, find_pairs, link_rows
from tidegate.operators.joins.span_rows import SpanRows
from tidegate.operators.joins.span_table import SpanTable, SpanTables
from tidegate.snapshot.parts import StatePart
from tidegate.state.keys.key_index import KeyReader

KINDS = ("inner", "left", "right", "full", "semi", "anti")
KEYS = pa.schema([("k", pa.int64())])


class PlainJoin:
    """A join of all rows that are not late, by comparing each with each."""

    def __init__(self, how: str, matches: Any) -> None:
        self._how, self._matches = how, matches
        self._sides: tuple[list[Any], list[Any]] = ([], [])
        self._watermark_us = MIN_WATERMARK
        self.late = 0

    def feed(self, side: int, rows: Sequence[Any]) -> None:
        for row in rows:
            if row[1] is not None and row[1] < self._watermark_us:
                self.late += 1
            else:
                self._sides[side].append(row if side == 0 else (row[0], row[1], row[2]))

    def watermark(self, watermark_us: int) -> None:
        self._watermark_us = max(self._watermark_us, watermark_us)

    def results(self) -> Counter[Any]:
        left, right = self._sides
        pairs = [
            (i, j)
            for i, a in enumerate(left)
            for j, b in enumerate(right)
            if a[0] is not None and a[0] == b[0] and None not in (a[1], b[1]) and self._matches(a, b)
        ]
        hit = {i for i, _ in pairs}, {j for _, j in pairs}
        ms = [None if b[1] is None else b[1] // 1000 for b in right]
        if self._how in ("semi", "anti"):
            return Counter(a for i, a in enumerate(left) if (i in hit[0]) == (self._how == "semi"))
        out = [(*left[i], ms[j], right[j][2]) for i, j in pairs]
        if self._how in ("left", "full"):
            out += [(*a, None, None) for i, a in enumerate(left) if i not in hit[0]]
        if self._how in ("right", "full"):
            out += [(b[0], None, None, ms[j], b[2]) for j, b in enumerate(right) if j not in hit[1]]
        return Counter(out)


@settings(PROPERTY, max_examples=25)
@given(
    how=st.sampled_from(KINDS),
    bounds=st.sampled_from([(-2, 2), (0, 3), (-4, -1), (-0.001, 0.001)]),
    condition=st.booleans(),
    keys=st.sampled_from([1, 3, 50]),
    seed=st.integers(0, 2**32),
)
def test_rows_in_any_order_late_null_and_equal_join_as_in_a_plain_model_whatever_back_end_restores_them(
    scratches: Any, how: Any, bounds: Any, condition: bool, keys: int, seed: int
) -> None:
    """S4.4, S5.2: also marks that another back end has written, and timers that it needs."""
    chance = random.Random(seed)
    where = pc.field("x") > pc.if_else(pc.equal(pc.field("y"), "a"), 4, 1) if condition else None
    lower, upper = (int(bound * SECOND) for bound in bounds)

    def matches(a: Any, b: Any) -> bool:
        return lower <= b[1] - a[1] <= upper and (not condition or a[2] > (4 if b[2] == "a" else 1))

    model = PlainJoin(how, matches)
    subtasks = Subtasks(join_spec(how=how, between=tuple(f"{b} s" for b in bounds), where=where), "heap", scratches())
    now_us, passed_us = 0, MIN_WATERMARK
    for _ in range(chance.randint(5, 25)):
        side, rows = chance.randint(0, 1), []
        for _ in range(chance.randint(1, 12)):
            now_us += chance.choice([0, 0, 1000, SECOND // 4, SECOND])
            time_us = now_us - chance.choice([0, 0, 1000, SECOND, 6 * SECOND])
            key = None if chance.random() < 0.1 else chance.randrange(keys)
            value = chance.randint(0, 9) if side == 0 else chance.choice("abc")
            rows.append((key, None if chance.random() < 0.1 else time_us, value))
        subtasks.feed(side, rows)
        model.feed(side, rows)
        if chance.random() < 0.5:
            passed_us = max(passed_us, now_us - chance.choice([0, SECOND, 4 * SECOND]))
            subtasks.watermark(passed_us)
            model.watermark(passed_us)
        if chance.random() < 0.15:
            subtasks.back_end, former = chance.choice(BACK_ENDS), subtasks.back_end
            subtasks.restart(chance.choice([1, 2, 3]), portable=former != subtasks.back_end or chance.random() < 0.5)
    assert Counter(subtasks.finish()) == model.results()
    assert subtasks.counters["late_dropped"] == model.late


@pytest.mark.parametrize("arguments", [{"ttl": "1 s"}, {"window": td.tumbling("2 s")}])
@pytest.mark.parametrize("how", ["inner", "full", "anti"])
def test_times_in_wild_disorder_give_the_same_results_in_a_limited_number_of_tables(
    scratches: Any, how: Any, arguments: Any
) -> None:
    chance = random.Random(5)
    sides = [[(chance.randrange(3), chance.randrange(20_000) * SECOND, i % 10) for i in range(1_500)] for _ in "lr"]
    sides[1] = [(k, t, "abc"[v % 3]) for k, t, v in sides[1]]
    found = []
    for back_end in ("heap", "memory"):
        subtasks = Subtasks(join_spec(how=how, **arguments), back_end, scratches())
        for start in range(0, 1_500, 300):
            for side in (0, 1):
                subtasks.feed(side, sides[side][start : start + 300])
        if back_end == "heap":
            (operator,) = subtasks.operators
            tables = operator._store._tables[1]
            assert 16 < len(list(tables)) < 100
            ends = [(table.first_us, table.stop_us) for table in tables]
            assert all(former[1] <= following[0] for former, following in zip(ends, ends[1:], strict=False))
        found.append(Counter(subtasks.finish()))
    assert found[0] == found[1]
    assert sum(found[0].values()) > 50


def positions_of_one_key(disorder_us: int) -> np.ndarray[Any, Any]:
    chance = np.random.default_rng(3)
    return np.arange(20_000) * 100 + chance.integers(0, disorder_us + 1, 20_000)


@pytest.mark.parametrize("disorder_us", [0, 5_000, 2_000_000])
def test_links_find_the_same_rows_of_a_long_chain(disorder_us: int) -> None:
    positions = positions_of_one_key(disorder_us)
    table = SpanTable(KeyReader(KEYS, ["k"]), [pa.int64()], (0, 1 << 60), 1, expected=0, tracks=False)
    reader = KeyReader(KEYS, ["k"])

    def keys(count: int) -> Any:
        return reader.read(pa.record_batch([np.zeros(count, np.int64)], schema=KEYS))

    def add(part: slice) -> None:
        mine = positions[part]
        table.add(keys(len(mine)), [pa.array(mine)], mine, int(mine.max()), None, None)

    lows = np.arange(0, 2_000_000, 10_000)
    stored = 0
    for stop in (10_000, 15_000, 20_000):
        add(slice(stored, stop))
        stored = stop
        for _ in range(3):  # searches in vain, until links are worth their memory
            found = [
                (int(probe), int(row))
                for probes, rows in table.pairs(keys(len(lows)), lows, lows + 300, lambda: 1_000)
                for probe, row in zip(probes, rows, strict=True)
            ]
            near = (lows[:, None] <= positions[:stop]) & (positions[:stop] <= lows[:, None] + 300)
            assert sorted(found) == [(int(i), int(j)) for i, j in np.argwhere(near)]
    assert table._links is not None, "the searches visited nearly all rows"


def test_links_make_a_search_in_a_long_chain_visit_few_rows() -> None:
    positions = positions_of_one_key(1_000)
    size = len(positions)
    heads, following = np.full(1, -1, np.int32), np.empty(size, np.int32)
    chain_rows(np.zeros(size, np.int32), 0, heads, following)
    links = [np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int64), np.empty(size, np.int64)]
    link_rows(0, size, following, positions, *links)
    jumps, _, least, greatest = links
    none = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)
    visited = []
    for chosen in ((jumps, least, greatest), none):
        cursor, out = np.array([0, NEW_PROBE, 0]), [np.empty(100, np.int64), np.empty(100, np.int64)]
        limits = np.array([1_000_000]), np.array([1_000_500])
        entry = np.zeros(1, np.int32)
        found = find_pairs(entry, *limits, heads, following, positions, *chosen, False, cursor, *out)
        assert found == ((positions >= 1_000_000) & (positions <= 1_000_500)).sum()
        visited.append(int(cursor[2]))
    assert visited[0] < 100
    assert visited[1] == size


def test_a_table_begins_at_a_multiple_of_its_length_and_the_fifth_is_twice_as_long() -> None:
    made: list[tuple[int, int]] = []

    def new_table(stretch: tuple[int, int], expected: int) -> Any:
        made.append(stretch)
        table = SpanTable(KeyReader(KEYS, ["k"]), [], stretch, len(made), expected=expected, tracks=False)
        table.last_us = stretch[0]
        return table

    tables = SpanTables(100, new_table)
    for position in (250, 210, 290, 130, 450, 330, -5, 399):
        table = tables.of(position)
        assert table.first_us <= position < table.stop_us
    assert sorted(made) == [(-200, 0), (100, 200), (200, 300), (300, 400), (400, 500)]
    assert [table.first_us for table in tables] == [-200, 100, 200, 300, 400]
    tables.drop(lambda table: table.stop_us <= 300)
    assert [table.first_us for table in tables] == [300, 400]


# ---------------------------------------------------------------- snapshots


def named(parts: Sequence[StatePart]) -> dict[str, StatePart]:
    return {part.name: part for part in parts}


def many_rows(side: int, first: int, count: int, time_us: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return batch_of(side, [(n, time_us, n) if side == 0 else (n, time_us, str(n)) for n in numbers])


@pytest.fixture
def _small_states_are_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test reaches in milliseconds."""
    monkeypatch.setattr("tidegate.operators.joins.frozen_spans.INLINE_ENTRIES", 50)
    monkeypatch.setattr("tidegate.operators.joins.frozen_spans.CHUNK_ENTRIES", 40)


@pytest.mark.usefixtures("_small_states_are_blobs")
def test_a_checkpoint_writes_only_chunks_with_further_rows_or_marks(scratches: Any) -> None:
    """S5.2: a chunk that has not changed is written under the same id, and then not again."""
    subtasks = Subtasks(join_spec(how="left", ttl="10 s"), "heap", scratches())
    (operator,) = subtasks.operators
    list(operator.process(many_rows(0, 0, 100, SECOND), 0))
    first = named(operator.snapshot(1)())["left"]
    assert [blob.table().num_rows for blob in first.blobs] == [40, 40, 20]
    list(operator.process(many_rows(0, 100, 30, SECOND), 0))
    second = named(operator.snapshot(2)())["left"]
    ids = [[blob.id for blob in part.blobs] for part in (first, second)]
    assert ids[0][:2] == ids[1][:2]
    assert not {ids[0][2]} & set(ids[1])
    list(operator.process(many_rows(1, 50, 1, SECOND), 1))  # matches row 50
    third = [blob.id for blob in named(operator.snapshot(3)())["left"].blobs]
    assert [former == now for former, now in zip(ids[1], third, strict=True)] == [True, False, True, True]
    subtasks.close()


@pytest.mark.usefixtures("_small_states_are_blobs")
@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_a_snapshot_holds_the_rows_of_its_moment_also_if_it_is_written_later(scratches: Any, back_end: str) -> None:
    """S3.6, S5.3: rows, matches and deletions that follow the freeze are not in it."""
    subtasks = Subtasks(join_spec(how="full", ttl="10 s"), "heap", scratches())
    (operator,) = subtasks.operators
    operator.portable = True
    list(operator.process(many_rows(0, 0, 100, SECOND), 0))
    write = operator.snapshot(1)
    list(operator.process(many_rows(1, 0, 100, SECOND), 1))
    list(operator.process(many_rows(0, 100, 300, SECOND), 0))
    list(operator.on_watermark(100 * SECOND))
    parts = write()
    subtasks.close()
    restored = Subtasks(join_spec(how="full", ttl="10 s"), back_end, scratches())
    restored.operators[0].restore(parts)
    restored.feed(1, [(7, 2 * SECOND, "a")])
    restored.watermark(50 * SECOND)
    assert Counter(restored.out) == Counter(
        [(n, SECOND, n, None, None) if n != 7 else (7, SECOND, 7, 2_000, "a") for n in range(100)]
    )
    restored.operators[0].portable = True
    parts = restored.operators[0].snapshot(2)()
    kept = {part.name: part.table.num_rows + sum(blob.table().num_rows for blob in part.blobs) for part in parts}
    assert {name: n for name, n in kept.items() if n} == {"watermark:passed": GROUPS, "join:form": GROUPS}
    restored.close()


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_a_row_that_waits_is_emitted_at_the_same_watermark_by_every_back_end_that_restores_it(
    scratches: Any, back_end: str
) -> None:
    """S5.2: the snapshot has the timers of rows that wait, although tables need none."""
    subtasks = Subtasks(join_spec(how="left", between=("-5 s", "10 s")), "heap", scratches())
    subtasks.feed(0, [(1, 20 * SECOND, 1), (1, 21 * SECOND, 2)])
    subtasks.back_end = back_end
    subtasks.restart(1)
    subtasks.watermark(30 * SECOND)
    assert subtasks.out == []
    subtasks.watermark(30 * SECOND + 1)
    assert subtasks.out == [(1, 20 * SECOND, 1, None, None)]
    subtasks.close()


def test_expired_rows_are_deleted_while_later_rows_stay(scratches: Any) -> None:
    subtasks = Subtasks(join_spec(ttl="4 s"), "heap", scratches())
    (operator,) = subtasks.operators
    store = operator._store
    assert isinstance(store, SpanRows)
    most = 0
    for second in range(60):
        for side in (0, 1):
            subtasks.feed(side, [(n, second * SECOND, 1 if side == 0 else "a") for n in range(10)])
        subtasks.watermark(second * SECOND)
        most = max(most, *(sum(table.size for table in tables) for tables in store._tables))
    assert most <= 10 * (4 + 4 + 2), "the time to live, a table and the rows of the present second"
    subtasks.watermark(MAX_WATERMARK)
    assert sum(table.size for tables in store._tables for table in tables) > 0, "a drained join keeps its rows (S7.5)"
    subtasks.close()


def test_a_search_continues_where_the_room_for_pairs_ended(monkeypatch: pytest.MonkeyPatch, scratches: Any) -> None:
    monkeypatch.setattr(span_table, "MIN_PAIRS", 1)
    monkeypatch.setattr("tidegate.operators.joins.span_rows.MAX_BATCH_ROWS", 7)
    subtasks = Subtasks(join_spec(ttl="2 s"), "heap", scratches())
    for second in range(5):  # of several tables
        subtasks.feed(0, [(1, second * SECOND, n) for n in range(3)])
    (operator,) = subtasks.operators
    sizes = [batch.num_rows for batch in operator.process(batch_of(1, [(1, 2 * SECOND, "a"), (1, SECOND, "b")]), 1)]
    assert sizes == [7, 7, 7, 6]
    subtasks.close()
