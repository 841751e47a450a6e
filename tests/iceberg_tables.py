"""Iceberg tables for tests: a SQLite catalog in a folder, and what readers see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.typedef import Record

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


def delete_positions(table: Table, name: str, file: str, positions: Sequence[int]) -> str:
    """Delete rows of a data file by position, as engines do that merge on read. Returns the delete file's path.

    Args:
        name: of the delete file.
        file: path of the data file.
    """
    path = f"{table.location()}/data/{name}.parquet"
    local = path.removeprefix("file://")
    removed = pa.table({"file_path": [file] * len(positions), "pos": pa.array(positions, pa.int64())})
    ids = [pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"})]
    ids.append(pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}))
    pq.write_table(removed.cast(pa.schema(ids)), local)
    delete = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(positions),
        file_size_in_bytes=Path(local).stat().st_size,
    )
    delete.spec_id = 0
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        update.append_data_file(delete)
        writer = update.new_manifest_writer

        def deletes_manifest(spec: Any) -> Any:
            made = writer(spec)
            made.content = lambda: ManifestContent.DELETES  # type: ignore[method-assign]
            return made

        update.new_manifest_writer = deletes_manifest  # type: ignore[method-assign]
    return path
