"""Rows of a Delta table that grows while the job runs, sent to another subtask and appended to a second table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate import Delta, DeltaTable, Pipeline


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: out (folder of the second table; the first is the folder `in` beside it)."""
    p = Pipeline()
    out = Path(str(args["out"]))
    source = DeltaTable(out.parent / "in", version=0, follow="200 ms")
    p.read(source, uid="in").repartition("n").write(Delta(out), uid="out")
    return p
