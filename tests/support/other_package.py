"""Another package that registers something with tidegate: a module and its metadata, in a folder on `sys.path`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, module: str, source: str, group: str, names: dict[str, str]
) -> None:
    """Install a package of one module for the rest of the test, as pip would.

    Args:
        folder: new folder for it.
        module: name of the module.
        source: its text.
        group: of the entry points.
        names: entry points: name to "module:object".
    """
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    points = "".join(f"{name} = {target}\n" for name, target in names.items())
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{points}")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
