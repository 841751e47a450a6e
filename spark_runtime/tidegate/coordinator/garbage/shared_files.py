"""Deleting files that no retained checkpoint uses any more (S2.3).

Reachability is found from what is durable: the log says which checkpoints have completed and which are on their way,
the `_metadata` of those that are there which shared files they use. Nothing is counted, so that no count can be wrong.

Why a file that is deleted can never be missed: a checkpoint names files of its own, or files that the newest completed
checkpoint had when it was triggered. So a file that no completed checkpoint uses may still be named by those that were
on their way when that was found, and by none that is claimed later: the file goes when all of the former have ended,
and still nobody uses it. What earlier generations had on their way can never complete.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tidegate.errors import SnapshotError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision
from tidegate.jobs.stores.store import Store
from tidegate.snapshot.metadata import read_metadata

OWNED_KINDS = ("checkpoint", "final")
"""Kinds that the runtime owns; savepoints use no shared files, and are never deleted."""


def pending_checkpoint_ids(decisions: Sequence[Decision], generation: int) -> frozenset[int]:
    """Ids that this generation has claimed, and neither completed nor aborted."""
    own = [d for d in decisions if d.generation == generation]
    ended = {d.data["checkpoint_id"] for d in own if d.kind in ("complete", "abort")}
    return frozenset(d.data["checkpoint_id"] for d in own if d.kind == "claim") - ended


def split_deletable(
    names: Iterable[str], used: Collection[str], held: Mapping[str, frozenset[int]], pending: frozenset[int]
) -> tuple[list[str], dict[str, frozenset[int]]]:
    """Which of the files may go, and which are to be judged again. Pure.

    Args:
        names: of all shared files, listed before the rest was read.
        used: by completed checkpoints.
        held: of earlier judgements: unused file -> the ids that were on their way when it was first found unused.
        pending: ids that are on their way.

    Returns:
        Names, and the new `held`.
    """
    waiting = {name: held.get(name, pending) & pending for name in names if name not in used}
    return [name for name, ids in waiting.items() if not ids], {name: ids for name, ids in waiting.items() if ids}


class SharedFiles:
    """The shared files of one job under one reign. Safe from several threads; blocks on the store."""

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
        """Args: decisions: the log. required: folders of checkpoints that some submission starts from, whether or not
        a listing shows them. check: raises when the reign is over (`Reign.check`)."""
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
        self._told: set[str] = set()

    def deleted(self, folder: str) -> None:
        """The folder of a checkpoint is gone."""
        self._deleted.add(folder)

    def sweep(self) -> None:
        """Delete what nobody uses. To be called after folders have been deleted; while a sweep is under way on another
        thread that one begins once more.

        Raises:
            FencedError, UnclearAnswerError: the reign is over.
            SnapshotError: a retained checkpoint cannot be read; nothing was deleted.
            StoreError: not everything may have been deleted.
        """
        self._wanted.set()
        while self._wanted.is_set() and self._lock.acquire(blocking=False):
            try:
                self._wanted.clear()
                self._sweep()
            finally:
                self._lock.release()

    def sweep_or_report(self) -> None:
        """As `sweep`, but a retained checkpoint that cannot be read is told once, not raised: until somebody puts it
        back, or it goes itself, all files stay."""
        try:
            self.sweep()
        except SnapshotError as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                print(f"tidegate: shared files stay, since a checkpoint cannot be read: {error}", flush=True)

    def _sweep(self) -> None:
        names = self._store.list(self._layout.shared)
        if not names:
            return
        decisions = self._decisions()
        used = self._in_use(decisions)
        gone, self._held = split_deletable(names, used, self._held, pending_checkpoint_ids(decisions, self._generation))
        if gone:
            self._check()
        for name in gone:
            self._store.delete(self._layout.shared_file(name))

    def _in_use(self, decisions: Sequence[Decision]) -> set[str]:
        completed = [d for d in decisions if d.kind == "complete" and d.data["kind"] in OWNED_KINDS]
        inherited = self._inherited
        if inherited is None:
            earlier = {d.data["path"] for d in completed if d.generation < self._generation}
            listed = {f"{self._layout.checkpoints}/{name}" for name in self._store.list(self._layout.checkpoints)}
            inherited = earlier & (listed | set(self._required()))
        own = {d.data["path"] for d in completed if d.generation >= self._generation}
        needed = (own | inherited) - self._deleted
        self._used = {folder: names for folder, names in self._used.items() if folder in needed}
        for folder in needed - self._used.keys():
            self._used[folder] = read_metadata(self._store, folder).shared_files()
        self._inherited = inherited
        return {name for names in self._used.values() for name in names}
