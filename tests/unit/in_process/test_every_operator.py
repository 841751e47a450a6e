"""Every operator of the API gives the same rows in streaming, in batch and by an independent calculation: out of order,
cut in batches anywhere, through checkpoints, crashes, restores and rescales at random moments, on every back end (S8.2,
S5.1, S5.5, S9.1).

The cases are in `proof_*.py`, by family. A call of the API without a case makes the last tests fail."""

from __future__ import annotations

import functools
import inspect
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from builders.sinks import new_sink_name
from process_jobs import run_with_accidents
from proof_cases import Case, Drawing, Result, tables
from proof_groups import GROUPS, every_aggregate
from proof_joins import JOINS
from proof_processes import PROCESSES
from proof_rows import ROW_BY_ROW

import tidegate
from tidegate import Pipeline, PipelineError, Stream
from tidegate.api import aggregates
from tidegate.api.connected_streams import ConnectedGroups, ConnectedStreams
from tidegate.api.grouped_stream import GroupedStream, WindowedStream
from tidegate.operators.aggregates.aggregate_specs import AggregateOutput, RunningAggSpec
from tidegate.operators.joins.join_specs import (
    AsOfMatch,
    Bounds,
    BroadcastJoinSpec,
    JoinKind,
    StreamJoinKind,
    StreamJoinSpec,
)
from tidegate.operators.user_functions.context import ProcessBase
from tidegate.operators.windows.session_specs import SessionAggSpec
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.spark.batch import stage_task
from tidegate.state.aggregates.aggregate_registry import find_aggregate
from tidegate.testing.batch import InProcessBatch
from tidegate.testing.collect_sink import clear_collected, collected

CASES = {**ROW_BY_ROW, **GROUPS, **JOINS, **PROCESSES}
BACK_ENDS = ("heap", "memory", "rocksdb")
FIXED_PARALLELISM = 2
"""That of `run_with_accidents`, without rescales."""
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
HOLDERS: tuple[Any, ...] = (
    Stream,
    GroupedStream,
    WindowedStream,
    ConnectedStreams,
    ConnectedGroups,
    aggregates,
)
"""Where the calls of the API are."""
NO_OPERATORS = {"Stream.explain", "Stream.sort", "Stream.order_by"}
"""Calls that draw nothing, or are refused."""


