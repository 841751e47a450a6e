"""Every operator with state says whose end of input makes it give results, so that a drain's are known to be early."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import tidegate
from tidegate.compat.pyspark_stateful.processor_specs import INITIAL, StatefulProcessorSpec, TimeMode
from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.operators.stream_operator import DeclaresStates, EndOfInput, GivesResultsAtEnd

STATELESS = {"FilterSpec", "ProjectSpec", "MapInArrowSpec", "UnionSpec", "PartialAggSpec", "UnnestRowsSpec"}
"""Specs whose operators keep nothing between two batches: nothing is left to be given at an end."""
RUNTIME = Path(str(tidegate.__file__)).parent
MODULES = [*(RUNTIME / "operators").rglob("*.py"), *(RUNTIME / "compat").rglob("*.py")]


def specs() -> dict[str, type[Any]]:
    paths = [path.relative_to(RUNTIME.parent).with_suffix("") for path in MODULES if path.stem.endswith("specs")]
    modules = [importlib.import_module(".".join(path.parts)) for path in paths]
    classes = [c for module in modules for _, c in inspect.getmembers(module, inspect.isclass)]
    return {c.__name__: c for c in classes if hasattr(c, "create") and hasattr(c, "describe")}


def test_every_spec_with_state_says_whose_end_makes_it_give_results() -> None:
    found = specs()
    assert found.keys() >= STATELESS, "the list names a spec that is gone"
    for name in found.keys() - STATELESS:
        for asked, method in ((DeclaresStates, "states"), (GivesResultsAtEnd, "results_at_end")):
            assert hasattr(found[name], method), f"{name} has state, and is no {asked.__name__}: {asked.__doc__}"
    for name in STATELESS:
        assert not hasattr(found[name], "states"), f"{name} has state after all"


def test_specs_lie_in_the_modules_that_are_looked_through() -> None:
    others = [path for path in MODULES if not path.stem.endswith("specs")]
    assert [path.name for path in others if "def create(self) -> StreamOperator:" in path.read_text()] == [
        "stream_operator.py"
    ]


class Plain(StatefulProcessor):
    def init(self, handle: Any) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timer_values: Any) -> Any:
        return iter(())

    def close(self) -> None: ...


class WithTimers(Plain):
    def handleExpiredTimer(self, *args: Any) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("processor", "time_mode", "initial", "on_end", "expected"),
    [
        (WithTimers, "eventtime", False, "drop", "any"),
        (WithTimers, "processingtime", True, "fire", "any"),
        (WithTimers, "processingtime", False, "drop", "none"),
        (WithTimers, "processingtime", True, "drop", INITIAL),
        (WithTimers, "none", False, "fire", "none"),
        (Plain, "eventtime", True, "fire", INITIAL),
        (Plain, "eventtime", False, "fire", "none"),
    ],
)
def test_a_processor_gives_results_where_timers_fire_or_rows_had_waited(
    processor: type[StatefulProcessor],
    time_mode: TimeMode,
    initial: bool,
    on_end: ProcessingTimeOnEnd,
    expected: EndOfInput,
) -> None:
    columns = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us"))])
    spec = StatefulProcessorSpec(
        processor=processor(),
        pandas=False,
        declared=(),
        deleted=(),
        time_mode=time_mode,
        keys=("k",),
        time_column="at" if time_mode == "eventtime" else None,
        time_unit="us",
        input_schema=columns,
        initial_schema=columns if initial else None,
        initial_keys=("k",) if initial else (),
        schema=columns,
        output_time=None,
        output_unit="us",
    )
    assert spec.results_at_end(on_end) == expected
