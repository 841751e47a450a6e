"""Compilation of every kernel before the first record."""

from __future__ import annotations

import importlib

from tidegate.state.numba_kernels import compile_kernels

_MODULES = (
    "tidegate.state.keys.key_bytes",
    "tidegate.state.keys.decimal_keys",
    "tidegate.state.keys.key_hash",
    "tidegate.state.keys.key_index",
    "tidegate.state.aggregates.numbers",
    "tidegate.state.aggregates.moments",
    "tidegate.operators.windows.session_kernels",
    "tidegate.operators.deduplicate",
    "tidegate.operators.joins.matched_pairs",
    "tidegate.operators.joins.session_spans",
    "tidegate.operators.joins.span_kernels",
    "tidegate.operators.windows.row_groups",
    "tidegate.state.copy_on_write",
    "tidegate.state.scattered_rows",
    "tidegate.state.arrow.arrow_buffers",
    "tidegate.state.heap.erasable_index",
    "tidegate.state.heap.map_columns",
    "tidegate.state.heap.timer_kernels",
    "tidegate.connectors.formats.avro.decode_kernels",
    "tidegate.connectors.formats.avro.encode_kernels",
    "tidegate.connectors.formats.json_shapes",
    "tidegate.connectors.formats.utf8",
    "tidegate.state.rocksdb.byte_rows",
    "tidegate.state.rocksdb.row_codec",
    "tidegate.state.rocksdb.key_columns",
    "tidegate.state.rocksdb.row_cache",
    "tidegate.connectors.files.source.repeated_names",
)


def preload_kernels() -> None:
    """Compile every kernel, or load it from the cache. Call it before READY.

    It takes seconds the first time on a machine, a fraction of a second afterwards. May be called twice.
    """
    for name in _MODULES:
        importlib.import_module(name)
    compile_kernels()
