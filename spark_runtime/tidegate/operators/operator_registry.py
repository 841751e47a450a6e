"""Registry of operators: which class runs which spec. Lists this package's operators; other packages can add theirs.

Specs do not import their operators. An operator is imported only where it runs, so drawing a pipeline imports none. A
package with an operator of its own declares it as an entry point. The entry point's name is the dotted name of the
spec::

    [project.entry-points."tidegate.operators"]
    "my_package.specs.TopWordsSpec" = "my_package.top_words:TopWords"
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias, cast

from tidegate.entry_points import broken_extension, load_entry_point
from tidegate.errors import PipelineError, TidegateError
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import StreamOperator

ENTRY_POINTS = "tidegate.operators"
"""Group of the entry points of other packages."""
BUILT_IN: Mapping[str, str] = {
    "tidegate.compat.pyspark_stateful.processor_specs.StatefulProcessorSpec": (
        "tidegate.compat.pyspark_stateful.transform_with_state:TransformWithState"
    ),
    "tidegate.operators.aggregates.aggregate_specs.PartialAggSpec": (
        "tidegate.operators.aggregates.running_aggregate:PartialAggregate"
    ),
    "tidegate.operators.aggregates.aggregate_specs.RunningAggSpec": (
        "tidegate.operators.aggregates.running_aggregate:RunningAggregate"
    ),
    "tidegate.operators.aggregates.aggregate_specs.UnnestRowsSpec": (
        "tidegate.operators.aggregates.running_aggregate:UnnestRows"
    ),
    "tidegate.operators.async_specs.AsyncMapSpec": "tidegate.operators.async_map:AsyncMap",
    "tidegate.operators.deduplicate_specs.DeduplicateSpec": "tidegate.operators.deduplicate:Deduplicate",
    "tidegate.operators.joins.join_specs.BroadcastJoinSpec": "tidegate.operators.joins.broadcast_join:BroadcastJoin",
    "tidegate.operators.joins.join_specs.StreamJoinSpec": "tidegate.operators.joins.stream_join:join_operator",
    "tidegate.operators.processes.process_specs.KeyedProcessSpec": (
        "tidegate.operators.processes.keyed_process_operator:KeyedProcessOperator"
    ),
    "tidegate.operators.processes.process_specs.ProcessSpec": (
        "tidegate.operators.processes.process_operator:ProcessOperator"
    ),
    "tidegate.operators.row_specs.FilterSpec": "tidegate.operators.row_operators:FilterOperator",
    "tidegate.operators.row_specs.MapInArrowSpec": "tidegate.operators.row_operators:MapInArrowOperator",
    "tidegate.operators.row_specs.ProjectSpec": "tidegate.operators.row_operators:ProjectOperator",
    "tidegate.operators.row_specs.UnionSpec": "tidegate.operators.row_operators:UnionOperator",
    "tidegate.operators.time.watermark_specs.WatermarkSpec": "tidegate.operators.time.watermark:watermark_operator",
    "tidegate.operators.windows.session_specs.SessionAggSpec": (
        "tidegate.operators.windows.session_aggregate:session_operator"
    ),
    "tidegate.operators.windows.window_specs.PartialWindowSpec": (
        "tidegate.operators.windows.partial_windows:PartialWindowAggregate"
    ),
    "tidegate.operators.windows.window_specs.WindowAggSpec": (
        "tidegate.operators.windows.window_aggregate:window_operator"
    ),
    "tidegate.testing.fed_source.PassMarksSpec": "tidegate.testing.fed_source:PassMarks",
}
"""Dotted name of a spec -> "module:factory" of its operator. The factory's argument is the spec. The module is imported
when the first such operator is created."""

Factory: TypeAlias = Callable[[OperatorSpec], StreamOperator]
_registered: dict[type[OperatorSpec], str] = {}


def register_operator(spec_class: type[OperatorSpec], target: str) -> None:
    """Register the operator of a spec in this process, for code that is not an installed package, such as a test.

    A later call for the same spec replaces the earlier one.

    Args:
        spec_class: the spec. Its subclasses without an operator of their own use this operator too.
        target: "module:factory"; the factory's argument is the spec.
    """
    _registered[spec_class] = target


def create_operator(spec: OperatorSpec) -> StreamOperator:
    """Create an operator for the spec. The caller opens it.

    Raises:
        PipelineError: no operator is registered for the spec.
        EnvironmentProblemError: the package that registers the operator is broken.
    """
    for spec_class in type(spec).__mro__:
        name = _dotted_name(spec_class)
        target = _registered.get(spec_class) or BUILT_IN.get(name)
        if target is not None:
            return cast(Factory, pkgutil.resolve_name(target))(spec)
        if spec_class is not OperatorSpec and name in _installed():
            return _of_other_package(_installed()[name], spec)
    name = _dotted_name(type(spec))
    raise PipelineError(
        f"no operator is registered for {name}",
        cause="the package with the operator is not installed in this process, or does not register the operator",
        remedy=f"Install the package on every executor; it needs an entry point {name!r} in the group {ENTRY_POINTS!r}",
    )


def _of_other_package(point: EntryPoint, spec: OperatorSpec) -> StreamOperator:
    what = f"operator of {point.name}"
    factory = load_entry_point(point, what)
    try:
        operator = factory(spec)
    except TidegateError:
        raise
    except Exception as error:  # the code of another package may raise anything
        raise broken_extension(point, what, "cannot be created from its spec", error) from error
    if not isinstance(operator, StreamOperator):
        cause = f"it is a {type(operator).__name__}, not a subclass of {StreamOperator.__module__}.StreamOperator"
        raise broken_extension(point, what, "does not fit", cause)
    return operator


@cache
def _installed() -> Mapping[str, EntryPoint]:
    """Return the entry points of other packages by the dotted name of the spec. Cached, because the search reads the
    metadata of every installed package."""
    return {found.name: found for found in entry_points(group=ENTRY_POINTS)}


def _dotted_name(spec_class: type) -> str:
    return f"{spec_class.__module__}.{spec_class.__qualname__}"
