"""Every operator with state says whose end of input makes it give results, so that a drain's are known to be early."""

from __future__ import annotations

import pkgutil
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tidegate.compat.pyspark_stateful.processor_specs import INITIAL, StatefulProcessorSpec, TimeMode
from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.operators.operator_registry import BUILT_IN
from tidegate.operators.operator_spec import EndOfInput, OperatorSpec

STATELESS = {"FilterSpec", "ProjectSpec", "MapInArrowSpec", "UnionSpec", "PartialAggSpec", "UnnestRowsSpec"}
"""Specs whose operators keep nothing between two batches: nothing is left to be given at an end."""
SPECS: dict[str, type[OperatorSpec]] = {
    name.rpartition(".")[2]: pkgutil.resolve_name(name) for name in BUILT_IN if not name.startswith("tidegate.testing.")
}


def test_every_spec_with_state_says_whose_end_makes_it_give_results() -> None:
    assert SPECS.keys() >= STATELESS, "the list names a spec that is gone"
    for name in SPECS.keys() - STATELESS:
        for method in ("states", "results_at_end"):
            asked = getattr(OperatorSpec, method)
            assert getattr(SPECS[name], method) is not asked, f"{name} has state, and no {method}: {asked.__doc__}"
    for name in STATELESS:
        assert SPECS[name].states is OperatorSpec.states, f"{name} has state after all"


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
