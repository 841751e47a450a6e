"""The changes of a table, written to a table that mirrors it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate import Pipeline, Postgres, PostgresTable


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: out; a file `mirror.json` beside it has arguments of source and sink."""
    options = json.loads((Path(str(args["out"])).parent / "mirror.json").read_text())
    p = Pipeline()
    source = PostgresTable(**options["source"], changes=True)
    p.read(source, uid="changes").write(Postgres(**options["sink"], mode="upsert", key="id"), uid="mirror")
    return p
