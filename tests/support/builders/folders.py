"""Where tests keep files that nobody reads afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 2**30


def quick_root() -> Path | None:
    """A file system in memory with room for a test's files, else None: a test that waits for a disk to sync, as RocksDB
    does at each checkpoint, takes several times as long and proves no more."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return None
    return _MEMORY if shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES else None
