"""Where open windows are kept: as columns in memory, or by a back end outside of it (S5.2)."""

from __future__ import annotations

from typing import TypeAlias

from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.backend_windows import BackendWindows
from tidegate.operators.windows.heap_windows import HeapWindows
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.state.backend_registry import OUTSIDE_MEMORY

WindowStore: TypeAlias = HeapWindows | BackendWindows


def new_window_store(spec: WindowAggSpec, ctx: OperatorContext, name: str) -> WindowStore:
    """As `state_backend` says. Args: name: of the state."""
    if ctx.state_backend in OUTSIDE_MEMORY:
        return BackendWindows(spec, ctx, name)
    return HeapWindows(spec, ctx, name)
