"""Where open windows are kept: as columns in memory, or by a back end outside of it (S5.2)."""

from __future__ import annotations

from typing import TypeAlias

from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.open_windows import OpenWindows
from tidegate.operators.windows.stored_windows import StoredWindows
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.state.backend_registry import OUTSIDE_MEMORY

WindowStore: TypeAlias = OpenWindows | StoredWindows


def new_window_store(spec: WindowAggSpec, ctx: OperatorContext, name: str) -> WindowStore:
    """As `state_backend` says. Args: name: of the state."""
    if ctx.state_backend in OUTSIDE_MEMORY:
        return StoredWindows(spec, ctx, name)
    return OpenWindows(spec, ctx, name)
