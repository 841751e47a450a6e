"""Where the file sinks of these tests write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty folder on the local disk, and in a store of objects."""
    yield str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"
    MemoryFileSystem.store.clear()
