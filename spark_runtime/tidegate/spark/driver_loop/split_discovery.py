"""Threads of the driver on which the enumerators of a run search for splits (S4.3)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tidegate.coordinator.enumeration import SearchFailed, SplitsDiscovered
from tidegate.coordinator.job_run import RunFailed
from tidegate.coordinator.split_search import SplitSearch
from tidegate.subtask.failure_codes import failure_code

Work = Callable[[], None]


class SplitDiscovery:
    """One thread for each source. They are daemons: a store that does not answer must not keep the driver alive."""

    def __init__(
        self,
        searches: Mapping[str, SplitSearch],
        on_outcome: Callable[[SplitsDiscovered | SearchFailed | RunFailed], None],
    ) -> None:
        """Args: on_outcome: called on these threads with the outcome of each search."""
        self._searches = searches
        self._on_outcome = on_outcome
        self._work: dict[str, queue.SimpleQueue[Work | None]] = {uid: queue.SimpleQueue() for uid in searches}
        for uid, search in searches.items():
            args = (self._work[uid], search)
            threading.Thread(target=_work_off, args=args, name=f"splits-{uid}", daemon=True).start()

    def search(self, uid: str) -> None:
        """Search once for splits of a source. `on_outcome` follows."""
        self._work[uid].put(lambda: self._on_outcome(self._outcome(uid)))

    def completed(self, checkpoint_id: int, states: Mapping[str, Any]) -> None:
        """Report a completed checkpoint to the enumerators. Args: states: source uid -> its state in the checkpoint."""
        for uid, state in states.items():
            self._work[uid].put(partial(self._searches[uid].completed, checkpoint_id, state))

    def close(self) -> None:
        """Close the enumerators after their work, without a wait for it."""
        for work in self._work.values():
            work.put(None)

    def _outcome(self, uid: str) -> SplitsDiscovered | SearchFailed | RunFailed:
        try:
            return self._searches[uid].search()
        except BaseException as error:  # also SystemExit of user code, which would end only this thread
            what = f"source {uid!r} could not discover its splits: {type(error).__name__}: {error}"
            return RunFailed(what, operator=uid, code=failure_code(error))


def _work_off(works: queue.SimpleQueue[Work | None], search: SplitSearch) -> None:
    while (work := works.get()) is not None:
        work()
    search.close()
