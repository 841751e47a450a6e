"""Delete files that no retained checkpoint uses any more (S2.3).

Reachability is computed from durable data only. The log names the completed and the pending checkpoints, and the
`_metadata` of existing checkpoints names the shared files that they use. There is no reference count that could be
wrong.

Why a deleted file is never missed: a checkpoint names only its own files, and files that the newest completed
checkpoint used when it was triggered. If no completed checkpoint uses a file, only checkpoints that are pending at that
time can still name it; checkpoints claimed later cannot. The file is deleted when all these pending checkpoints have
ended, and still no completed one uses it. Pending checkpoints of earlier generations can never complete.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tidegate.errors import SnapshotError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision
from tidegate.jobs.stores.store import Store
from tidegate.log_format import context
from tidegate.snapshot.metadata import read_metadata

logger = logging.getLogger("tidegate.coordinator")

OWNED_KINDS = ("checkpoint", "final")
"""Kinds that the runtime owns. Savepoints use no shared files, and are never deleted."""


def pending_checkpoint_ids(decisions: Sequence[Decision], generation: int) -> frozenset[int]:
    """Return the checkpoint ids that this generation has claimed, and neither completed nor aborted."""
    own = [d for d in decisions if d.generation == generation]
    ended = {d.data["checkpoint_id"] for d in own if d.kind in ("complete", "abort")}
    return frozenset(d.data["checkpoint_id"] for d in own if d.kind == "claim") - ended


def split_deletable(
    names: Iterable[str], used: Collection[str], held: Mapping[str, frozenset[int]], pending: frozenset[int]
) -> tuple[list[str], dict[str, frozenset[int]]]:
    """Return the files that may be deleted, and the files to check again later. Pure.

    Args:
        names: names of all shared files, listed before the rest was read.
        used: names that completed checkpoints use.
        held: result of the previous check: unused file -> ids that were pending when it was first found unused.
        pending: ids that are pending now.

    Returns:
        The names to delete, and the new `held`.
    """
    waiting = {name: held.get(name, pending) & pending for name in names if name not in used}
    return [name for name, ids in waiting.items() if not ids], {name: ids for name, ids in waiting.items() if ids}


class SharedFiles:
    """The shared files of one job under one generation. Safe from several threads; blocks on the store."""

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        generation: int,
        *,
        decisions: Callable[[], Sequence[Decision]],
        required: Callable[[], Collection[str]],
        check: Callable[[], None],
    ) -> None:
        """Create the view of one generation.

        Args:
            decisions: reads the log.
            required: folders of checkpoints that some submission starts from, whether or not a listing shows them.
            check: raises when another generation may own the job (`GenerationLog.check`).
        """
        self._store = store
        self._layout = layout
        self._generation = generation
        self._decisions = decisions
        self._required = required
        self._check = check
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._used: dict[str, frozenset[str]] = {}
        self._deleted: set[str] = set()
        self._inherited: set[str] | None = None
        self._held: dict[str, frozenset[int]] = {}
        self._reported: set[str] = set()

    def deleted(self, folder: str) -> None:
        """Record that the folder of a checkpoint has been deleted."""
        self._deleted.add(folder)

    def sweep(self) -> None:
        """Delete unused files. Call it after folders have been deleted.

        If another thread is already sweeping, that thread sweeps once more, and this call returns.

        Raises:
            FencedError, UnclearAnswerError: another generation may own the job.
            SnapshotError: a retained checkpoint cannot be read; nothing was deleted.
            StoreError: some files may be left.
        """
        self._wanted.set()
        while self._wanted.is_set() and self._lock.acquire(blocking=False):
            try:
                # Cleared before the sweep: a call that arrives during it sets it again, and the loop repeats.
                self._wanted.clear()
                self._sweep()
            finally:
                self._lock.release()

    def sweep_or_report(self) -> None:
        """Run `sweep`, and log an unreadable checkpoint once instead of raising.

        All shared files are kept until that checkpoint is readable again or deleted.
        """
        try:
            self.sweep()
        except SnapshotError as error:
            if str(error) not in self._reported:
                self._reported.add(str(error))
                place = context(job=self._layout.job_id, generation=self._generation)
                logger.warning(
                    "unused shared files are not deleted, because a checkpoint that may use them cannot be read: %s",
                    error,
                    extra=place,
                )

    def _sweep(self) -> None:
        names = self._store.list(self._layout.shared)
        if not names:
            return
        decisions = self._decisions()
        used = self._in_use(decisions)
        gone, self._held = split_deletable(names, used, self._held, pending_checkpoint_ids(decisions, self._generation))
        if gone:
            self._check()  # deletions need the current generation; reading does not
        for name in gone:
            self._store.delete(self._layout.shared_file(name))

    def _in_use(self, decisions: Sequence[Decision]) -> set[str]:
        completed = [d for d in decisions if d.kind == "complete" and d.data["kind"] in OWNED_KINDS]
        inherited = self._inherited
        if inherited is None:
            earlier = {d.data["path"] for d in completed if d.generation < self._generation}
            listed = {f"{self._layout.checkpoints}/{name}" for name in self._store.list(self._layout.checkpoints)}
            # Computed once: an earlier generation can complete nothing any more, and later deletions are in `_deleted`.
            inherited = earlier & (listed | set(self._required()))
        own = {d.data["path"] for d in completed if d.generation >= self._generation}
        needed = (own | inherited) - self._deleted
        # `_metadata` never changes after the completion, so that every checkpoint is read only once.
        self._used = {folder: names for folder, names in self._used.items() if folder in needed}
        for folder in needed - self._used.keys():
            self._used[folder] = read_metadata(self._store, folder).shared_files()
        self._inherited = inherited
        return {name for names in self._used.values() for name in names}
