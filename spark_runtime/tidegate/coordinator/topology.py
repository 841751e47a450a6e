"""The part of an ExecutionPlan that the coordinator decides by: chains, who feeds whom, who commits."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.channel.control.protocol import Subtask


@dataclass(frozen=True)
class ChainShape:
    """One chain as the coordinator sees it.

    Attributes:
        chain_id: position, topological.
        operators: uids, in order.
        upstream: (chain id, all_to_all) of every input.
        is_source: it has no inputs.
        commits: it holds a two-phase-commit sink.
    """

    chain_id: int
    operators: tuple[str, ...]
    upstream: tuple[tuple[int, bool], ...]
    is_source: bool
    commits: bool


@dataclass(frozen=True)
class EmitsAtEnd:
    """An operator that gives results because its input has ended, which are early when a drain ended it (S7.5).

    Attributes:
        uid: of the operator.
        chain_id: whose end it takes for the end of its input: its own chain, or that in front of a join's build side.
    """

    uid: str
    chain_id: int


@dataclass(frozen=True)
class Topology:
    """Chains in topological order, each with `parallelism` subtasks.

    Attributes:
        fire_at_end: operators whose results a drain makes early.
    """

    parallelism: int
    chains: tuple[ChainShape, ...]
    fire_at_end: tuple[EmitsAtEnd, ...] = ()

    def subtasks(self) -> tuple[Subtask, ...]:
        """All subtasks, chain by chain."""
        return tuple((c.chain_id, i) for c in self.chains for i in range(self.parallelism))

    @property
    def commits(self) -> bool:
        """Some sink commits in two phases."""
        return any(c.commits for c in self.chains)
