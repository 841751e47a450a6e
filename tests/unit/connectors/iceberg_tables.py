"""Iceberg tables for tests: a SQLite catalog in a folder, and what readers see."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "iceberg" in os.environ.get("TIDEGATE_REQUIRE", "").split(",")
"""Whether a missing package fails the tests instead of skipping them."""

if not REQUIRED and importlib.util.find_spec("pyiceberg") is None:
    pytest.skip("pyiceberg is not installed (extra iceberg)", allow_module_level=True)

import pyarrow as pa  # noqa: E402
from pyiceberg.catalog import Catalog, load_catalog  # noqa: E402
from pyiceberg.table import Table  # noqa: E402

TABLE = "shop.numbers"


def sqlite_catalog(folder: Path) -> dict[str, str]:
    """Properties of a catalog in this folder, for the source, the sink and `opened`."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


def opened(properties: Mapping[str, Any]) -> Catalog:
    """The open catalog, with the namespace of `TABLE`."""
    name = str(properties.get("name", "default"))
    catalog = load_catalog(name, **{key: value for key, value in properties.items() if key != "name"})
    catalog.create_namespace_if_not_exists("shop")
    return catalog


def rows_of(catalog: Catalog, table: str = TABLE, column: str = "n", branch: str | None = None) -> list[Any]:
    """The sorted values of a column, as readers of the table see them; none if there is no table."""
    if not catalog.table_exists(table):
        return []
    found: Table = catalog.load_table(table)
    scan = found.scan(selected_fields=(column,))
    if branch is not None:
        scan = scan.use_ref(branch)
    rows: pa.Table = scan.to_arrow()
    return sorted(rows.column(column).to_pylist())