class Proof:
    """One case with one seed: its pipeline, drawn as often as a run asks for it, and what came of it."""

    def __init__(self, case: Case, seed: int, *, paced: bool) -> None:
        self.case = case
        self.sink = new_sink_name()
        self._tables = tables(seed)
        self._rng = random.Random(seed)
        self._paced = paced
        self._results: dict[str, Result] = {}

    def build(self) -> Pipeline:
        """With batches of other sizes every time."""
        drawing = Drawing(self._tables, self.sink, self._rng, self._paced, delay=self.case.delay)
        self._results = dict(self.case.draw(drawing))
        for name, result in self._results.items():
            if isinstance(result.stream, Stream):
                result.stream.write(drawing.into(name), uid=f"out-{name.replace(' ', '-')}")
        return drawing.pipeline

    def check(self) -> None:
        """Every result against its calculation."""
        for name, result in self._results.items():
            wanted, found = result.wanted(self._tables), result.found(collected(f"{self.sink}-{name}").table())
            lost, extra = wanted - found, found - wanted
            assert not lost, f"{name}: {lost.total()} rows lost, such as {list(lost)[:3]}, too many: {list(extra)[:3]}"
            assert not extra, f"{name}: {extra.total()} rows too many, such as {list(extra)[:3]}"
            assert wanted, f"{name} gives nothing, and proves nothing"
            clear_collected(f"{self.sink}-{name}")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_streaming_with_accidents_gives_what_an_independent_calculation_gives(
    name: str, seed: int, tmp_path: Path
) -> None:
    case = CASES[name]
    known = BACK_ENDS if seed else BACK_ENDS[:2]  # the files of the third take their time
    back_end = known[(seed + sorted(CASES).index(name)) % len(known)]
    proof = Proof(case, seed, paced=True)
    run_with_accidents(
        proof.build, f"{name}-{seed}", rescales=case.rescales, scratch=str(tmp_path), state_backend=back_end
    )
    proof.check()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_batch_gives_what_an_independent_calculation_gives(
    name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators with keys begin anew after blocks of a random size, too."""
    case, rng = CASES[name], random.Random(seed)
    monkeypatch.setattr(stage_task, "BLOCK_ROWS", rng.choice([rng.randint(10, 80), 100_000]))
    proof = Proof(case, seed, paced=False)
    parallelism = rng.randint(1, 4) if case.rescales else FIXED_PARALLELISM
    options = {"parallelism": parallelism, "state_backend": BACK_ENDS[seed % len(BACK_ENDS)]}
    if case.depends_on_mode:
        with pytest.raises(PipelineError, match="may emit other rows in batch"):
            InProcessBatch(proof.build, options, scratch=str(tmp_path)).run()
        options["allow_mode_dependent"] = True
    job = InProcessBatch(proof.build, options, scratch=str(tmp_path), batch_rows=rng.randint(1, 60))
    job.run()
    job.commit()
    proof.check()


# ------------------------------------------------------------ nothing is left out


def public(holder: Any) -> dict[str, Callable[..., Any]]:
    """Functions of a class or module that users call; of a module those that make an aggregate."""
    found = dict(inspect.getmembers(holder, inspect.isfunction))
    if inspect.ismodule(holder):
        found = {n: f for n, f in found.items() if f.__annotations__.get("return") == "Aggregate"}
    return {name: function for name, function in found.items() if not name.startswith("_")}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the calls that are made, without those that calls make of each other."""
    made: set[str] = set()
    under_way: list[str] = []

    def recording(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            made.update([] if under_way else [name])
            under_way.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                under_way.pop()

        return recorded

    for holder in HOLDERS:
        for name, function in public(holder).items():
            monkeypatch.setattr(holder, name, recording(f"{holder.__name__}.{name}", function))
    return made


def specs() -> list[Any]:
    """Of the operators of all cases."""
    graphs = [Proof(case, 0, paced=False).build().build() for case in CASES.values()]
    return [node.spec for graph in graphs for node in graph.nodes if node.spec is not None]


def test_every_call_of_the_api_has_a_case(calls: set[str]) -> None:
    specs()
    known = {f"{holder.__name__}.{name}" for holder in HOLDERS for name in public(holder)}
    assert known - calls == NO_OPERATORS


def test_every_aggregate_has_a_case_in_every_window_and_without_one() -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for spec in specs():
        form: tuple[str, str] | None = None
        if isinstance(spec, WindowAggSpec | SessionAggSpec):
            time = "processing" if spec.time_column is None else "late" if spec.lateness_us else "event"
            is_sliding = isinstance(spec, WindowAggSpec) and spec.slide_us
            form = ("sliding" if is_sliding else type(spec).__name__, time)
        elif isinstance(spec, RunningAggSpec):
            form = ("whole stream" if spec.is_partial else "groups", spec.output)
        if form is not None:
            found.setdefault(form, set()).update(agg.function for agg in spec.aggregates)
    kinds = ("WindowAggSpec", "sliding", "SessionAggSpec")
    running = set(itertools.product(("whole stream", "groups"), get_args(AggregateOutput)))
    assert set(found) == set(itertools.product(kinds, ("event", "late", "processing"))) | running
    wanted = {find_aggregate(aggregate.function).name for aggregate in every_aggregate().values()}
    for form in (*itertools.product(kinds, ["event"]), *running):
        assert wanted <= found[form]


def test_every_kind_of_join_has_a_case_with_every_bound_on_times() -> None:
    joined = {(type(spec.bounds), spec.how) for spec in specs() if isinstance(spec, StreamJoinSpec)}
    wanted = set(itertools.product(get_args(Bounds), get_args(StreamJoinKind)))
    assert joined == {(bounds, how) for bounds, how in wanted if bounds is not AsOfMatch or how in ("inner", "left")}
    broadcast = {spec.how for spec in specs() if isinstance(spec, BroadcastJoinSpec)}
    assert broadcast == set(get_args(JoinKind))


def test_every_class_of_processes_has_a_case() -> None:
    drawn = {base for s in specs() for base in type(getattr(s, "process", None)).__mro__}
    wanted = {
        found for name in dir(tidegate) if inspect.isclass(found := getattr(tidegate, name)) and found.__name__ == name
    }
    assert {cls for cls in wanted if issubclass(cls, ProcessBase)} <= drawn
