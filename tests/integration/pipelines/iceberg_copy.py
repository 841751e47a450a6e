"""Rows of an Iceberg table that grows while the job runs, sent to another subtask and appended to a second table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate import Iceberg, IcebergTable, Pipeline


def catalog_in(folder: Path) -> dict[str, str]:
    """Properties of the catalog of both tables."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: out (a folder; the catalog is beside it)."""
    p = Pipeline()
    catalog = catalog_in(Path(str(args["out"])).parent)
    (
        p.read(IcebergTable("shop.source", catalog=catalog, follow="200 ms"), uid="in")
        .repartition("n")
        .write(Iceberg("shop.copy", catalog=catalog, create=True, partition_by="bucket(4, n)"), uid="out")
    )
    return p
