"""Delta and Iceberg tables that a sink upserts, behind one face for tests."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from iceberg_tables import compact, opened, sqlite_catalog

from tidegate.change_rows import change_kind_field
from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.iceberg.iceberg_sink import Iceberg
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.testing.one_sink_job import TestWriter as Identity

ROWS = pa.schema([("k", pa.int64()), ("shop", pa.string()), ("v", pa.string())])
CHANGES = ROWS.insert(0, change_kind_field())

Row = tuple[Any, ...]
Change = tuple[Any, ...]
"""Kind of change and the columns."""


class Upserted(ABC):
    """A table, its sink in upsert mode, and other programs."""

    def __init__(self, folder: Path, schema: pa.Schema = CHANGES, **options: Any) -> None:
        self.folder = folder
        self.schema = schema
        self.identity = Identity()
        self.options = {"mode": "upsert", "key": "k", **options}

    @abstractmethod
    def sink(self, **options: Any) -> Any: ...

    @abstractmethod
    def table(self) -> pa.Table:
        """The rows that readers see."""

    @abstractmethod
    def versions(self) -> int:
        """Number of changes of the table."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """As another program."""

    @abstractmethod
    def compact(self) -> None:
        """As another program."""

    def context(self, subtask: int = 0, parallelism: int = 1) -> SinkContext:
        from dataclasses import replace

        return replace(self.identity.context(subtask, parallelism), schema=self.schema)

    def writer(self, subtask: int = 0, parallelism: int = 1, **options: Any) -> SinkWriter:
        made: SinkWriter = self.sink(**options).create_writer(self.context(subtask, parallelism))
        made._wait = lambda _: None  # type: ignore[attr-defined]  # no test waits
        return made

    def staged(self, writer: SinkWriter, checkpoint_id: int, *changes: Change) -> list[Committable]:
        """Handles, as a snapshot stores them."""
        if changes:
            writer.write(self.batch(changes))
        handles = writer.prepare_commit(checkpoint_id)()
        return [Committable(one.transaction_id, json.loads(json.dumps(dict(one.data)))) for one in handles]

    def batch(self, changes: Sequence[Change]) -> pa.RecordBatch:
        columns = list(zip(*changes, strict=True))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def commit(self, writer: SinkWriter, checkpoint_id: int, *changes: Change) -> None:
        writer.commit(self.staged(writer, checkpoint_id, *changes))

    def rewind(self, to: int) -> Callable[[], None]:
        self.identity.generation += 1
        return self.sink().rewind_to(self.context(), to)  # type: ignore[no-any-return]

    def rows(self) -> list[Row]:
        return sorted((tuple(row.values()) for row in self.table().to_pylist()), key=repr)

    def others(self, *rows: Row) -> None:
        """Another program appends rows."""
        columns = list(zip(*rows, strict=True))
        self.append(pa.table([pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)], schema=ROWS))

    def left_staged(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*.staged"))

    def rest_files(self) -> list[Path]:
        return sorted(self.folder.rglob("rest-*.parquet"))


class UpsertedDelta(Upserted):
    def sink(self, **options: Any) -> Delta:
        return Delta(self.folder / "table", **{**self.options, **options})

    @property
    def path(self) -> str:
        return str(self.folder / "table")

    @property
    def written(self) -> DeltaTable:
        return DeltaTable(self.path)

    def table(self) -> pa.Table:
        return self.written.to_pyarrow_table() if DeltaTable.is_deltatable(self.path) else ROWS.empty_table()

    def versions(self) -> int:
        return self.written.version()

    def append(self, rows: pa.Table) -> None:
        partition_by = self.options.get("partition_by")
        write_deltalake(self.path, rows, mode="append", partition_by=partition_by)

    def compact(self) -> None:
        self.written.optimize.compact()


class UpsertedIceberg(Upserted):
    name = "shop.upserted"

    def __init__(self, folder: Path, schema: pa.Schema = CHANGES, **options: Any) -> None:
        super().__init__(folder, schema, **options)
        self.properties = sqlite_catalog(folder)
        self.catalog = opened(self.properties)

    def sink(self, **options: Any) -> Iceberg:
        return Iceberg(self.name, catalog=self.properties, **{"create": True, **self.options, **options})

    def table(self) -> pa.Table:
        if not self.catalog.table_exists(self.name):
            return ROWS.empty_table()
        return self.catalog.load_table(self.name).scan().to_arrow()

    def versions(self) -> int:
        return len(self.catalog.load_table(self.name).snapshots())

    def append(self, rows: pa.Table) -> None:
        if not self.catalog.table_exists(self.name):
            self.catalog.create_table(self.name, rows.schema)
        self.catalog.load_table(self.name).append(rows)

    def compact(self) -> None:
        compact(self.catalog.load_table(self.name))


KINDS: dict[str, type[Upserted]] = {"Delta": UpsertedDelta, "Iceberg": UpsertedIceberg}
