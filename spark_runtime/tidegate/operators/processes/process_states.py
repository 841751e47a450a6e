"""The states of a subtask for a process of the user's own: operator state, and raw state that it writes itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tidegate.errors import SnapshotError
from tidegate.operators.functions.context import ProcessBase, SubtaskState
from tidegate.operators.functions.process_inputs import ProcessInput
from tidegate.operators.stream_operator import OperatorContext
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.operator_descriptor import OperatorDescriptor
from tidegate.state.operator_state import OperatorStates
from tidegate.state.raw_state import RawDescriptor, RawInput, RawOutput, raw_inputs
from tidegate.state.state_layout import form_of


class OwnStates:
    """Of one subtask. Where the process has a broadcast input, its broadcast states are read-only but while that is
    processed.

    Attributes:
        operator: the operator states.
        key_groups: of the subtask.
    """

    def __init__(
        self, states: Sequence[SubtaskState], inputs: Sequence[ProcessInput], process: ProcessBase, ctx: OperatorContext
    ) -> None:
        descriptors = [state for state in states if isinstance(state, OperatorDescriptor)]
        self._raw = {state.name: state for state in states if isinstance(state, RawDescriptor)}
        self._process = process
        self._uid = ctx.uid
        self._inputs = [given.name for given in inputs]
        self.key_groups = key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        self.operator = OperatorStates(ctx.uid, descriptors, ctx.subtask, ctx.parallelism)
        self.operator.allow_broadcast_writes("broadcast" not in self._inputs)

    @property
    def names(self) -> frozenset[str]:
        """Which parts of a snapshot are theirs."""
        return self.operator.names | frozenset(self._raw)

    @contextmanager
    def processing(self, input_index: int) -> Iterator[None]:
        """While input `input_index` is processed."""
        if self._inputs[input_index] != "broadcast":
            yield
            return
        self.operator.allow_broadcast_writes(True)
        try:
            yield
        finally:
            self.operator.allow_broadcast_writes(False)

    def freeze(self) -> AsyncSnapshot:
        """All of them as they are now; the process writes its raw states at once."""
        raw: list[StatePart] = []
        for descriptor in self._raw.values():
            out = RawOutput(descriptor, self.key_groups)
            self._process.write_raw(descriptor.name, out)
            raw.append(out.part())
        write = self.operator.freeze()
        return lambda: [*write(), *raw]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back the parts whose `names` are theirs; the process reads its raw states.

        Raises:
            SnapshotError: a state is of another kind, or has columns that cannot become those that are declared.
        """
        self.operator.restore([part for part in parts if part.name in self.operator.names])
        pieces: dict[str, list[RawInput]] = {name: [] for name in self._raw}
        for part in parts:
            descriptor = self._raw.get(part.name)
            if descriptor is None:
                continue
            was, now = form_of(part.table.schema), form_of(descriptor.schema)
            if was != now:
                raise SnapshotError(
                    f"State {part.name!r} is of another kind in the snapshot",
                    where=f"operator {self._uid!r}",
                    cause=f"the snapshot has {was or part.kind}, the pipeline {now}",
                    remedy="Give the state another name, or declare the former kind",
                )
            pieces[part.name] += raw_inputs(part)
        for name, found in pieces.items():
            self._process.read_raw(name, found)
