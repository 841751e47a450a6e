"""Rows of partial aggregates on their way to the subtask of their keys (S8.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.batches import KEYED_ROWS, numbered_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import DataGen, Discard, Pipeline, count, sliding, tumbling
from tidegate.plan.batch_plan import BatchPlan, plan_batch
from tidegate.spark.batch import packs
from tidegate.spark.batch.exchange import PACK, TARGET
from tidegate.spark.batch.exchange_senders import PackSender
from tidegate.spark.batch.packs import PackedBlocks
from tidegate.spark.batch.rdd_frames import _one_pack

SUBTASKS = 3
Rows = list[tuple[int | None, ...]]


def counted() -> BatchPlan:
    """A source, and windows by key."""
    p = Pipeline()
    source = p.read(DataGen(numbered_rows(300), KEYED_ROWS, rows=10), uid="numbers").with_watermark("ts", "0 s")
    source.group_by("k").window(tumbling("1 s")).agg(n=count(), known=count("v"), uid="w").write(Discard(), uid="out")
    return plan_batch(p.build(), SUBTASKS, 128)


PLAN = counted()
STAGE = PLAN.stages[1]
SCHEMA = STAGE.inputs[0].schema
INT64 = st.integers(-(2**63), 2**63 - 1)
COLUMN = st.sampled_from([st.just(7), st.integers(-100, 155), st.integers(0, 2**32), INT64]).flatmap(
    lambda values: st.lists(values | st.none(), min_size=20, max_size=20)
)
PANES = st.sampled_from([st.just(7), st.integers(-2, 2), INT64]).flatmap(
    lambda values: st.lists(values, min_size=20, max_size=20)
)
COLUMNS = st.tuples(PANES, *[COLUMN] * (len(SCHEMA) - 1))


def batch_of(columns: Sequence[Sequence[int | None]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)


def rows_of(batch: pa.RecordBatch) -> Rows:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def sent(upstream: Sequence[Sequence[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    """The packs of upstream subtasks with these batches."""
    return [
        sender.tagged(batch)
        for index, batches in enumerate(upstream)
        for sender in [PackSender(PLAN, STAGE, index)]
        for batch in batches
    ]


def of_target(packed: Sequence[pa.RecordBatch], target: int) -> list[pa.RecordBatch]:
    return [part for one in packed if (part := one.filter(pa.array([t == target for t in one[TARGET].to_pylist()])))]


def merged(packed: Sequence[pa.RecordBatch], target: int, folder: str = "") -> list[Rows]:
    """The rows of each block of a subtask."""
    blocks = PackedBlocks(STAGE, of_target(packed, target), folder)
    return [[row for run in block.runs for row in rows_of(run.batch)] for block in blocks]


def test_the_stage_merges_partial_rows() -> None:
    assert STAGE.merges and set(SCHEMA.types) == {pa.int64()}


@settings(max_examples=60, deadline=None)
@given(st.lists(COLUMNS, min_size=1, max_size=4), st.integers(1, 40))
def test_every_row_arrives_once_with_all_rows_of_its_key_and_pane_in_one_block(
    given_: list[Any], block_rows: int
) -> None:
    batches = [batch_of(columns) for columns in given_]
    packed = sent([batches[:2], batches[2:]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "BLOCK_ROWS", block_rows)
        by_target = [merged(packed, target) for target in range(SUBTASKS)]
    blocks = [block for of_one in by_target for block in of_one]
    assert all(blocks)
    assert Counter(row for block in blocks for row in block) == Counter(row for b in batches for row in rows_of(b))
    where: dict[Any, int] = {}
    for number, block in enumerate(blocks):
        assert all(where.setdefault(row[:2], number) == number for row in block), "a key and pane come again"


@pytest.mark.parametrize(
    ("panes", "expected"),
    [
        # Upstream subtasks with different panes, which are merged pane by pane.
        ([[0, 1, 2], [3, 4, 5]], [[0], [1], [2], [3], [4], [5]]),
        ([[5, 4], [3, 0]], [[0], [3], [4], [5]]),
        # A pane of two upstream subtasks.
        ([[0, 1, 2], [2, 3]], [[0], [1], [2, 2], [3]]),
        ([[1, 2], [1, 2]], [[1, 1], [2, 2]]),
    ],
)
def test_blocks_have_whole_panes(
    panes: list[list[int]], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "BLOCK_ROWS", 2 * 8)  # rows of two packs
    packed = sent([[batch_of([[pane] * 8, [1] * 8, [0] * 8, [0] * 8]) for pane in of_one] for of_one in panes])
    (target,) = {target for one in packed for target in one[TARGET].to_pylist()}
    monkeypatch.setattr(packs, "BLOCK_ROWS", 8)
    blocks = merged(packed, target)
    assert [[row[0] for row in block[::8]] for block in blocks] == expected
    monkeypatch.setattr(packs, "BLOCK_ROWS", 1 << 20)
    (together,) = merged(packed, target)
    assert [row[0] for row in together[::8]] == [pane for block in expected for pane in block]


def test_packs_that_share_panes_are_divided_by_key_if_they_are_too_large_for_one_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packs, "BLOCK_ROWS", 20)
    batches = [batch_of([[0] * 50 + [n] * 50, list(range(100)), [n] * 100, [n] * 100]) for n in range(6)]
    packed = sent([batches[:3], batches[3:]])
    for target in range(SUBTASKS):
        blocks = merged(packed, target)
        assert all(len(block) >= 20 for block in blocks[:-1]) and len(blocks) > 1
        keys = [{row[1] for row in block} for block in blocks]
        assert sum(map(len, keys)) == len(set().union(*keys)), "a key comes again"


def test_windows_that_share_panes_are_never_divided_by_pane() -> None:
    p = Pipeline()
    source = p.read(DataGen(numbered_rows(300), KEYED_ROWS, rows=10), uid="numbers").with_watermark("ts", "0 s")
    sliding_ = source.group_by("k").window(sliding("2 s", "1 s")).agg(n=count(), uid="w")
    sliding_.write(Discard(), uid="out")
    stage = plan_batch(p.build(), SUBTASKS, 128).stages[1]
    assert stage.merges and stage.pane is None and STAGE.pane == SCHEMA.names[0]


def test_the_order_does_not_depend_on_which_pack_arrives_first() -> None:
    """Else floats would be added in another order when a stage runs again."""
    batches = [batch_of([[n] * 50, list(range(50)), [n] * 50, [n] * 50]) for n in range(6)]
    packed = sent([batches[:3], batches[3:]])
    for target in range(SUBTASKS):
        assert merged(packed[::-1], target) == merged(packed, target)
        (block,) = merged(packed, target)
        keys = [row[1] for row in block]
        assert [row[0] for row in block if row[1] == keys[0]] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("memory", [0, 2000])
def test_packs_beyond_the_memory_wait_in_a_file_that_leaves_nothing(
    memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch_of([[n] * 50, list(range(50)), [n] * 50, [None] * 50]) for n in range(6)]
    packed = sent([batches])
    expected = [merged(packed, target) for target in range(SUBTASKS)]
    files: list[Path] = []

    def noted(dir: str | None) -> Any:
        assert dir == str(tmp_path)
        files.append(tmp_path)
        return open_file(dir=dir)

    open_file = packs.tempfile.TemporaryFile
    monkeypatch.setattr(packs.tempfile, "TemporaryFile", noted)
    monkeypatch.setattr(packs, "MEMORY_BYTES", memory)
    assert [merged(packed, target, str(tmp_path)) for target in range(SUBTASKS)] == expected
    assert len(files) == SUBTASKS and not list(tmp_path.iterdir())


def test_counts_and_times_are_sent_in_fewer_bytes() -> None:
    n = 10_000
    columns = [[10**15] * n, list(range(n)), [3] * n, [2**40] * n]
    (packed,) = sent([[batch_of(columns)]])
    assert packed.nbytes < n * 6, "of 32 bytes a row"


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_columns_of_a_single_pack_are_aligned(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else numba would compile its kernels again, for arrays that are not."""
    monkeypatch.setattr(packs, "MEMORY_BYTES", memory)
    wide = [-(2**62), *range(48), 2**62]
    packed = sent([[batch_of([wide] * len(SCHEMA))]])
    for target in range(SUBTASKS):
        # As one row of Spark and as one element of an RDD.
        one = of_target(packed, target)
        for received in (one, [_one_pack(value.as_py()) for batch in one for value in batch[PACK]]):
            for block in PackedBlocks(STAGE, received, ""):
                runs = [run.batch for run in block.runs]
                buffers = [column.buffers()[1] for run in runs for column in run.columns]
                assert buffers and all(buffer.address % 8 == 0 for buffer in buffers)


