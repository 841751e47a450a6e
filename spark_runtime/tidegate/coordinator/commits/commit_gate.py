"""The commit gate of one run: which completed checkpoints wait for a verdict, what may be committed, whether sources
have to pause (S7.8). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.channel.control.protocol import Durable, PauseSources
from tidegate.coordinator import events as ev
from tidegate.coordinator.events import Action
from tidegate.jobs.history.verdicts import Verdicts, WithheldRange


@dataclass
class CommitGate:
    """Completion permits nothing here, an approval does; every call returns what follows from it.

    Call order: `up` once, when every subtask runs; `completed`, `approve` and `quarantine` at any time.

    Attributes:
        limit: `max_uncommitted_checkpoints`.
        line: completed recovery points that a restore could reach, oldest first.
        waiting: those of them that wait for a verdict.
        approved, approved_at: what may be committed, and the log entry that says so.
        committed: what is.
        quarantined: checkpoints whose output is never committed, though the job goes on from them.
        closing: the job ends with a snapshot that is complete: what is approved from now on is for whoever commits
            without it, since subtasks may have finished.
        at_end: all had finished in what the run starts from. Nothing is staged any more, so it takes no final snapshot:
            that would wait for a verdict on nothing. What is not approved when every subtask runs is for others, too.
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
        """As a run begins: the restore commits what is approved by then."""
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
        """As many wait as may."""
        return len(self.waiting) >= self.limit

    @property
    def paused(self) -> bool:
        """Sources were told to pause."""
        return self._paused

    @property
    def pinned(self) -> tuple[int, ...]:
        """See `Verdicts.pinned`."""
        if not self.waiting:
            return ()
        before = [n for n in self.line if n < self.waiting[0]]
        return (*before[-1:], *self.waiting)

    @property
    def uncommitted(self) -> tuple[int, ...]:
        """Completed and not committed, whether approved or not."""
        return tuple(n for n in self.line if n > self.committed and n not in self.quarantined)

    def up(self) -> list[Action]:
        """Every subtask runs, and has committed with its restore what was approved before; a permit that could not be
        sent before goes out."""
        self._is_up = True
        actions: list[Action] = [ev.SendQuarantine(withheld) for withheld in self._unsent]
        self._unsent = []
        done = max((n for n in self.line if n <= self._restored_with), default=0)  # itself it may be a savepoint
        if done > self.committed:
            self.committed = done
            actions.append(ev.RecordCommitted(done))
        if self.approved > self._restored_with and not self.closing:
            actions.append(ev.SendPermit(self.approved, self.approved_at))
        self.closing = self.closing or self.at_end
        return actions + self._pause_sources()

    def completed(self, checkpoint_id: int, *, last: bool) -> list[Action]:
        """A recovery point is complete. `last`: every subtask may finish on it."""
        self.line.append(checkpoint_id)
        self.waiting.append(checkpoint_id)
        self.closing = self.closing or last
        return [Durable(checkpoint_id, last), *self._pause_sources()]

    def approve(self, checkpoint_id: int, log_number: int) -> list[Action]:
        """ "commit <= `checkpoint_id`" is in the log."""
        if checkpoint_id <= self.approved:
            return []
        self.approved, self.approved_at = checkpoint_id, log_number
        self.waiting = [n for n in self.waiting if n > checkpoint_id]
        actions: list[Action] = []
        if self._is_up and not self.closing:
            actions.append(ev.SendPermit(checkpoint_id, log_number))
        return actions + self._pause_sources()

    def quarantine(self, withheld: WithheldRange) -> list[Action]:
        """What is `withheld` waits no more, and is never committed: that is in the log. Subtasks hear it before any
        later permit; those that do not all run yet, when they do."""
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
