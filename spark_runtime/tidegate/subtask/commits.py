"""Commits of a subtask after a snapshot has completed or was approved (S7.3, S7.4, S7.8)."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.stores.store import Store
from tidegate.operators.stream_operator import CommitPermit
from tidegate.subtask.chain import OperatorChain
from tidegate.subtask.host import SubtaskHost
from tidegate.subtask.lifecycle import SubtaskLifecycle


class CommitState:
    """Starts commits, and reports to the lifecycle when a subtask that has ended may finish with a snapshot."""

    def __init__(
        self, subtask: tuple[int, int], chain: OperatorChain, lifecycle: SubtaskLifecycle, host: SubtaskHost
    ) -> None:
        self._subtask = subtask
        self._chain = chain
        self._lifecycle = lifecycle
        self._host = host
        self._under_way = 0

    @property
    def busy(self) -> bool:
        """True while a commit is running."""
        return self._under_way > 0

    def permitted(self, permit: CommitPermit, *, report: bool) -> None:
        """Commit the transactions that `permit` covers; then the subtask may finish with that snapshot.

        `report`: report to the coordinator even if there is nothing to commit here.
        """
        work = self._chain.commits(permit)
        if not work and not report:
            self._lifecycle.committed(permit.checkpoint_id)
            return
        self._under_way += 1

        def done() -> None:
            # No lock: the host calls this on the loop's thread.
            self._under_way -= 1
            self._lifecycle.committed(permit.checkpoint_id)

        self._host.commit(self._subtask, permit.checkpoint_id, work, done)

    def quarantine(self, withheld: WithheldRange, folder: Callable[[], tuple[Store, str]]) -> None:
        """Never commit `withheld` output. It is moved away before the subtask may finish (S7.8)."""
        work = self._chain.quarantines(withheld, folder) if self._lifecycle.phase != "finished" else []
        if not work:
            return
        self._under_way += 1

        def done() -> None:
            self._under_way -= 1

        self._host.commit(self._subtask, 0, work, done)  # checkpoint 0: the move commits no checkpoint

    def durable(self, checkpoint_id: int, *, last: bool) -> None:
        """Process the completion of snapshot `checkpoint_id` without a permit.

        A subtask that has ended finishes with the snapshot if the job ends with it, or if nothing waits for a permit
        here. Output that waits for a permit must stay in later snapshots.
        """
        if last or not self._chain.awaits_permit(checkpoint_id):
            self._lifecycle.committed(checkpoint_id)
