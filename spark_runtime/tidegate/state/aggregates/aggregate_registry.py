"""Registry of aggregates by name: the built-in ones, and those that other packages register as entry points (S5.1)."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points

from tidegate.entry_points import broken_extension, load_entry_point
from tidegate.errors import PipelineError
from tidegate.state.aggregates.aggregation import AggregateFunction

ENTRY_POINTS = "tidegate.aggregates"
"""Group of entry points: name of an aggregate -> "module:NAME" of its `AggregateFunction`."""

BUILT_IN: Mapping[str, str] = {
    "bool_and": "tidegate.state.aggregates.numbers:BOOL_AND",
    "bool_or": "tidegate.state.aggregates.numbers:BOOL_OR",
    "bottom_n": "tidegate.state.aggregates.ordered_rows:BOTTOM_N",
    "bottom_rows": "tidegate.state.aggregates.ordered_rows:BOTTOM_ROWS",
    "collect": "tidegate.state.aggregates.ordered_rows:COLLECT",
    "collect_set": "tidegate.state.aggregates.distinct:COLLECT_SET",
    "count": "tidegate.state.aggregates.numbers:COUNT",
    "count_distinct": "tidegate.state.aggregates.distinct:COUNT_DISTINCT",
    "first": "tidegate.state.aggregates.ordered_rows:FIRST",
    "last": "tidegate.state.aggregates.ordered_rows:LAST",
    "max": "tidegate.state.aggregates.numbers:MAX",
    "max_by": "tidegate.state.aggregates.ordered_rows:MAX_BY",
    "mean": "tidegate.state.aggregates.numbers:MEAN",
    "min": "tidegate.state.aggregates.numbers:MIN",
    "min_by": "tidegate.state.aggregates.ordered_rows:MIN_BY",
    "stddev": "tidegate.state.aggregates.moments:STDDEV",
    "sum": "tidegate.state.aggregates.numbers:SUM",
    "top_n": "tidegate.state.aggregates.ordered_rows:TOP_N",
    "top_rows": "tidegate.state.aggregates.ordered_rows:TOP_ROWS",
    "user": "tidegate.state.aggregates.user_aggregate:USER",
    "var": "tidegate.state.aggregates.moments:VAR",
}
"""Name -> "module:NAME"; a module is imported when one of its aggregates is first used."""


@functools.cache
def find_aggregate(name: str) -> AggregateFunction:
    """Return the aggregate of this name. An entry point cannot replace a built-in aggregate.

    Raises:
        PipelineError: no aggregate has this name, or several packages register it.
        EnvironmentProblemError: the package of the aggregate cannot be imported, or the registered object does not fit.
    """
    if name in BUILT_IN:
        module, _, constant = BUILT_IN[name].partition(":")
        built_in: AggregateFunction = getattr(importlib.import_module(module), constant)
        return built_in
    registered = entry_points(group=ENTRY_POINTS)
    places = {point.value: point for point in registered if point.name == name}
    if not places:
        near = difflib.get_close_matches(name, [*BUILT_IN, *registered.names], n=1)
        raise PipelineError(
            f"there is no aggregate {name!r}" + (f", did you mean {near[0]!r}?" if near else ""),
            cause=f"no installed package registers this name as an entry point of the group {ENTRY_POINTS!r}",
            remedy="Install the package of the aggregate, on this machine and on every executor",
        )
    if len(places) > 1:
        raise PipelineError(
            f"several packages register an aggregate {name!r}: {', '.join(sorted(places))}",
            remedy="Uninstall all of these packages but one",
        )
    (point,) = places.values()
    found = load_entry_point(point, f"aggregate {name!r}")
    if not isinstance(found, AggregateFunction) or found.name != name:
        own = f"the aggregate {found.name!r}" if isinstance(found, AggregateFunction) else f"a {type(found).__name__}"
        cause = f"it is {own}, not an AggregateFunction with name={name!r}"
        raise broken_extension(point, f"aggregate {name!r}", "does not fit", cause)
    return found
