"""Rewind of a Delta table that a sink has upserted: the files of an earlier version become the table's again (S9.3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.connectors.delta.data_files import statistics
from tidegate.connectors.delta.delta_log import REWIND, TRANSACTION, TRANSACTIONS
from tidegate.connectors.delta.delta_rewind import APPLICATION, DeltaRewind, Made, RewindPlan, own_versions
from tidegate.connectors.delta.log.log_files import LogEntry, modified_ms
from tidegate.connectors.delta.log.table_state import DataFile, TableState, state_of
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

REQUESTS_AT_ONCE = 16


class DeltaRestore(DeltaRewind):
    """Upserts and appends of one sink, in one job and lineage, between two checkpoints.

    An upsert writes rows of others again, so its files cannot simply be removed. Instead, the table gets the files of
    its version before the first of these commits. This removes everything that was written since, so it is refused if
    another program has changed rows since.

    Zombies and repeated rewinds are handled as by `DeltaRewind`.
    """

    def _plan(self, state: TableState) -> RewindPlan:
        is_removed = self._removal(state)
        own = own_versions(state, f"{APPLICATION}{self._sink}")
        committed = {made for made in self._committed(own) if is_removed(made)}
        found = {*committed, *self._in_place(is_removed)}
        newest = max((made[1] for made in found), default=None)
        if newest is None:
            return RewindPlan((), None, {})
        applications = self._applications(found, own, newest)
        if not committed:
            return RewindPlan((), newest, applications)
        self._check_append_only(state)
        before = self._files_of(self._version_before(state, committed, is_removed))
        now = {file.path: file for file in state.data_files()}
        restored = [file for path, file in before.items() if path not in now]
        self._check_files(restored)
        removed = [file for path, file in now.items() if path not in before]
        return RewindPlan(removed, newest, applications, restored, state.metadata.schema)

    def _version_before(
        self, state: TableState, committed: Collection[Made], is_removed: Callable[[Made | None], bool]
    ) -> int:
        """Return the version before the first of these commits.

        Raises:
            SinkConflictError: other changes are among them, or the log no longer shows all of them.
        """
        missing = set(committed)
        for version in range(state.version, 0, -1):
            entry = self._files.entry(version)
            if entry is None:
                break
            made = self._made_by(entry)
            if made is None and (what := _change(entry)) is not None:
                raise self._refused(f"version {version} of the table, of another program, has changed {what}")
            # An earlier rewind may have removed the output of the checkpoint already.
            kept = [one for one in made or () if not is_removed(one) and not self._is_rewound(state, one)]
            if kept:
                subtask, checkpoint = min(kept)
                raise self._refused(
                    f"version {version}, of subtask {subtask} for checkpoint {checkpoint}, was committed in between"
                )
            missing -= set(made or ())
            if not missing:
                return version - 1
        raise self._refused(
            f"the log entries of {len(missing)} transactions are cleaned up, so that the version before is not known"
        )

    def _is_rewound(self, state: TableState, made: Made) -> bool:
        return any(after < made[1] <= newest for after, newest in self._rewound(state))

    def _made_by(self, entry: LogEntry) -> set[Made] | None:
        """Return the transactions of this sink in an entry; empty: a rewind of it; None: another program made it."""
        for _, body in entry.actions(("commitInfo",)):
            if str(body.get(REWIND) or "").startswith(self._sink):
                return set()
            texts = str(body.get(TRANSACTIONS) or body.get(TRANSACTION) or "").split()
            made = {one for one in map(self._transaction, texts) if one is not None}
            return made or None
        return None

    def _files_of(self, version: int) -> dict[str, DataFile]:
        """Return the files of a version by path."""
        try:
            return {file.path: file for file in state_of(self._files, version).data_files()}
        except PipelineError as e:
            raise self._refused(f"version {version} can no longer be read: {e}") from e

    def _check_files(self, files: Sequence[DataFile]) -> None:
        """Check that files which the table does not have now can be added to it again."""
        vectors = [file.path for file in files if file.vector is not None]
        if vectors:
            raise self._refused(f"{len(vectors)} files had deletion vectors, the first {vectors[0]}")

        def is_missing(file: DataFile) -> bool:
            filesystem, place = self._files.locate(file.path)
            return not filesystem.exists(place)

        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            missing = [file.path for file, missed in zip(files, threads.map(is_missing, files), strict=True) if missed]
        if missing:
            raise self._refused(f"VACUUM has deleted {len(missing)} files of the version, the first {missing[0]}")

    def _restored(self, plan: RewindPlan) -> Sequence[AddAction]:
        # delta-rs has an operation for it, but keeps the interpreter's lock while it reads and writes the log.
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            return list(threads.map(lambda file: self._added(file, plan.columns), plan.restored))

    def _added(self, file: DataFile, columns: pa.Schema) -> AddAction:
        from deltalake.transaction import AddAction

        filesystem, place = self._files.locate(file.path)
        with filesystem.open(place, "rb") as content:
            # The log as it was read has no statistics, so they are made again from the footer.
            stats = statistics(content, columns)
        return AddAction(
            path=file.path,
            size=file.size_bytes,
            partition_values=dict(file.partition),
            modification_time=modified_ms(filesystem.info(place)),
            data_change=True,
            stats=stats,
        )


def _change(entry: LogEntry) -> str | None:
    """Return what an entry changes; None: neither rows nor the table's metadata, such as a compaction."""
    for kind, body in entry.actions(("metaData", "protocol", "add", "remove", "cdc")):
        if kind in ("metaData", "protocol"):
            return "the metadata of the table"
        if kind == "cdc" or _changes_rows(body):
            return "rows"
    return None


def _changes_rows(body: Mapping[str, object]) -> bool:
    return bool(body.get("dataChange", True))
