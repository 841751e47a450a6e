"""Rewind of a Delta table that a sink has upserted: the files of an earlier version become the table's again (S9.3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tidegate.connectors.delta.delta_log import REWIND, TRANSACTION, TRANSACTIONS
from tidegate.connectors.delta.delta_rewind import APPLICATION, DeltaRewind, Made, RewindPlan, own_versions
from tidegate.connectors.delta.log.log_files import LogEntry
from tidegate.connectors.delta.log.table_state import TableState, state_of
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    from deltalake import DeltaTable

REQUESTS_AT_ONCE = 16


class DeltaRestore(DeltaRewind):
    """Upserts and appends of one sink, in one job and lineage, between two checkpoints.

    An upsert writes rows of others again, so its files cannot simply be removed. Instead, the table gets the files that
    it had before the first of these commits. This removes everything that was written since, so it is refused if
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
        restored = None
        if committed:
            self._check_append_only(state)
            restored = self._version_before(state, committed, is_removed)
            self._check_files(state, restored)
        return RewindPlan((), newest, self._applications(found, own, newest), restored)

    def _append(self, table: DeltaTable, plan: RewindPlan) -> str | None:
        if plan.restored is None:
            return super()._append(table, plan)
        note = {REWIND: f"{self._sink}{self._after} {plan.newest}"}
        return self._log.restore(table, plan.restored, plan.applications, note)

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

    def _check_files(self, state: TableState, version: int) -> None:
        """Check that the files of a version exist, as far as the table does not have them now."""
        try:
            before = state_of(self._files, version)
        except PipelineError as e:
            raise self._refused(f"version {version} can no longer be read: {e}") from e
        now = {file.path for file in state.data_files()}
        gone = [file.path for file in before.data_files() if file.path not in now]

        def is_missing(path: str) -> bool:
            filesystem, place = self._files.locate(path)
            return not filesystem.exists(place)

        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            missing = [path for path, missed in zip(gone, threads.map(is_missing, gone), strict=True) if missed]
        if missing:
            raise self._refused(f"VACUUM has deleted {len(missing)} files of version {version}, the first {missing[0]}")


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
