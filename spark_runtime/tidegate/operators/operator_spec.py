"""What the planner and the coordinator ask of an operator in a JobGraph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd, StateBackend
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.state.backend_registry import OUTSIDE_MEMORY

EndOfInput: TypeAlias = Literal["none", "any"] | int
"""Of no input, of whichever one, or of the input of this number."""
KeyedStatePlace: TypeAlias = Literal["none", "backend", "columns"]
"""Where an operator keeps state by key: nowhere, in the back end that `state_backend` names, or in columns of its own
unless that back end keeps state outside memory (S5.2)."""
SideSchemas: TypeAlias = tuple[tuple[str, pa.Schema], ...]
"""(name, schema) of each side output."""


class OperatorSpec(ABC):
    """Frozen description of an operator in a JobGraph: data, and facts that follow from it without I/O.

    A spec does not make its operator: `operator_registry` names what does, and `create_operator` loads it, once for
    each subtask. The defaults below hold for an operator that keeps nothing between two batches.
    """

    keyed_state: ClassVar[KeyedStatePlace] = "none"

    def uses_backend(self, state_backend: StateBackend) -> bool:
        """Whether the operators keep their state in the back end of this name: they share a slot's memory for state
        (S5.2)."""
        return self.keyed_state == "backend" or (self.keyed_state == "columns" and state_backend in OUTSIDE_MEMORY)

    def backend_in_batch(self, state_backend: StateBackend) -> StateBackend:
        """The back end in batch mode, which gives an operator the rows of some keys at a time: columns are then best
        kept in memory, whatever the job's option (S8.1)."""
        return "heap" if self.keyed_state == "columns" else state_backend

    @abstractmethod
    def describe(self) -> str:
        """One line for `explain()`, without secrets."""

    def states(self) -> Sequence[StateShape] | None:
        """The states by name, so that a preflight can compare them (S5.5); None: the spec does not declare them, and
        they are compared when they are restored."""
        return None

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Which input's end makes the operator emit results. When a drain ended that input they are early, and its
        snapshot is resumed from only on request (S7.5). Every spec of this package that declares states overrides it,
        held by a test.

        Args:
            processing_time_on_end: of the job (S7.6).
        """
        return "none"

    def mode_dependence(self) -> str:
        """Why batch mode may give other rows than streaming: the operator goes by the clock, emits results before they
        are final, or depends on the order of arrival (S8.2). The end of the sentence "it depends on the execution mode:
        "; "" where it does not."""
        return ""

    @property
    def groups_by_key(self) -> bool:
        """Its keys may be processed apart, each with its own end of the input: they share no state."""
        return True
