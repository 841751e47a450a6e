"""Iceberg tables for tests: a SQLite catalog in a folder, and what readers see."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary

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


def compact(table: Table) -> None:
    """Write all rows again, in one file, with a snapshot of the kind `replace`, as other engines do."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    content, old = table.scan().to_arrow(), [task.file for task in table.scan().plan_files()]
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        summary = update._summary
        update._summary = lambda given: Summary(  # type: ignore[method-assign,assignment]
            Operation.REPLACE, **summary(given).additional_properties
        )
        for file in _dataframe_to_data_files(transaction.table_metadata, content, table.io):
            update.append_data_file(file)
        for file in old:
            update.delete_data_file(file)


def expire_all_but_the_newest(table: Table) -> None:
    """Expire every snapshot that no branch or tag names."""
    heads = {ref.snapshot_id for ref in table.refs().values()}
    gone = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id not in heads]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
