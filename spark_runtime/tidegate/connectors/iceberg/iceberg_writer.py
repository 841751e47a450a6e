"""Writer of the Iceberg sink: stages Parquet files as file sinks do, and publishes them by a snapshot of the table
(S7.4).
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.commit_group import CommitGroups
from tidegate.connectors.files.sink.encoded_file import EncodedFile
from tidegate.connectors.files.sink.file_writer import FileCut, FileWriter
from tidegate.connectors.files.sink.hive_partitions import PartitionValues
from tidegate.connectors.files.sink.marker_packs import MarkerPacks
from tidegate.connectors.files.sink.sink_layout import FileLayout, target_name
from tidegate.connectors.iceberg.catalog import IcebergCatalog, table_filesystem
from tidegate.connectors.iceberg.commit_log import CommitAttempt, CommitLog, append_files, transactions_of
from tidegate.connectors.iceberg.data_files import IcebergEncoding, IcebergFile, data_file, data_location, file_sort
from tidegate.connectors.iceberg.table_columns import StoredColumns
from tidegate.connectors.iceberg.table_partitions import Partitioner
from tidegate.connectors.storage import sync_to_disk
from tidegate.connectors.transactions import Committable, SinkContext, TransactionId, parse_transaction_id
from tidegate.errors import OutageError, SinkConflictError, TidegateError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

COMMIT_ATTEMPTS = 10
"""Attempts to append before a commit fails; each attempt reads the table first."""
FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 5.0
"""Wait after a failed attempt, seconds: doubled each time, and random, so that writers in conflict part."""
LEADER_WAITS_S = (0.05, 0.1, 0.2, 0.4)
"""Waits of a subtask for the leader of its group, seconds. Then it commits itself: the leader may have died."""
REQUESTS_AT_ONCE = 16
"""Most requests of one commit to the table's storage at a time."""


