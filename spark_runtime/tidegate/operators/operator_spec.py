"""OperatorSpec: the description of an operator in a JobGraph, as the planner and the coordinator read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd, StateBackend
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.state.backend_registry import OUTSIDE_MEMORY

EndOfInput: TypeAlias = Literal["none", "any"] | int
"""The input whose end makes an operator emit results: none, any input, or the input of this number."""
KeyedStatePlace: TypeAlias = Literal["none", "backend", "columns"]
"""Where an operator keeps state by key. "none": it has none. "backend": in the back end that `state_backend` names.
"columns": in columns in memory, unless that back end keeps state outside memory (S5.2)."""
ChangeInputs: TypeAlias = Literal["all", "first", "none"]
"""Inputs from which an operator takes change rows (`tidegate.change_rows`)."""
SideSchemas: TypeAlias = tuple[tuple[str, pa.Schema], ...]
"""(name, schema) of each side output."""


class OperatorSpec(ABC):
    """Frozen description of an operator in a JobGraph: data, and facts that follow from it without I/O.

    A spec does not create its operator: `operator_registry` names the class, and `create_operator` loads it once for
    each subtask. The defaults below fit an operator that keeps nothing between two batches.
    """

    keyed_state: ClassVar[KeyedStatePlace] = "none"
    change_inputs: ClassVar[ChangeInputs] = "all"
    """Inputs whose rows may be change rows. From others each of them would count as a new row, which is wrong."""

    def uses_backend(self, state_backend: StateBackend) -> bool:
        """Return whether the operator keeps its state in the back end of this name. Such operators share a slot's
        memory for state (S5.2)."""
        return self.keyed_state == "backend" or (self.keyed_state == "columns" and state_backend in OUTSIDE_MEMORY)

    def backend_in_batch(self, state_backend: StateBackend) -> StateBackend:
        """Return the back end for batch mode. Batch mode passes an operator all rows of a few keys at a time, so
        columns are kept in memory whatever the job's option (S8.1)."""
        return "heap" if self.keyed_state == "columns" else state_backend

    @abstractmethod
    def describe(self) -> str:
        """Return one line for `explain()`, without secrets."""

    def states(self) -> Sequence[StateShape] | None:
        """Return the states by name, so that a preflight can compare them (S5.5). None: the spec does not declare them,
        and they are compared during the restore."""
        return None

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return the input whose end makes the operator emit results.

        If a drain ended that input, these results are early, and the job resumes from the drain's snapshot only on
        request (S7.5). Every spec of this package that declares states overrides this method; a test checks it.

        Args:
            processing_time_on_end: option of the job (S7.6).
        """
        return "none"

    def mode_dependence(self) -> str:
        """Return why batch mode may emit other rows than streaming, or "".

        Reasons are: the operator uses the clock, emits results before they are final, or depends on the order of
        arrival (S8.2). The text completes the sentence "it depends on the execution mode: ".
        """
        return ""

    @property
    def part_of(self) -> str:
        """Return the uid under which users know the operator, if the planner divided it into several; else ""."""
        return ""

    @property
    def groups_by_key(self) -> bool:
        """Return whether keys share no state, so that each can be processed alone, with its own end of the input."""
        return True
