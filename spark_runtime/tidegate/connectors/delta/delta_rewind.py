"""Rewind of a Delta table: one log entry removes the files that a sink has committed since a checkpoint (S9.3)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.clock import utc_now
from tidegate.connectors.delta.delta_log import REWIND, TRANSACTION, UPSERTED, DeltaLog
from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.connectors.delta.log.table_state import DataFile, TableState, state_of
from tidegate.connectors.files.sink.file_rewind import FileRewind
from tidegate.connectors.files.sink.marker_packs import MarkerPacks
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.storage import list_folder
from tidegate.connectors.transactions import SinkContext, parse_transaction_id
from tidegate.errors import OutageError, SinkConflictError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

REWIND_ATTEMPTS = 20
"""Attempts to append the entry; each reads the log first, and fails if any other writer wins."""
APPLICATION = "tidegate:"
"""Begin of the application id of a sink's subtask."""
REWOUND = "tidegate-rewound:"
"""Begin of the application id of a rewind to a checkpoint. Its version is the newest checkpoint that it removed."""

Made = tuple[int, int]
"""Subtask and checkpoint of a transaction."""


@dataclass(frozen=True)
class RewindPlan:
    """The entry of a rewind, for one version of the table.

    Attributes:
        files: the files to remove.
        newest: newest checkpoint that the rewind removes; None: it removes none, so there is no entry.
        applications: application id -> version that the entry sets.
    """

    files: Sequence[DataFile]
    newest: int | None
    applications: Mapping[str, int]
    restored: Sequence[DataFile] = ()
    """Files that the table gets again."""
    columns: pa.Schema | None = None
    """Columns of the table, if there are files to restore."""


