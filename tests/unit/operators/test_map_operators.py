"""Filter, project, map_in_arrow and union."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidegate.errors import PipelineError
from tidegate.operators.row_specs import FilterSpec, MapInArrowSpec, ProjectSpec, UnionSpec
from tidegate.operators.stream_operator import SideOutput

SCHEMA = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
BATCH = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), pa.array(["x", None, "z"])], schema=SCHEMA)


def run(operator: Any, batch: pa.RecordBatch = BATCH) -> list[pa.RecordBatch]:
    return list(operator.process(batch, 0))


def test_a_filter_keeps_the_rows_that_are_true_and_neither_false_nor_null(open_operator: Any) -> None:
    (out,) = run(open_operator(FilterSpec(pc.field("b") == "z", SCHEMA)))
    assert out.to_pylist() == [{"a": 3, "b": "z"}]
    assert out.schema.equals(SCHEMA)


def test_a_filter_emits_no_empty_batch(open_operator: Any) -> None:
    assert run(open_operator(FilterSpec(pc.field("a") > 5, SCHEMA))) == []


def test_a_filter_keeps_order_in_large_batches(open_operator: Any) -> None:
    batch = pa.record_batch({"a": pa.array(range(200_000))})
    (out,) = run(open_operator(FilterSpec(pc.field("a") >= 1000, batch.schema)), batch)
    assert out.column("a").equals(pa.array(range(1000, 200_000)))


def test_a_projection_computes_renames_casts_and_passes_columns(open_operator: Any) -> None:
    schema = pa.schema([("b", pa.string()), ("twice", pa.int32()), ("a", pa.int64()), ("renamed", pa.string())])
    columns = (
        ("b", pc.field("b")),
        ("twice", pc.field("a") * 2),
        ("a", pc.field("a")),
        ("renamed", pc.coalesce(pc.field("b"), pc.scalar("-"))),
    )
    (out,) = run(open_operator(ProjectSpec(columns, schema)))
    assert out.schema.equals(schema)
    assert out.to_pydict() == {"b": ["x", None, "z"], "twice": [2, 4, 6], "a": [1, 2, 3], "renamed": ["x", "-", "z"]}


def test_a_projection_takes_columns_with_awkward_names(open_operator: Any) -> None:
    batch = pa.record_batch({"a b": [1], "x.y": [2], "0": [3], "(z)": [4]})
    columns = tuple((f"{name}!", pc.field(name)) for name in batch.schema.names)
    schema = pa.schema([(name, pa.int64()) for name, _ in columns])
    (out,) = run(open_operator(ProjectSpec(columns, schema)), batch)
    assert out.to_pylist() == [{"a b!": 1, "x.y!": 2, "0!": 3, "(z)!": 4}]


def test_a_projection_of_large_batches_keeps_rows_together(open_operator: Any) -> None:
    batch = pa.record_batch({"a": pa.array(range(200_000))})
    columns = (("a", pc.field("a")), ("b", pc.field("a") + 1))
    (out,) = run(open_operator(ProjectSpec(columns, pa.schema([("a", pa.int64()), ("b", pa.int64())]))), batch)
    assert pc.all(pc.equal(pc.subtract(out.column("b"), out.column("a")), 1)).as_py()
    assert out.num_rows == 200_000


def test_a_projection_to_constants_has_a_row_for_each_row(open_operator: Any) -> None:
    (out,) = run(open_operator(ProjectSpec((("one", pc.scalar(1)),), pa.schema([("one", pa.int64())]))))
    assert out.column("one").to_pylist() == [1, 1, 1]


def test_a_function_gives_rows_for_its_side_outputs_beside_its_own(open_operator: Any) -> None:
    def split(batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch | SideOutput]:
        for batch in batches:
            yield SideOutput("tail", batch.slice(1).select(["b"]))
            yield batch.slice(0, 1)
            yield SideOutput("tail", batch.slice(0, 0).select(["b"]))

    tail = pa.schema([("b", pa.string())])
    side, main = run(open_operator(MapInArrowSpec(split, SCHEMA, (("tail", tail),))))
    assert (side.name, side.batch.to_pydict(), side.batch.schema) == ("tail", {"b": [None, "z"]}, tail)
    assert main.to_pydict() == {"a": [1], "b": ["x"]}


def test_map_in_arrow_is_called_afresh_for_each_batch_and_exhausted(open_operator: Any) -> None:
    calls: list[list[int]] = []

    def double(batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        calls.append([])
        for batch in batches:
            calls[-1].append(batch.num_rows)
            yield batch.slice(0, 0)
            yield batch
            yield batch

    operator = open_operator(MapInArrowSpec(double, SCHEMA))
    assert [b.num_rows for b in run(operator)] == [3, 3]
    assert [b.num_rows for b in run(operator, BATCH.slice(1))] == [2, 2]
    assert calls == [[3], [2]]


def test_map_in_arrow_cuts_large_results(open_operator: Any) -> None:
    big = pa.record_batch({"a": pa.array(range(150_000))})
    operator = open_operator(MapInArrowSpec(lambda batches: (big for _ in batches), big.schema))
    out = run(operator)
    assert [b.num_rows for b in out] == [65536, 65536, 18928]
    assert pa.Table.from_batches(out).to_batches()[0].schema == big.schema


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (pa.record_batch({"a": [1], "c": ["x"]}), r"missing \['b'\], not declared \['c'\]"),
        (pa.record_batch({"b": ["x"], "a": [1]}), r"columns are \['b', 'a'\]"),
        (pa.record_batch({"a": [1.5], "b": ["x"]}), "'a' is double, but int64 is declared.*Cast 'a'"),
        (pa.record_batch({"a": pa.array([None], pa.int64()), "b": ["x"]}), "'a' has nulls"),
        ({"a": 1}, "the result is a dict.*RecordBatch"),
    ],
)
def test_map_in_arrow_refuses_what_was_not_declared_and_names_it(open_operator: Any, result: Any, message: str) -> None:
    def broken(batches: Iterator[pa.RecordBatch]) -> Iterable[Any]:
        yield result

    with pytest.raises(PipelineError, match=message) as caught:
        run(open_operator(MapInArrowSpec(broken, SCHEMA)))
    assert "broken" in str(caught.value) and "'op'" in str(caught.value)


def test_what_a_user_function_raises_passes_as_it_is(open_operator: Any) -> None:
    def failing(batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(open_operator(MapInArrowSpec(failing, SCHEMA)))


def test_a_union_passes_every_input(open_operator: Any) -> None:
    operator = open_operator(UnionSpec())
    assert [list(operator.process(BATCH, i)) for i in (0, 1, 2)] == [[BATCH]] * 3


def test_specs_describe_themselves_in_one_line() -> None:
    assert FilterSpec(pc.field("a") > 1, SCHEMA).describe() == "filter (a > 1)"
    assert (
        ProjectSpec((("a", pc.field("a")), ("c", pc.field("a") + 1)), SCHEMA).describe()
        == "project a, c=add_checked(a, 1)"
    )
    assert MapInArrowSpec(run, SCHEMA).describe() == "map_in_arrow run"
    assert UnionSpec().describe() == "union"
