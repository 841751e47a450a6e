"""A job whose only sink is the tested one, with runs that crash, for the conformance suite (S7.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from tidegate.connectors.interface import CollectsLeftovers, Sink, SupportsRewind
from tidegate.connectors.leftovers import ALL_CHECKPOINTS, NeededTransactions
from tidegate.connectors.sink_operator import SinkOperator, handles_in_snapshot
from tidegate.connectors.transactions import SinkContext, parse_transaction_id
from tidegate.operators.stream_operator import CommitPermit, OperatorContext
from tidegate.snapshot.parts import StatePart

CRASH_ACTIONS = ("write", "write", "checkpoint", "late", "abort", "complete then crash", "commit then crash", "crash")
REWIND_ACTIONS = (*CRASH_ACTIONS, "checkpoint", "rewind")
COLLECT_ACTIONS = ("collect", "collect then commit again")


class TestWriter:
    """The writing side in `SinkConformance`: a job's lineage, and its current generation and run."""

    schema = pa.schema([("n", pa.int64())])

    def __init__(self, lineage: str = "lineage-1") -> None:
        self.lineage = lineage
        self.generation = 1
        self.run = 1

    def context(self, subtask: int = 0, parallelism: int = 2) -> SinkContext:
        """Return the context of a writer of the current run."""
        return SinkContext(
            job_id="job-1",
            lineage=self.lineage,
            uid="out",
            subtask=subtask,
            parallelism=parallelism,
            generation=self.generation,
            run_id=f"run-{self.generation}-{self.run:04d}",
            schema=self.schema,
        )

    def operator_context(self) -> OperatorContext:
        """Return the context of a SinkOperator of the current run."""
        made = self.context()
        return OperatorContext(
            job_id=made.job_id,
            lineage=made.lineage,
            uid=made.uid,
            subtask=made.subtask,
            parallelism=made.parallelism,
            max_parallelism=128,
            generation=made.generation,
            run_id=made.run_id,
            input_schemas=(self.schema,),
            processing_time_ms=lambda: 0,
        )


def numbers(first: int, count: int) -> pa.RecordBatch:
    """Return the records first, first + 1, ... as a batch of `TestWriter.schema`."""
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=TestWriter.schema)


class OneSinkJob:
    """A counting source, one SinkOperator, and a simple coordinator that records completed checkpoints and restores
    them after a crash."""

    def __init__(self, make_sink: Callable[[], Sink]) -> None:
        self._make_sink = make_sink
        self._reign = TestWriter()
        self._next_checkpoint = 1
        self._history: list[tuple[int, int, list[StatePart]]] = [(0, 0, [])]
        self._late: list[tuple[int, int, Callable[[], Sequence[StatePart]]]] = []
        self.position = 0
        self._operator = self._start()

    @property
    def completed_position(self) -> int:
        """Return the number of records before the barrier of the latest completed checkpoint."""
        return self._history[-1][1]

    def act(self, action: str, number: int) -> None:
        """Do one step; `number` varies it."""
        if action == "write":
            batch = numbers(self.position, number)
            assert [*self._operator.process(batch, 0)] == [batch], "`write` must not change the batch"
            self.position += number
            return
        if action in COLLECT_ACTIONS:
            self._collect(number, again=action != "collect")
            return
        if action in ("crash", "rewind"):
            self._crash(number, back=action == "rewind")
            return
        claimed, self._next_checkpoint = self._next_checkpoint, self._next_checkpoint + 1
        work = self._operator.snapshot(claimed)
        assert work is not None
        if action == "late":
            self._late.append((claimed, self.position, work))
        elif action == "abort":
            if number % 2:
                work()
            self._operator.aborted(claimed)
        else:
            self._complete(claimed, self.position, work)
            if action != "complete then crash":
                self._commit(claimed, 1 + number % 2)
            if action != "checkpoint":
                self._crash(number)

    def _complete(self, claimed: int, position: int, work: Callable[[], Sequence[StatePart]]) -> None:
        self._history.append((claimed, position, list(work())))
        self._late = [entry for entry in self._late if entry[0] > claimed]

    def _commit(self, claimed: int, times: int) -> None:
        for _ in range(times):
            commit = self._operator.commit(CommitPermit(claimed, self._reign.generation, claimed))
            if commit is not None:
                commit()

    def _crash(self, number: int, back: bool = False) -> None:
        """Crash. Sometimes a pending checkpoint completes just before; sometimes the driver dies too."""
        if self._late and number % 2:
            self._complete(*self._late[-1])
        if number < 2:
            self._operator.close()
        self._late = []
        self._reign.run += 1
        if number == 3 or back:
            self._reign.generation, self._reign.run = self._reign.generation + 1, 1
        if back:
            self._rewind(number)
        self.position = self.completed_position
        self._operator = self._start()

    def _rewind(self, number: int) -> None:
        """Rewind to one of the snapshots before the latest; later ones are deleted."""
        del self._history[max(2, len(self._history) - number) :]
        claimed, _, parts = self._history[-1]
        if claimed:
            sink, everybody = self._make_sink(), self._reign.context(0, parallelism=1)
            assert isinstance(sink, SupportsRewind)
            sink.rewind_to(everybody, claimed, handles_in_snapshot(parts))()

    def _collect(self, number: int, again: bool) -> None:
        """Collect leftovers during the run. Old snapshots are deleted first; the others may still be restored.

        Args:
            again: afterwards a zombie, which knows nothing newer, commits one of these snapshots again.
        """
        if number:
            del self._history[1 : max(1, len(self._history) - 2 * number)]
        snapshots = [(claimed, handles_in_snapshot(parts)) for claimed, _, parts in self._history if claimed]
        asked = [parse_transaction_id(h.transaction_id).checkpoint_id for _, held in snapshots for h in held]
        oldest = min((*(claimed + 1 for claimed, _ in snapshots), *asked), default=ALL_CHECKPOINTS)
        everybody = self._reign.context(0, parallelism=1)
        sink = self._make_sink()
        assert isinstance(sink, CollectsLeftovers)
        sink.collect(everybody, NeededTransactions(None, oldest, datetime.max.replace(tzinfo=UTC)))
        if again and snapshots:
            writer = self._make_sink().create_writer(self._reign.context())
            writer.commit(snapshots[number % len(snapshots)][1])
            writer.close()

    def _start(self) -> SinkOperator:
        operator = SinkOperator(self._make_sink(), passes_on=True)  # a sink may have operators downstream
        operator.open(self._reign.operator_context())
        claimed, _, parts = self._history[-1]
        if claimed:
            operator.restore(parts)
            operator.recover(CommitPermit(claimed, self._reign.generation, claimed))()
        else:
            operator.recover(None)()
        return operator