class DeltaRewind:
    """Commits of one sink, in one job and lineage, between snapshot `after` and checkpoint `before`, both excluded.

    Their files are found in the table by name. The rewind removes whole files, and none of another writer. So it is
    refused if another program has rewritten one of the files: rows of the sink are then in other files.

    The entry sets the version of each subtask's application, unchanged. So the append of a zombie that has read the log
    before fails, and when it reads the log again, it finds the record that its transaction is rewound. The entry also
    records the rewind itself, so a repeated rewind knows that files are missing because it has removed them.
    """

    def __init__(
        self,
        log: DeltaLog,
        files: LogFiles,
        filesystem: AbstractFileSystem,
        layout: FileLayout,
        ctx: SinkContext,
        after: int,
        before: int,
    ) -> None:
        self._log = log
        self._files = files
        self._fs = filesystem
        self._layout = layout
        self._ctx = ctx
        self._after = after
        self._before = before
        self._packs = MarkerPacks(filesystem, layout.committed)
        self._published = FileRewind(filesystem, layout, ctx, after, before)
        self._staging: set[int] = set()

    def check(self) -> None:
        """Check that the rewind is possible. Changes nothing.

        Raises:
            SinkConflictError: another program has rewritten files of the sink, the table is append-only, or the log no
                longer shows what was committed.
        """
        # Zombies may commit what is staged now, also after the files have left the staging folder.
        names = [path.rsplit("/", 1)[-1] for path in list_folder(self._fs, self._layout.staging_of_all)[1]]
        self._staging = {int(name) for name in names if name.isdecimal()}
        table = self._log.opened()
        if table is not None:
            self._plan(state_of(self._files, table.version()))

    def take_back(self) -> None:
        """Remove the files from the table, then the commit markers. Idempotent.

        Raises:
            SinkConflictError: as `check`.
            OutageError: the table accepts no entry.
        """
        problem: str | None = None
        for _ in range(REWIND_ATTEMPTS):
            table = self._log.opened()
            plan = None if table is None else self._plan(state_of(self._files, table.version()))
            if table is None or plan is None or plan.newest is None:
                break
            # Before the removal: a zombie that reads the log after it finds this record.
            self._packs.rewind(self._after, plan.newest + 1)
            problem = self._append(table, plan)
            if problem is None:
                break
        else:
            raise OutageError(
                f"the Delta table accepted no rewind in {REWIND_ATTEMPTS} attempts",
                where=self._where,
                cause=problem or "",
                remedy="Check which other processes write to the table",
            )
        self._published.remove_markers(self._published.markers())

    def _append(self, table: DeltaTable, plan: RewindPlan) -> str | None:
        from deltalake.transaction import RemoveAction

        now_ms = int(utc_now().timestamp() * 1000)  # VACUUM counts the age of removed files from it
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, True, now_ms, file.size_bytes, dict(file.partition)) for file in plan.files
        ]
        actions += self._restored(plan)
        note = {REWIND: f"{self._sink}{self._after} {plan.newest}"}
        return self._log.change(table, actions, plan.applications, note)

    def _restored(self, plan: RewindPlan) -> Sequence[AddAction]:
        """Return the actions that add files again."""
        assert not plan.restored, "a rewind of appends only removes files"
        return ()

    @property
    def _sink(self) -> str:
        """Job, lineage and uid, as they begin the id of each application of the sink."""
        return self._layout.markers_begin

    @property
    def _where(self) -> str:
        return f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, {self._files.url}"

    def _rewound(self, state: TableState) -> list[Made]:
        """Return for each rewind the checkpoint that it kept, and the newest that it removed."""
        return [(after, newest) for after, newest in own_versions(state, f"{REWOUND}{self._sink}").items()]

    def _removal(self, state: TableState) -> Callable[[Made | None], bool]:
        """Return whether the rewind removes a transaction: an earlier one may have done it."""
        rewound = self._rewound(state)

        def is_removed(made: Made | None) -> bool:
            if made is None or not self._after < made[1] < self._before:
                return False
            return not any(after < made[1] <= newest for after, newest in rewound)

        return is_removed

    def _plan(self, state: TableState) -> RewindPlan:
        is_removed = self._removal(state)
        upserted = state.transactions.get(f"{UPSERTED}{self._sink}")
        if upserted is not None and is_removed((0, upserted)):
            raise self._refused(
                "the sink has replaced rows of other files since, with mode='upsert'",
                "Set mode='upsert' with the same key again for this restore",
            )
        active: dict[Made, list[DataFile]] = defaultdict(list)
        for file in state.data_files():
            made = self._layout.published_by(file.path.rsplit("/", 1)[-1])
            if made is not None and is_removed(made):
                active[made].append(file)
        own = own_versions(state, f"{APPLICATION}{self._sink}")
        committed = {made: n for made, n in self._committed(own).items() if is_removed(made)}
        self._check_all(state, committed, active)
        found = {*committed, *active, *self._in_place(is_removed)}
        newest = max((made[1] for made in found), default=None)
        if newest is None:
            return RewindPlan((), None, {})
        files = [file for files in active.values() for file in files]
        return RewindPlan(files, newest, self._applications(found, own, newest))

    def _in_place(self, is_removed: Callable[[Made | None], bool]) -> set[Made]:
        """Return the removed transactions whose files are in their place, perhaps without an entry in the log."""
        names = (self._layout.published_by(path.rsplit("/", 1)[-1]) for path in self._published.files())
        return {made for made in names if made is not None and is_removed(made)}

    def _applications(self, found: Collection[Made], own: Mapping[int, int], newest: int) -> dict[str, int]:
        # A subtask that has committed nothing gets a version, too: its zombie may be about to append.
        subtasks = {made[0] for made in found} | own.keys() | self._staging
        applications = {f"{APPLICATION}{self._sink}{n}": own.get(n, newest) for n in sorted(subtasks)}
        return {**applications, f"{REWOUND}{self._sink}{self._after}": newest}

    def _committed(self, own: Mapping[int, int]) -> dict[Made, int | None]:
        """Return all committed transactions that are known, with their number of files; None: it is not known.

        Each has a marker, packed or not, except the last one of a subtask that died before it wrote the marker.
        """
        found: dict[Made, int | None] = dict.fromkeys(own.items())
        for row in self._packs.between(self._after, self._before, rewound=True).to_pylist():
            found[row["subtask"], row["checkpoint_id"]] = row["files"] or None
        for marker in self._published.markers():
            made = self._layout.marked_by(marker.rsplit("/", 1)[-1])
            files = json.loads(self._fs.cat_file(marker)).get("files")
            if made is not None:
                found[made] = found.get(made) or (len(files) if files else None)
        return found

    def _check_all(
        self, state: TableState, committed: Mapping[Made, int | None], active: Mapping[Made, Sequence[DataFile]]
    ) -> None:
        """Check that the table still has all files that were committed."""
        if not committed and not active:
            return
        self._check_append_only(state)
        counts = {**committed, **self._logged(state, {made for made, n in committed.items() if n is None})}
        gone = [made for made, count in counts.items() if count != len(active.get(made, ()))]
        if gone:
            subtask, checkpoint = min(gone)
            raise self._refused(
                f"the table no longer has all files of {len(gone)} transactions, the first of subtask {subtask} for "
                f"checkpoint {checkpoint}: another program has rewritten or deleted them"
            )
        vectors = [file.path for files in active.values() for file in files if file.vector is not None]
        if vectors:
            raise self._refused(f"another program has deleted rows of {len(vectors)} files, the first {vectors[0]}")

    def _check_append_only(self, state: TableState) -> None:
        if state.metadata.is_append_only:
            raise self._refused("the table is append-only (delta.appendOnly), so no row of it may be removed")

    def _logged(self, state: TableState, unknown: set[Made]) -> dict[Made, int]:
        """Return the number of files of transactions, by their log entries; the newest entries are read first."""
        found: dict[Made, int] = {}
        for version in range(state.version, -1, -1):
            if found.keys() == unknown:
                break
            entry = self._files.entry(version)
            if entry is None:
                break
            made, files = None, 0
            for kind, body in entry.actions(("commitInfo", "add")):
                if kind == "add":
                    files += 1
                else:
                    made = self._transaction(body.get(TRANSACTION))
            if made in unknown:
                found[made] = files
        if missing := unknown - found.keys():
            raise self._refused(
                f"the log entries of {len(missing)} transactions are cleaned up, so that their files are not known"
            )
        return found

    def _transaction(self, text: object) -> Made | None:
        with suppress(SinkConflictError):
            made = parse_transaction_id(str(text))
            if made.writer.startswith(self._sink):
                return made.subtask, made.checkpoint_id
        return None

    def _refused(
        self,
        cause: str,
        remedy: str = "Restore with on_committed_after=accept_duplicates, and remove duplicate rows yourself",
    ) -> SinkConflictError:
        return SinkConflictError(
            f"the Delta sink cannot rewind to checkpoint {self._after}", where=self._where, cause=cause, remedy=remedy
        )


def own_versions(state: TableState, begin: str) -> dict[int, int]:
    """Return subtask -> checkpoint of its last commit, for the applications whose ids begin so."""
    found = {name[len(begin) :]: n for name, n in state.transactions.items() if name.startswith(begin)}
    return {int(subtask): n for subtask, n in found.items() if subtask.isdecimal()}
