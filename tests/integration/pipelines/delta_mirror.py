"""The changes of a PostgreSQL table, written to a Delta table that mirrors it, by two subtasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate import Delta, Pipeline, PostgresTable


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: out (folder of the mirror); a file `mirror.json` beside it has arguments of the source."""
    out = Path(str(args["out"]))
    p = Pipeline()
    source = PostgresTable(**json.loads((out.parent / "mirror.json").read_text()), changes=True)
    sink = Delta(out, mode="upsert", key="id", target_file_rows=10_000)
    p.read(source, uid="changes").repartition("id").write(sink, uid="mirror")
    return p
