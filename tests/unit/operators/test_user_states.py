"""What a process hands its states is held against their declaration before the back end sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from builders.operators import open_operator

from tidegate.api.states import aggregating_state, list_state, map_state, reducing_state, value_state
from tidegate.errors import PipelineError
from tidegate.operators.processes.process_specs import KeyedProcessSpec
from tidegate.operators.user_functions.keyed_process import KeyedProcess, KeyedRows, ProcessContext
from tidegate.state.keyed_state import Elements, KeySet

INPUT = pa.schema([("k", pa.int64())])
PLAIN = pa.schema([("n", pa.int32()), pa.field("text", pa.string(), nullable=False)])
Use = Callable[[ProcessContext, KeySet], Any]


def last(accumulators: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
    return accumulators.take(pa.array(offsets[1:] - 1))


def too_few(accumulators: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
    return accumulators.slice(0, 1)


def widened(accumulators: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
    return last(accumulators, offsets).cast(pa.schema([("n", pa.int64())]))


class Uses(KeyedProcess):
    """Does `use` with the states, for every batch."""

    states = (
        value_state("value", PLAIN),
        list_state("list", PLAIN),
        map_state("map", {"m": pa.int64()}, PLAIN),
        reducing_state("sum", {"n": ("sum", pa.int32())}),
        aggregating_state("last", {"n": pa.int32()}, last),
        aggregating_state("few", {"n": pa.int32()}, too_few),
        aggregating_state("wide", {"n": pa.int32()}, widened),
    )

    def __init__(self, use: Use) -> None:
        self.use = use

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        self.use(ctx, rows.keys)


@pytest.fixture(params=["heap", "rocksdb"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Use], None]]:
    """Runs a process over keys 1, 2 and 3."""
    opened = []

    def over(use: Use) -> None:
        process = Uses(use)
        spec = KeyedProcessSpec(process, ("k",), tuple(process.states), None, "us", INPUT, INPUT)
        operator = open_operator(
            spec, INPUT, max_parallelism=16, state_backend=request.param, scratch=str(tmp_path / f"{len(opened)}")
        )
        opened.append(operator)
        list(operator.process(pa.record_batch([pa.array([1, 2, 3])], schema=INPUT), 0))

    yield over
    for operator in opened:
        operator.close()


def plain(rows: int, type_: pa.DataType = PLAIN[0].type, text: list[str | None] | None = None) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(rows), type_), "text": pa.array(text or ["a"] * rows, pa.string())})


def only(rows: int, type_: pa.DataType = PLAIN[0].type) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(rows), type_)})


def of_map(rows: int, type_: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({"m": pa.array(range(rows), type_ or pa.int64())})


def elements(offsets: list[int], batch: pa.RecordBatch) -> Elements:
    return Elements(np.array(offsets), batch)


WRONG: dict[str, tuple[Use, str, str]] = {
    "type": (
        lambda c, k: c.value("value").put(k, plain(3, pa.int64())),
        "value",
        "column 'n' is int64, but int32 is declared",
    ),
    "table": (
        lambda c, k: c.value("value").put(k, pa.table(plain(3))),
        "value",
        "columns must be a pyarrow.RecordBatch, but are a Table",
    ),  # type: ignore[arg-type]
    "names": (
        lambda c, k: c.value("value").put(k, plain(3).rename_columns(["n", "x"])),
        "value",
        "['n', 'text'] are declared",
    ),
    "short": (lambda c, k: c.value("value").put(k, plain(1)), "value", "1 rows, but there are 3 keys"),
    "long": (lambda c, k: c.value("value").put(k, plain(5)), "value", "5 rows, but there are 3 keys"),
    "nulls": (
        lambda c, k: c.value("value").put(k, plain(3, text=["a", None, "b"])),
        "value",
        "column 'text' has nulls",
    ),
    "mask": (
        lambda c, k: c.value("value").put(k, plain(3), np.array([True])),
        "value",
        "where is bool[1], but must be bool[3]",
    ),
    "numbers": (lambda c, k: c.value("value").clear(k, np.array([1, 0, 1])), "value", "where is int64[3]"),  # type: ignore[arg-type]
    "append": (lambda c, k: c.list("list").append(k, k.rows, plain(1)), "list", "1 rows, but there are 3 owners"),
    "owner": (lambda c, k: c.list("list").append(k, np.array([7]), plain(1)), "list", "owners are from 7 to 7"),  # type: ignore[arg-type]
    "floats": (lambda c, k: c.list("list").append(k, np.zeros(1), plain(1)), "list", "owners is float64[1]"),  # type: ignore[arg-type]
    "offsets": (lambda c, k: c.list("list").put(k, elements([0, 1], plain(1))), "list", "offsets is int64[2]"),
    "falling": (
        lambda c, k: c.list("list").put(k, elements([0, 2, 1, 3], plain(3))),
        "list",
        "offsets must begin with 0",
    ),
    "beyond": (
        lambda c, k: c.list("list").put(k, elements([0, 1, 2, 9], plain(3))),
        "list",
        "3 rows, but there are 9 offsets",
    ),
    "batch": (
        lambda c, k: c.list("list").put(k, plain(3)),
        "list",
        "elements must be an Elements, but is a RecordBatch",
    ),  # type: ignore[arg-type]
    "map get": (lambda c, k: c.map("map").get(k, k.rows, of_map(3, pa.int32())), "map", "column 'm' is int32"),
    "map key": (
        lambda c, k: c.map("map").put(k, k.rows, of_map(1), plain(3)),
        "map",
        "columns of the map key have 1 rows",
    ),
    "map put": (lambda c, k: c.map("map").put(k, k.rows, of_map(3), plain(2)), "map", "columns have 2 rows"),
    "remove": (lambda c, k: c.map("map").remove(k, np.array([-1]), of_map(1)), "map", "owners are from -1"),  # type: ignore[arg-type]
    "add": (lambda c, k: c.merging("sum").add(k, k.rows, only(1)), "sum", "1 rows, but there are 3 owners"),
    "sum type": (lambda c, k: c.merging("sum").add(k, k.rows, only(3, pa.float64())), "sum", "column 'n' is double"),
    "merged": (
        lambda c, k: c.merging("few").add(k, k.rows, only(3)),
        "few",
        "merged columns have 1 rows, but there are 3 keys",
    ),
    "merged type": (lambda c, k: c.merging("wide").add(k, k.rows, only(3)), "wide", "column 'n' is int64"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_the_declaration_is_refused(run: Callable[[Use], None], wrong: str) -> None:
    """S5.1: a back end would take the bytes as they lie."""
    use, state, cause = WRONG[wrong]
    with pytest.raises(PipelineError) as raised:
        run(use)
    said = str(raised.value)
    assert cause in said and f"operator 'op' subtask 0, state {state!r}, {__file__}:" in said


def test_columns_in_another_order_are_taken_by_name(run: Callable[[Use], None]) -> None:
    found: list[Any] = []

    def use(ctx: ProcessContext, keys: KeySet) -> None:
        ctx.value("value").put(keys, plain(3).select(["text", "n"]))
        found.extend(ctx.value("value").get(keys).columns.to_pylist())

    run(use)
    assert found == [{"n": n, "text": "a"} for n in range(3)]


def test_what_fits_comes_back_from_every_kind_of_state(run: Callable[[Use], None]) -> None:
    found: dict[str, Any] = {}

    def use(ctx: ProcessContext, keys: KeySet) -> None:
        ctx.value("value").put(keys, plain(3), np.array([True, False, True]))
        ctx.list("list").append(keys, keys.rows.astype(np.int64), plain(3))  # type: ignore[arg-type]
        ctx.list("list").put(keys, elements([0, 0, 2, 3], plain(3)))
        ctx.map("map").put(keys, np.array([], np.int32), of_map(0), plain(0))
        ctx.map("map").put(keys, keys.rows, of_map(3), plain(3))
        for name in ("sum", "last"):
            ctx.merging(name).add(keys, np.array([0, 0, 2], np.int32), only(3))
            ctx.merging(name).add(keys, np.array([0, 1, 2], np.int32), only(3))
            found[name] = ctx.merging(name).get(keys).columns["n"].to_pylist()
        found["value"] = ctx.value("value").get(keys).present.tolist()
        found["list"] = ctx.list("list").get(keys).offsets.tolist()
        found["map"] = ctx.map("map").get(keys, keys.rows, of_map(3)).columns["n"].to_pylist()
        found["keys"] = sum(some.size for name in ("last", "sum") for some in ctx.all_keys(name))

    run(use)
    assert found == {
        "value": [True, False, True],
        "list": [0, 0, 2, 3],
        "map": [0, 1, 2],
        "sum": [1, 1, 4],
        "last": [0, 1, 2],
        "keys": 6,
    }
