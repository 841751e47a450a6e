"""What must hold of a commit gate (S7.8), told from the log alone: which snapshot came from which is what each
completion names as its parent, not what the runtime takes for a line."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.timelines import Demand, ancestry
from tidegate.connectors.transactions import TransactionId
from tidegate.jobs.records import Decision, Spec


class GateChecker:
    """Follows the verdicts of a job behind a gate.

    Attributes:
        permitted: approved, with all that these came from.
        rejected: with all that came from these; but for those in quarantine, from which jobs go on.
        quarantined: rejected ones, and what waited behind them -> those in front of the oldest one.
        committed: newest id that the log calls committed; 0: none.
    """

    def __init__(self, demand: Demand, specs: Sequence[Spec]) -> None:
        self._demand = demand
        self._specs = specs
        self._completed: dict[int, Decision] = {}
        self._parents: dict[int, int] = {}
        self._by_path: dict[str, int] = {}
        self._begun: set[int] = set()
        self._begun_after = 0
        self._abandoned: set[int] = set()
        self.permitted: set[int] = set()
        self.rejected: set[int] = set()
        self.quarantined: dict[int, set[int]] = {}
        self.committed = 0
        self.newest_approved = 0

    def decided(self, entry: Decision) -> None:
        """An entry has appeared."""
        n = entry.data.get("checkpoint_id", 0)
        match entry.kind:
            case "fence":
                number = entry.data["spec"]
                restore = self._specs[number - 1].restore
                if restore is None and number not in self._begun:
                    self._begun_after = max(self._completed, default=0)
                if restore is not None and restore.checkpoint_id is not None and number not in self._begun:
                    self._abandoned |= set(self._completed) - self._ancestry(restore.checkpoint_id)
                self._begun.add(number)
            case "complete":
                self._completed[n] = entry
                self._by_path[entry.data["path"]] = n
                self._parents[n] = self._by_path.get(entry.data.get("parent") or "", 0)
                tainted = self._ancestry(n) & self.rejected
                self._demand("rejected", not tainted, f"{n} completed, which came from {tainted}")
            case "approve":
                good = n in self._completed and self._completed[n].data["kind"] != "savepoint"
                self._demand("verdicts", good, f"{n} was approved, which is no completed checkpoint")
                tainted = self._ancestry(n) & self.rejected
                self._demand("rejected", not tainted, f"{n} was approved, which came from {tainted}")
                self.permitted |= self._ancestry(n)
                self.newest_approved = n
            case "reject":
                good = n in self._completed and n not in self.permitted
                self._demand("verdicts", good, f"{n} was rejected, which is approved or not complete")
                if entry.data.get("then") == "quarantine":
                    behind = [m for m in self.waiting if n in self._ancestry(m)]
                    same = behind == entry.data["rejected"]
                    self._demand("verdicts", same, f"{entry.data['rejected']} went to quarantine, not {behind}")
                    self.quarantined |= {m: self._ancestry(n) - {n} for m in behind}
                    return
                self.rejected |= {m for m in self._completed if n in self._ancestry(m)}
            case "committed":
                self._demand("verdicts", n in self.permitted, f"{n} is called committed and was not approved")
                self.committed = n
            case "rewind":
                left = self._ancestry(n)
                self.committed = max(left & self._ancestry(self.committed), default=0)
                self.newest_approved = max(left & self.permitted, default=0)

    def _ancestry(self, n: int) -> set[int]:
        """`n` and what it came from."""
        return ancestry(n, self._parents)

    @property
    def approved(self) -> set[int]:
        """Permitted recovery points."""
        return {n for n in self.permitted if self._completed[n].data["kind"] != "savepoint"}

    @property
    def outstanding(self) -> bool:
        """Something is approved and not committed."""
        return self.newest_approved not in self._ancestry(self.committed) | {0}

    @property
    def waiting(self) -> list[int]:
        """Those that need a verdict, oldest first."""
        return [
            n
            for n, entry in sorted(self._completed.items())
            if entry.data["kind"] != "savepoint"
            and n not in self.permitted
            and n not in self.rejected
            and n not in self.quarantined
            and n not in self._abandoned
            and n > self._begun_after
        ]

    def pinned(self) -> set[str]:
        """Folders that nobody may delete: of those that wait, and of what a rejection of the oldest goes back to."""
        waiting = self.waiting
        needed = set(waiting)
        parent = self._parents.get(waiting[0], 0) if waiting else 0
        while parent and self._completed[parent].data["kind"] == "savepoint":
            parent = self._parents.get(parent, 0)
        return {self._completed[n].data["path"] for n in needed | ({parent} if parent else set())}

    def published(self, transaction: str, made: TransactionId) -> None:
        """A transaction became visible."""
        holds = any(self._holds(n, made) for n in self.permitted)
        self._demand("nothing unapproved", holds, f"{transaction} was published without an approval")
        self._demand("quarantine", not self.withheld_by(made), f"{transaction} was published from quarantine")

    def put_away(self, transaction: str, made: TransactionId) -> None:
        """A transaction went to quarantine."""
        self._demand(
            "quarantine", bool(self.withheld_by(made)), f"{transaction} went to quarantine, and nobody said so"
        )

    def withheld_by(self, made: TransactionId) -> set[int]:
        """The checkpoints in quarantine that brought the transaction there; what is in front of them held it not."""
        return {
            n
            for n, front in self.quarantined.items()
            if self._holds(n, made) and not any(self._holds(m, made) for m in front)
        }

    def is_missing(self, made: TransactionId) -> bool:
        """What is committed goes on from the transaction, and shows it not."""
        return bool(self.withheld_by(made) & self._ancestry(self.committed))

    def may_be_staged(self, made: TransactionId) -> bool:
        """It waits for a verdict. What is approved does not: it was to be published."""
        held_by = {n for n in self._completed if self._holds(n, made)}
        return (
            bool(held_by - self.rejected - self._abandoned)
            and not held_by & self.permitted
            and not self.withheld_by(made)
        )

    def _holds(self, n: int, made: TransactionId) -> bool:
        entry = self._completed[n]
        return n >= made.checkpoint_id and (entry.run_id, entry.generation) == (made.run_id, made.generation)
