"""Compiles every kernel before the first record."""

from __future__ import annotations

import importlib

_MODULES = (
    "keybytes",
    "decimal_keys",
    "keyhash",
    "keyindex",
    "accumulators",
    "moments",
    "session_kernels",
    "repeats",
    "rows",
    "columns",
    "arrow_buffers",
    "erasable_index",
    "heap_maps",
    "timer_kernels",
    "byterows",
    "rowcodec",
    "keydecode",
    "rocks_cache",
)


def compile_all() -> None:
    """Compile every kernel, or load it from the cache; to be called before READY. Seconds the first time on a machine,
    a fraction of one afterwards. May be called twice."""
    for name in _MODULES:
        importlib.import_module(f"tidegate.state.{name}")
