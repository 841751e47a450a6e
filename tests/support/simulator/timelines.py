"""What must hold when people go back to an older snapshot and sinks take rows back (S9.3), told from the log and the
external systems alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidegate.connectors.transactions import parse_transaction_id
from tidegate.jobs.records import Decision, Spec

Demand = Callable[[str, bool, str], None]
"""(checker, whether it holds, what does not)."""


def ancestry(n: int, parents: Mapping[int, int]) -> set[int]:
    """Snapshot `n` and what it came from; 0 and what is in no log come from nothing."""
    found: set[int] = set()
    while n:
        found.add(n)
        n = parents.get(n, 0)
    return found


class Timelines:
    """Follows which snapshots come from which, and which of them were gone back past.

    Attributes:
        gone: ids that must not be gone on from any more: behind a snapshot to which sinks were taken back.
        abandoned: completed ones that the newest submission does not come from, because it goes back past them.
        back_to: the snapshot that the last submission to name one began with: nothing in front of it is the latest of
            anything.
    """

    def __init__(self, demand: Demand, specs: Sequence[Spec]) -> None:
        self._demand = demand
        self._specs = specs
        self._claimed: set[int] = set()
        self._completed: dict[int, Decision] = {}
        self._parents: dict[int, int] = {}
        self._by_path: dict[str, int] = {}
        self._begun: set[int] = set()
        self._taken: set[str] = set()
        self.gone: set[int] = set()
        self.abandoned: set[int] = set()
        self.back_to = 0

    def decided(self, entry: Decision) -> None:
        """An entry has appeared."""
        n = entry.data.get("checkpoint_id", 0)
        match entry.kind:
            case "fence" if self._specs:
                number = entry.data["spec"]
                restore = self._specs[number - 1].restore
                if restore is not None and restore.checkpoint_id is not None and number not in self._begun:
                    self.abandoned |= set(self._completed) - self.ancestry(restore.checkpoint_id)
                    self.back_to = restore.checkpoint_id
                self._begun.add(number)
            case "claim":
                self._claimed.add(n)
            case "complete":
                self._completed[n] = entry
                self._by_path[entry.data["path"]] = n
                self._parents[n] = self._by_path.get(entry.data.get("parent") or "", 0)
                lost = self.ancestry(n) & self.gone
                self._demand("timelines", not lost, f"{n} completed, which came from {lost}, whose rows are gone")
            case "rewind":
                self._demand("timelines", n in self._completed, f"sinks were taken back to {n}, which never completed")
                self.gone |= {other for other in self._claimed if other > n}

    def ancestry(self, n: int) -> set[int]:
        """`n` and what it came from."""
        return ancestry(n, self._parents)

    @property
    def reachable(self) -> list[Decision]:
        """Completed snapshots of every kind that may be gone back to, oldest first."""
        return [entry for n, entry in sorted(self._completed.items()) if n not in self.unreachable]

    @property
    def unreachable(self) -> set[int]:
        """What no submission but one that asks for it by name could go on from, if it may."""
        return self.gone | self.abandoned

    @property
    def is_settled(self) -> bool:
        """No submission that goes back is still to begin: what it will abandon is not known before."""
        backs = (s for s in self._specs if s.restore is not None and s.restore.checkpoint_id is not None)
        return all(spec.number in self._begun for spec in backs)

    def is_covered(self, entry: Decision) -> bool:
        """What the snapshot holds to be committed is so by its own run's permits, or by whoever goes on from it. Of a
        savepoint behind which its run completed nothing it may have been dropped by a run that went on from before it:
        then a restore fails, loudly."""
        if entry.data["kind"] != "savepoint":
            return True
        later = (e for e in self._completed.values() if e.number > entry.number and e.run_id == entry.run_id)
        return any(e.data["kind"] != "savepoint" for e in later)

    def published(self, transaction: str) -> None:
        """It became visible."""
        self._demand("taken back once", transaction not in self._taken, f"{transaction} came back")

    def taken_back(self, transaction: str) -> None:
        """What had been visible is so no more."""
        decided = parse_transaction_id(transaction).checkpoint_id in self.gone
        self._demand("taken back once", decided, f"{transaction} was taken back, which nobody had decided")
        self._taken.add(transaction)
