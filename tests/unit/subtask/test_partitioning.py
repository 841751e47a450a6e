"""A user's partitioner: every row goes to the subtask it names, and nothing else is taken for an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.subtask.chain import OperatorFailure
from tidegate.subtask.partitioner import partition_batch


@given(st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1)))), st.booleans())
def test_every_row_comes_to_the_subtask_it_names_in_its_order(case: tuple[int, list[int]], as_arrow: bool) -> None:
    parallelism, targets = case
    batch = pa.record_batch({"row": pa.array(range(len(targets)), pa.int64()), "to": pa.array(targets, pa.int32())})
    cut = partition_batch(lambda b, n: b["to"] if as_arrow else b["to"].to_numpy(), parallelism, "op", 0)
    parts = cut(batch)
    assert len(parts) == parallelism
    for target, part in enumerate(parts):
        rows = part["row"].to_pylist() if part is not None else []
        assert rows == [row for row, to in enumerate(targets) if to == target]


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ([0, 1, 2], "subtasks 0..2, but there are 2"),
        ([-1, 0, 0], "subtasks -1..0, but there are 2"),
        ([0, 1], "shape (2,)"),
        ([[0], [1], [0]], "shape (3, 1)"),
        (1, "shape ()"),
        ([0.0, 1.0, 0.0], "type float64"),
        (np.array([True, False, True]), "type bool"),
        (pa.array([0, None, 1]), "1 nulls"),
        (None, "shape ()"),
    ],
)
def test_an_answer_that_is_not_a_subtask_for_each_row_is_refused_by_the_name_of_the_function(
    answer: Any, cause: str
) -> None:
    def whose(batch: pa.RecordBatch, n: int) -> Any:
        return answer

    with pytest.raises(OperatorFailure) as failure:
        partition_batch(whose, 2, "lines.partition_by", 1)(pa.record_batch({"a": [1, 2, 3]}))
    assert failure.value.uid == "lines.partition_by" and failure.value.subtask == 1
    assert cause in failure.value.message and "whose" in failure.value.message


def test_what_the_function_raises_names_the_operator() -> None:
    with pytest.raises(OperatorFailure, match="partition_by.*KeyError"):
        partition_batch(lambda batch, n: batch["none"], 2, "lines.partition_by", 0)(pa.record_batch({"a": [1]}))
