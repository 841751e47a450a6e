"""States of a subtask for a user's process: operator states, and raw states that the process writes itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from tidegate.errors import SnapshotError
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.user_functions.context import ProcessBase, SubtaskState
from tidegate.operators.user_functions.process_inputs import ProcessInput
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.operator_descriptor import OperatorDescriptor
from tidegate.state.operator_state import OperatorStates
from tidegate.state.raw_state import RawDescriptor, RawInput, RawOutput, raw_inputs
from tidegate.state.state_layout import form_of

_NOTHING_TO_ALLOW = nullcontext()


class OwnStates:
    """The states of one subtask. If the process has a broadcast input, its broadcast states are writable only while
    rows of that input are processed.

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
        """Return the names of the snapshot parts that belong to these states."""
        return self.operator.names | frozenset(self._raw)

    def processing(self, input_index: int) -> AbstractContextManager[None]:
        """Allow writes to broadcast states while input `input_index` is processed, if it is the broadcast input."""
        return self._writing_broadcast() if self._inputs[input_index] == "broadcast" else _NOTHING_TO_ALLOW

    @contextmanager
    def _writing_broadcast(self) -> Iterator[None]:
        self.operator.allow_broadcast_writes(True)
        try:
            yield
        finally:
            self.operator.allow_broadcast_writes(False)

    def freeze(self) -> AsyncSnapshot:
        """Freeze all states. The process writes its raw states immediately."""
        raw: list[StatePart] = []
        for descriptor in self._raw.values():
            out = RawOutput(descriptor, self.key_groups)
            self._process.write_raw(descriptor.name, out)
            raw.append(out.part())
        write = self.operator.freeze()
        return lambda: [*write(), *raw]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the parts in `names`. The process reads its raw states.

        Raises:
            SnapshotError: a state has another kind, or its columns cannot be adapted to the declared ones.
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
                    f"state {part.name!r} is of another kind in the snapshot than in the pipeline",
                    where=f"operator {self._uid!r}",
                    cause=f"the snapshot has {was or part.kind}, the pipeline has {now}",
                    remedy="Rename the state in the pipeline, or declare the kind of the snapshot",
                )
            pieces[part.name] += raw_inputs(part)
        for name, found in pieces.items():
            self._process.read_raw(name, found)