class IcebergWriter(FileWriter):
    """Two-phase-commit writer of one subtask of an Iceberg table.

    Staging, pre-commit, abort and recovery work as in file sinks, in the folder `_tidegate` of the table. No file there
    is ever part of the table, so removing staged files cannot remove rows of the table.

    Commit of one transaction. `CommitLog` describes what the table records of it.

    1. If the marker exists, there is nothing to do.

    2. Load the table. Refuse a transaction that a rewind has removed. If the table has the transaction, go to step 6.
    Otherwise check for the marker again. If there is neither, the loaded version does not hold this transaction.

    3. Find the group of the transaction (`CommitGroups`). The subtask with the lowest index that has a record of an
    uncommitted transaction leads it. If another subtask leads, wait for it, then go to step 2. Records only save
    snapshots: without a record, or if the leader is late, a subtask commits its own transaction.

    4. Move the files of the group to their places in the table. If a file is neither staged nor in its place:
    `TidegateError`. Write the markers of earlier transactions whose last record the commit replaces in the table.

    5. Append the files to the table as it was loaded in step 2. The append fails if the branch has changed since; then
    go to step 2. So if several processes commit the same transaction at once, one of them appends. After an unclear
    answer the writer also goes to step 2.

    6. Write the marker.
    """

    def __init__(
        self,
        catalog: IcebergCatalog,
        opened: Catalog,
        table: Table,
        branch: str,
        filesystem: AbstractFileSystem,
        layout: FileLayout,
        ctx: SinkContext,
        cut: FileCut,
        *,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """Create the writer.

        Args:
            opened: the open catalog, which the writer closes.
            table: as `TableSetup.prepare` returned it.
            wait: waits for a time in seconds.
        """
        self._catalog = catalog
        self._opened = opened
        self._name = ".".join(table.name())
        self._table_id = str(table.metadata.table_uuid)
        self._metadata = table.metadata
        self._branch = branch
        self._columns = StoredColumns(table.schema(), f"{catalog.place}, table {self._name}")
        self._partitioner = Partitioner(table.spec(), table.schema())
        self._parquet = IcebergEncoding(self._columns.file_schema, table.properties, file_sort(table.metadata))
        self._groups = CommitGroups(filesystem, layout)
        self._io_properties = dict(table.io.properties)
        self._wait = wait or threading.Event().wait
        super().__init__(filesystem, layout, ctx, self._parquet, cut)

    # ------------------------------------------------------------ staging

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the batch to the running transaction."""
        if batch.num_rows:
            super().write(self._columns.stored(batch))

    def _parts(self, batch: pa.RecordBatch) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
        return self._partitioner.split(batch)

    def _begin_file(self, values: PartitionValues) -> EncodedFile:
        return IcebergFile(
            *self._next_file(), self._columns.schema, self._parquet, values, self._metadata.default_spec_id
        )

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the running transaction. The returned function makes its files durable in the staging folder."""
        stage = super().prepare_commit(checkpoint_id)

        def staged() -> Sequence[Committable]:
            handles = [self._with_targets(handle) for handle in stage()]
            if self._ctx.parallelism > 1:
                for handle in handles:
                    self._groups.record(handle)
            return handles

        return staged

    def _with_targets(self, handle: Committable) -> Committable:
        """Add to the handle where its files will be in the table, and which table it is."""
        made = parse_transaction_id(handle.transaction_id)
        files = [
            {
                **file,
                "target": data_location(
                    self._metadata, target_name(made, n, file["staged"]), file["key"], file["spec_id"]
                ),
            }
            for n, file in enumerate(handle.data["files"])
        ]
        return replace(
            handle,
            data={
                "files": files,
                "of": self._ctx.parallelism,
                "table": self._table_id,
                "location": self._metadata.location.rstrip("/"),
            },
        )

    # ------------------------------------------------------------ commit

    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish transactions, idempotently.

        Raises:
            TidegateError: a transaction is lost (neither committed nor staged), belongs to another lineage, or was
                staged for another table.
            OutageError: the catalog does not answer, or other writers win every time.
        """
        super().commit(committables)
        for handle in committables:
            # On an object store the removal of the staged files has done it.
            if self._local and handle.data["of"] > 1:
                self._groups.forget(parse_transaction_id(handle.transaction_id))

    def _marker(self, handle: Committable) -> str:
        made = parse_transaction_id(handle.transaction_id)
        return self._marker_of(made, made.checkpoint_id)

    def _marker_of(self, made: TransactionId, checkpoint_id: int) -> str:
        return self._layout.marker(f"{made.writer},{checkpoint_id}")

    def _mark(self, made: TransactionId, checkpoint_id: int) -> None:
        marker = self._marker_of(made, checkpoint_id)
        if not self._fs.exists(marker):
            self._write_marker(marker, {"checkpoint_id": checkpoint_id})

    def _commit(self, handle: Committable) -> None:
        made = parse_transaction_id(handle.transaction_id)
        self._refuse_mode(handle)
        problem: Exception | None = None
        attempt: CommitAttempt | None = None
        leader_waits = iter(LEADER_WAITS_S)
        failures = 0
        while failures < COMMIT_ATTEMPTS:
            table = self._load(handle)
            if attempt is not None:
                attempt.clean(table.metadata)
                attempt = None
            self._refuse_rewound(made)
            log = CommitLog(table.metadata, self._branch, made)
            if log.holds(made):
                break
            # Checked after the table was loaded: another process may have committed this and a later transaction.
            if self._is_marked(handle):
                return
            mates = self._mates(handle, log, leader_waits)
            if mates is None:
                continue
            self._make_ready(handle, log)
            attempt = self._append(table, [handle, *mates])
            if attempt.problem is None:
                break
            problem = attempt.problem
            failures += 1
            # Random, but not for security.
            self._wait(random.uniform(0.5, 1) * min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**failures))
        else:
            raise OutageError(
                f"the Iceberg table accepted no snapshot in {COMMIT_ATTEMPTS} attempts",
                where=self._where(made),
                cause=self._catalog.error_text(problem) if problem is not None else "",
                remedy="Check which other processes change the table, and that its catalog answers. The data stays "
                "staged, and the next start repeats the commit",
            )
        if self._local:
            self._sync_metadata(table, made)
        self._mark(made, made.checkpoint_id)

    def _refuse_mode(self, handle: Committable) -> None:
        """Raise if the transaction was staged with another mode than this writer's."""
        if "keys" in handle.data:
            raise SinkConflictError(
                "the transaction was staged with mode='upsert', but the Iceberg sink appends now",
                where=self._where(parse_transaction_id(handle.transaction_id)),
                cause="the mode of the sink was changed while a transaction was not committed",
                remedy="Restore with mode='upsert', let the job commit, then change the mode",
            )

    def _sync_metadata(self, table: Table, made: TransactionId) -> None:
        """Make the files of the commit durable before the marker: pyiceberg does not sync files on a local disk."""
        files = [table.metadata_location]
        for snapshot in CommitLog(table.metadata, self._branch, made).own():
            if str(made) in transactions_of(snapshot):
                manifests = snapshot.manifests(table.io)
                files += [one.manifest_path for one in manifests if one.added_snapshot_id == snapshot.snapshot_id]
                files.append(snapshot.manifest_list)
        paths = {str(self._fs._strip_protocol(file)) for file in files}
        # Another writer's maintenance may have removed a file meanwhile.
        for path in [*paths, *{os.path.dirname(path) for path in paths}]:
            with suppress(FileNotFoundError):
                sync_to_disk(path)

    def _where(self, made: TransactionId) -> str:
        return f"table {self._name}, sink {self._ctx.uid!r}, subtask {self._ctx.subtask}, transaction {made}"

    def _load(self, handle: Committable) -> Table:
        """Return the table as it is now. Raises SinkConflictError if it is not the table that the files are for."""
        table = self._catalog.load(self._opened, self._name)
        self._renew_filesystem(table)
        specs = {file["spec_id"] for file in handle.data["files"]}
        if str(table.metadata.table_uuid) != handle.data["table"]:
            cause = "the table was dropped and created again"
        elif table.location().rstrip("/") != handle.data["location"]:
            cause = "the table was moved to another location"
        elif not specs <= table.specs().keys():
            cause = "the partitioning for which the files were written was removed from the table"
        else:
            return table
        raise SinkConflictError(
            "the transaction was staged for another state of the Iceberg table",
            where=self._where(parse_transaction_id(handle.transaction_id)),
            cause=cause,
            remedy="Restore the table, or start the job fresh; its staged files are below "
            f"{self._layout.staging_of_all}",
        )

    def _renew_filesystem(self, table: Table) -> None:
        """Use the credentials that the catalog has just sent: they are valid for about an hour."""
        if not self._local and dict(table.io.properties) != self._io_properties:
            self._io_properties = dict(table.io.properties)
            self._fs = table_filesystem(table)[0]
            self._packs = MarkerPacks(self._fs, self._layout.committed)
            self._groups = CommitGroups(self._fs, self._layout)

    def _refuse_rewound(self, made: TransactionId) -> None:
        if self._packs.listed().is_rewound(made.checkpoint_id):
            raise SinkConflictError(
                "refused to commit a transaction that a rewind has removed from the table",
                where=self._where(made),
                cause="the job was restored to an earlier snapshot with on_committed_after=rewind",
                remedy="End the process that still runs an older generation of the job",
            )

    def _mates(self, handle: Committable, log: CommitLog, waits: Iterator[float]) -> Sequence[Committable] | None:
        """Return the handles of other subtasks to commit together with this one, with their files in their places.

        None: another subtask leads the group, and was awaited; read the table again.
        """
        if handle.data["of"] == 1:
            return []
        made = parse_transaction_id(handle.transaction_id)
        members = self._groups.members(made)
        waiting = {
            s: path for s, path in members.items() if s != made.subtask and log.last.get(s) != made.checkpoint_id
        }
        if min([made.subtask, *waiting]) < made.subtask and (wait_s := next(waits, None)) is not None:
            self._wait(wait_s)
            return None
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            found = threads.map(lambda path: self._ready_mate(path, handle, log), waiting.values())
            return [mate for mate in found if mate is not None]

    def _ready_mate(self, path: str, handle: Committable, log: CommitLog) -> Committable | None:
        """Return the handle of a record if it can be committed now. If not, its own subtask commits it."""
        mate = self._groups.read(path)
        if mate is None or not self._is_mate(mate, handle, log):
            return None
        try:
            self._make_ready(mate, log)
        except (TidegateError, OSError):
            return None
        return mate

    def _is_mate(self, other: Committable, handle: Committable, log: CommitLog) -> bool:
        """Return whether another subtask's transaction is to be committed together with this one."""
        made, mate = parse_transaction_id(handle.transaction_id), parse_transaction_id(other.transaction_id)
        same = replace(mate, subtask=made.subtask, number=made.number) == made
        specs = {file["spec_id"] for part in (other, handle) for file in part.data["files"]}
        # A manifest has files of one partitioning.
        fits = len(specs) == 1 and other.data["table"] == handle.data["table"]
        return same and fits and not log.holds(mate) and not self._is_marked(other)

    def _make_ready(self, handle: Committable, log: CommitLog) -> None:
        """Move the files to their places, and write the marker that the commit makes necessary."""
        self._publish(handle)
        made = parse_transaction_id(handle.transaction_id)
        last = log.last.get(made.subtask)
        if last is not None and last != made.checkpoint_id:
            self._mark(made, last)

    def _append(self, table: Table, handles: Sequence[Committable]) -> CommitAttempt:
        files = [data_file(file, table.metadata) for handle in handles for file in handle.data["files"]]
        transactions = [parse_transaction_id(handle.transaction_id) for handle in handles]
        return append_files(table, self._branch, files, transactions, handles[0].data["files"][0]["spec_id"])

    def _publish(self, handle: Committable) -> None:
        """Move the files of a transaction to their places in the table, durably."""
        made = parse_transaction_id(handle.transaction_id)
        moves = [
            (self._layout.staged(file["staged"], made.subtask), str(self._fs._strip_protocol(file["target"])))
            for file in handle.data["files"]
        ]
        if not self._local:
            with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
                # `list` raises the first error.
                list(threads.map(lambda move: self._publish_file(move[0], move[1], handle.transaction_id), moves))
            return
        folders = {os.path.dirname(target) for _, target in moves}
        for folder in folders:
            os.makedirs(folder, exist_ok=True)
        for staged, target in moves:
            self._publish_file(staged, target, handle.transaction_id)
        for folder in self._with_parents(folders):
            sync_to_disk(folder)

    def _with_parents(self, folders: set[str]) -> list[str]:
        """Return folders, and their parents up to the table's own folder: each entry must survive a crash."""
        found = set(folders)
        for folder in folders:
            while folder.startswith(f"{self._layout.root}/"):
                found.add(folder)
                folder = os.path.dirname(folder)
        return sorted(found, reverse=True)

    def _remove_staged(self, handle: Committable) -> None:
        super()._remove_staged(handle)
        if handle.data["of"] > 1:
            self._groups.forget(parse_transaction_id(handle.transaction_id))

    def close(self) -> None:
        """Drop the running transaction; pre-committed data stays. Close the catalog."""
        super().close()
        self._opened.close()
