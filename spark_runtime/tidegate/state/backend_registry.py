"""Registry of keyed state back ends by name: the option `state_backend` (S5.2)."""

from __future__ import annotations

import importlib

from tidegate.errors import MissingExtraError, OptionError
from tidegate.extras import installation
from tidegate.state.keyed_state import KeyedStateBackend

BACKENDS = {
    "heap": ("tidegate.state.heap.heap_backend", "HeapBackend"),
    "memory": ("tidegate.state.heap.heap_backend", "MemoryBackend"),
    "rocksdb": ("tidegate.state.rocksdb.rocksdb_backend", "RocksDBBackend"),
}
"""Module and class of each; a module is imported when its back end is first used."""

OUTSIDE_MEMORY = frozenset({"rocksdb"})
"""Back ends that keep state outside memory. Windows, sessions and running aggregates use them, too.

With all other back ends, these operators use their own columns in memory, which a back end could not improve.
"""


def new_backend(name: str) -> KeyedStateBackend:
    """Return a back end that is not opened yet.

    Raises:
        OptionError: the name is unknown.
        MissingExtraError: a required package is not installed.
    """
    if name not in BACKENDS:
        raise OptionError(
            f"{name!r} is not the name of a state back end",
            where="option state_backend",
            remedy=f"Use one of {', '.join(map(repr, BACKENDS))}",
        )
    module, class_name = BACKENDS[name]
    try:
        found = getattr(importlib.import_module(module), class_name)
    except ImportError as error:
        raise MissingExtraError(
            f"the state back end {name!r} cannot be loaded ({error})",
            where="option state_backend",
            cause="a package that the back end needs is not installed on this machine",
            remedy=f"Run `{installation(name)}` on the driver and every executor, or use 'heap'",
        ) from error
    backend: KeyedStateBackend = found()
    return backend
