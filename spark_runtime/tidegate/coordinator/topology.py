"""The part of an ExecutionPlan that the coordinator needs: chains, their inputs, and which of them commit."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.channel.control.protocol import Subtask


@dataclass(frozen=True)
class ChainShape:
    """One chain as the coordinator sees it.

    Attributes:
        chain_id: position in topological order.
        operators: uids, in order.
        upstream: (chain id, all_to_all) of every input.
        is_source: it has no inputs.
        commits: it contains a two-phase-commit sink.
    """

    chain_id: int
    operators: tuple[str, ...]
    upstream: tuple[tuple[int, bool], ...]
    is_source: bool
    commits: bool


@dataclass(frozen=True)
class EmitsAtEnd:
    """An operator that emits results at the end of its input. If a drain caused that end, they are early (S7.5).

    Attributes:
        uid: uid of the operator.
        chain_id: the chain whose end counts as the end of the input: the operator's own chain, or the chain upstream of
            a join's build side.
    """

    uid: str
    chain_id: int


@dataclass(frozen=True)
class Topology:
    """Chains in topological order, each with `parallelism` subtasks.

    Attributes:
        fire_at_end: operators whose results are early after a drain.
    """

    parallelism: int
    chains: tuple[ChainShape, ...]
    fire_at_end: tuple[EmitsAtEnd, ...] = ()

    def subtasks(self) -> tuple[Subtask, ...]:
        """Return all subtasks, chain by chain."""
        return tuple((c.chain_id, i) for c in self.chains for i in range(self.parallelism))

    @property
    def commits(self) -> bool:
        """True if a sink commits in two phases."""
        return any(c.commits for c in self.chains)
