"""Where open windows are kept: as columns in memory, or also by a back end outside of it (S5.2)."""

from __future__ import annotations

from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.heap_windows import HeapWindows
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.state.backend_registry import OUTSIDE_MEMORY


def new_window_store(spec: WindowAggSpec, ctx: OperatorContext, name: str) -> HeapWindows:
    """As `state_backend` says. Args: name: of the state."""
    if ctx.state_backend in OUTSIDE_MEMORY:
        # Not imported by jobs that keep windows in memory, so that they start sooner.
        from tidegate.operators.windows.backend_windows import BackendWindows

        return BackendWindows(spec, ctx, name)
    return HeapWindows(spec, ctx, name)