@pytest.mark.parametrize("limits", [(10, 1 << 20), (10_000, 30 * 32)])
def test_small_batches_are_packed_together(limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACKED_ROWS", limits[0])
    monkeypatch.setattr(packs, "PACKED_BYTES", limits[1])
    batches = [batch_of([[n] * 8] * len(SCHEMA)) for n in range(10)]
    gathered = list(packs.gather(iter(batches), 3, None))
    assert [batch.num_rows for batch in gathered] == [32, 32, 16]
    assert [row for batch in gathered for row in rows_of(batch)] == [row for batch in batches for row in rows_of(batch)]
    assert list(packs.gather(iter([]), 3, None)) == []


def test_gathered_batches_end_with_a_pane_that_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACKED_ROWS", 10)
    batches = [batch_of([[pane] * 8] * len(SCHEMA)) for pane in [0, 0, 1, 1, 1, 2, 3, *[4] * 20, 5]]
    gathered = list(packs.gather(iter(batches), 1, SCHEMA.names[0]))
    assert [batch.num_rows // 8 for batch in gathered] == [2, 3, 2, 5, 5, 5, 5, 1]
    assert [row for batch in gathered for row in rows_of(batch)] == [row for batch in batches for row in rows_of(batch)]


def test_no_rows_make_no_pack_and_no_block() -> None:
    (packed,) = sent([[batch_of([[]] * len(SCHEMA))]])
    assert packed.num_rows == 0
    assert list(PackedBlocks(STAGE, [], "")) == []
