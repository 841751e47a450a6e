"""The commit gate of one run (S7.8). Pure.

It decides which completed checkpoints wait for a verdict, which may be committed, and whether sources must pause.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.channel.control.protocol import Durable, PauseSources
from tidegate.coordinator import events as ev
from tidegate.coordinator.events import Action
from tidegate.jobs.history.verdicts import Verdicts, WithheldRange


@dataclass
class CommitGate:
    """A gate that permits a commit after an approval, not after the completion alone.

    Every method returns the resulting actions. Call order: `up` once, when every subtask runs; `completed`, `approve`
    and `quarantine` at any time.

    Attributes:
        limit: the option `max_uncommitted_checkpoints`.
        line: completed recovery points that a restore can reach, oldest first.
        waiting: checkpoints of `line` that wait for a verdict.
        approved, approved_at: the newest approved checkpoint, and the number of the log entry that approves it.
        committed: the newest committed checkpoint.
        quarantined: checkpoints whose output is never committed, although the job continues from them.
        closing: a completed snapshot ends the job. Approvals from now on are carried out by a later commit without this
            run, because subtasks may have finished.
        at_end: every operator had finished in the snapshot that the run starts from. Nothing is staged any more, so the
            run takes no final snapshot: a verdict on it would decide nothing. Checkpoints that are not approved when
            every subtask runs are left to a later commit, too.
    """

    limit: int
    line: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    rejected: frozenset[int] = frozenset()
    approved: int = 0
    approved_at: int = 0
    committed: int = 0
    closing: bool = False
    at_end: bool = False
    _restored_with: int = 0
    quarantined: frozenset[int] = frozenset()
    _unsent: list[WithheldRange] = field(default_factory=list)
    _is_up: bool = False
    _paused: bool = False

    @classmethod
    def of(cls, verdicts: Verdicts, limit: int, *, commit_only: bool, at_end: bool) -> CommitGate:
        """Create the gate of a run that begins. The restore commits the checkpoints that are approved at this time."""
        return cls(
            limit,
            list(verdicts.line),
            list(verdicts.waiting),
            verdicts.rejected,
            verdicts.approved,
            verdicts.approved_at,
            verdicts.committed,
            commit_only,
            at_end,
            verdicts.approved,
            verdicts.quarantined,
        )

    @property
    def is_full(self) -> bool:
        """True when the limit of waiting checkpoints is reached."""
        return len(self.waiting) >= self.limit

    @property
    def paused(self) -> bool:
        """True when sources have been ordered to pause."""
        return self._paused

    @property
    def pinned(self) -> tuple[int, ...]:
        """Checkpoints that must not be deleted; see `Verdicts.pinned`."""
        if not self.waiting:
            return ()
        before = [n for n in self.line if n < self.waiting[0]]
        return (*before[-1:], *self.waiting)

    @property
    def uncommitted(self) -> tuple[int, ...]:
        """Checkpoints that are completed and not committed, approved or not."""
        return tuple(n for n in self.line if n > self.committed and n not in self.quarantined)

    def up(self) -> list[Action]:
        """Return the actions after every subtask has started, and has committed with its restore what was approved
        before.

        Permits and quarantine orders that came in before are sent now.
        """
        self._is_up = True
        # Before the permit, which permits everything up to its
        # checkpoint: subtasks must already exclude the withheld output.
        actions: list[Action] = [ev.SendQuarantine(withheld) for withheld in self._unsent]
        self._unsent = []
        # The snapshot of the restore may be a savepoint, which is not in the line: take the newest one before it.
        done = max((n for n in self.line if n <= self._restored_with), default=0)
        if done > self.committed:
            self.committed = done
            actions.append(ev.RecordCommitted(done))
        if self.approved > self._restored_with and not self.closing:
            actions.append(ev.SendPermit(self.approved, self.approved_at))
        self.closing = self.closing or self.at_end
        return actions + self._pause_sources()

    def completed(self, checkpoint_id: int, *, last: bool) -> list[Action]:
        """Add a completed recovery point. `last`: every subtask may finish with it."""
        self.line.append(checkpoint_id)
        self.waiting.append(checkpoint_id)
        self.closing = self.closing or last
        return [Durable(checkpoint_id, last), *self._pause_sources()]

    def approve(self, checkpoint_id: int, log_number: int) -> list[Action]:
        """Apply the log entry "commit <= `checkpoint_id`"."""
        if checkpoint_id <= self.approved:
            return []
        self.approved, self.approved_at = checkpoint_id, log_number
        self.waiting = [n for n in self.waiting if n > checkpoint_id]
        actions: list[Action] = []
        # A subtask that has not restored yet commits with the restore, and a finished subtask cannot commit any more.
        if self._is_up and not self.closing:
            actions.append(ev.SendPermit(checkpoint_id, log_number))
        return actions + self._pause_sources()

    def quarantine(self, withheld: WithheldRange) -> list[Action]:
        """Apply the log entry that rejects checkpoints with then=quarantine.

        The `withheld` checkpoints do not wait any more, and are never committed. Subtasks receive this before any later
        permit. If some subtasks do not run yet, it is sent when they do.
        """
        self.waiting = [n for n in self.waiting if n not in withheld.checkpoints]
        self.quarantined |= set(withheld.checkpoints)
        if not self._is_up:
            self._unsent.append(withheld)
            return []
        return [ev.SendQuarantine(withheld), *self._pause_sources()]

    def _pause_sources(self) -> list[Action]:
        if not self._is_up or self.is_full == self._paused:
            return []
        self._paused = self.is_full
        return [PauseSources(self._paused)]
