"""Measures what a checkpoint costs the coordinator, by number of subtasks. See README.md.

    python benchmarks/coordinator_scale.py [--write]

Drives the runtime's own JobRun and Coordinator with the messages that slots would send; the store is in memory, and no
slot is there. Prints a table and, last, `coordinator 10000=<CPU ms> growth=<factor>`. Takes some seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "spark_runtime")]

from results import RESULTS, machine, write_section  # noqa: E402

from tidegate.channel.control.protocol import (  # noqa: E402
    Acknowledged,
    DriverMessage,
    SlotMessage,
    SubtaskCommitted,
    SubtaskRunning,
)
from tidegate.coordinator import events as ev  # noqa: E402
from tidegate.coordinator.coordinator import Coordinator, CoordinatorOptions  # noqa: E402
from tidegate.coordinator.job_run import JobRun, RunFacts  # noqa: E402
from tidegate.coordinator.topology import ChainShape, Topology  # noqa: E402
from tidegate.jobs.decision_log import DecisionLog  # noqa: E402
from tidegate.jobs.layout import JobLayout  # noqa: E402
from tidegate.jobs.records import Spec  # noqa: E402
from tidegate.jobs.stores.in_memory import MemoryStore  # noqa: E402

SIZES = (100, 1_000, 10_000)
CHAINS = 10
OPERATORS_PER_CHAIN = 2
ROUNDS = 7
HEADING = "## Coordinator"
NOW = "2026-01-01T00:00:00.000Z"
METRICS = {
    "sync_ms": 1.25,
    "async_ms": 8.5,
    "alignment_ms": 3.0,
    "start_delay_ms": 2.0,
    "bytes": 65536.0,
    "persisted_bytes": 65536.0,
    "alignment_bytes": 1024.0,
}


@dataclass(frozen=True)
class Cost:
    """CPU milliseconds of one checkpoint, by part.

    Attributes:
        plan: request, claim, plan, trigger message.
        acks: every acknowledgement except the last.
        complete: the last one: `_metadata` is built and encoded, "complete" is appended, all slots are notified.
        commits: the reports of the subtasks that commit, and retention.
    """

    plan: float
    acks: float
    complete: float
    commits: float

    @property
    def total(self) -> float:
        """Return the cost of the whole checkpoint."""
        return self.plan + self.acks + self.complete + self.commits


class NoSlots:
    """Slots that receive messages and do nothing."""

    def broadcast(self, message: DriverMessage) -> None:
        """See `Slots.broadcast`."""


def topology(subtasks: int) -> Topology:
    """Two sources, a diamond of hash exchanges with a forward edge in it, two committing sinks: CHAINS chains."""
    upstream: tuple[tuple[tuple[int, bool], ...], ...] = (
        (),
        (),
        ((0, True), (1, True)),
        ((2, False),),
        ((2, True),),
        ((3, True), (4, True)),
        ((5, True),),
        ((5, False),),
        ((6, True), (7, True)),
        ((8, True),),
    )
    assert len(upstream) == CHAINS, "one entry a chain"
    chains = tuple(
        ChainShape(n, tuple(f"operator-{n}-{k}" for k in range(OPERATORS_PER_CHAIN)), above, not above, n >= CHAINS - 2)
        for n, above in enumerate(upstream)
    )
    return Topology(subtasks // CHAINS, chains)


def job_run(shape: Topology) -> JobRun:
    """Create a run of a job of this shape; no subtask has started yet."""
    nonces = itertools.count()
    layout = JobLayout("scale")
    store = MemoryStore(f"coordinator-scale-{time.monotonic_ns()}")
    spec = Spec("scale", 1, "s", "m:f", "", {}, {}, "local", {}, {}, None, "lineage", None, NOW, "benchmark")
    log = DecisionLog(store, layout, lambda: NOW, lambda: f"n{next(nonces)}")
    options = CoordinatorOptions(
        interval_ms=None,
        min_pause_ms=0,
        timeout_ms=600_000,
        max_concurrent=1,
        max_queued=10,
        tolerable_failures=0,
        retained=1,
    )
    return JobRun(
        facts=RunFacts(
            store=store,
            layout=layout,
            spec=spec,
            generation_log=log.begin_generation(spec=1, launch=1),
            topology=shape,
            graph_document={"v": 1, "nodes": []},
            max_parallelism=32_768,
            savepoint_directory=None,
            now_iso=lambda: NOW,
            specs=(spec,),
        ),
        coordinator=Coordinator(shape, options, run_id="run", first_delay_ms=0),
        slots=NoSlots(),
        run_id="run",
        next_checkpoint_id=1,
        splits={},
        restored_from=None,
        answer=lambda answer: None,
        now_ms=lambda: 1_700_000_000_000,
        retire=lambda checkpoint_id, path: None,
        on_completed=lambda: None,
    )


def messages(shape: Topology, checkpoint_id: int) -> list[SlotMessage]:
    """Return the acknowledgements of all subtasks."""
    out: list[SlotMessage] = []
    for chain, index in shape.subtasks():
        operators = {
            uid: {
                "path": f"{uid}-{index}-g1-run-{checkpoint_id:08x}.state",
                "size_bytes": 65536,
                "sha256": hashlib.sha256(f"{uid}{index}".encode()).hexdigest(),
                "kinds": ["keyed"],
            }
            for uid in shape.chains[chain].operators
        }
        out.append(Acknowledged((chain, index), checkpoint_id, "run", operators, dict(METRICS)))
    return out


def cpu_ms(work: Callable[[], None]) -> float:
    """Return the CPU milliseconds of this process during `work`."""
    before = time.process_time_ns()
    work()
    return (time.process_time_ns() - before) / 1e6


def checkpoint(run: JobRun, shape: Topology, checkpoint_id: int) -> Cost:
    """Run one checkpoint from request to commit."""
    acks = messages(shape, checkpoint_id)
    commits = [
        SubtaskCommitted((chain, index), checkpoint_id)
        for chain, index in shape.subtasks()
        if shape.chains[chain].commits
    ]

    def tell(some: Sequence[SlotMessage]) -> None:
        for message in some:
            run.on_slot_message(message)

    cost = Cost(
        plan=cpu_ms(lambda: run.on_event(ev.SnapshotRequested(ev.SnapshotRequest("checkpoint")))),
        acks=cpu_ms(lambda: tell(acks[:-1])),
        complete=cpu_ms(lambda: tell(acks[-1:])),
        commits=cpu_ms(lambda: tell(commits)),
    )
    last = run.facts.generation_log.decisions[-1]
    if (last.kind, last.data["checkpoint_id"]) != ("committed", checkpoint_id):
        raise SystemExit(f"checkpoint {checkpoint_id} was not completed and committed: the log ends with {last}")
    return cost


def measure(subtasks: int, rounds: int = ROUNDS) -> tuple[float, Cost]:
    """Return the CPU milliseconds of starting the subtasks, and of a checkpoint: medians over `rounds`, after a
    warm-up."""
    shape = topology(subtasks)
    run = job_run(shape)

    def start() -> None:
        for chain, index in shape.subtasks():
            run.on_slot_message(SubtaskRunning((chain, index)))

    start_ms = cpu_ms(start)
    costs = [checkpoint(run, shape, n) for n in range(1, rounds + 2)][1:]
    medians = {part.name: statistics.median(getattr(cost, part.name) for cost in costs) for part in fields(Cost)}
    return start_ms, Cost(**medians)


def table(measured: Sequence[tuple[int, float, Cost]]) -> list[str]:
    """Return the result as Markdown."""
    lines = [
        "| subtasks | start | plan | acks | complete | commits | a checkpoint, CPU ms | us per subtask |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for subtasks, start_ms, cost in measured:
        parts = " | ".join(f"{ms:.1f}" for ms in (start_ms, cost.plan, cost.acks, cost.complete, cost.commits))
        lines.append(f"| {subtasks:,} | {parts} | {cost.total:.1f} | {cost.total / subtasks * 1000:.1f} |")
    return lines


def last_line(measured: Sequence[tuple[int, float, Cost]]) -> str:
    """Return `coordinator <most subtasks>=<CPU ms> growth=<cost per subtask, relative to the next smaller size>`."""
    subtasks, _, cost = measured[-1]
    growth = "-"
    if len(measured) > 1:
        fewer, _, before = measured[-2]
        growth = f"{(cost.total / subtasks) / (before.total / fewer):.2f}"
    return f"coordinator {subtasks}={cost.total:.0f} growth={growth}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="CPU time of the coordinator by number of subtasks")
    parser.add_argument("--subtasks", type=int, nargs="*", default=list(SIZES), help=f"multiples of {CHAINS}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"checkpoints each (default: {ROUNDS})")
    parser.add_argument("--write", action="store_true", help=f"put the table into {RESULTS.name}")
    args = parser.parse_args(argv)
    measured = [(subtasks, *measure(subtasks, args.rounds)) for subtasks in args.subtasks]
    lines = table(measured)
    print("\n".join(lines))
    print(f"\n{machine()}")
    if args.write:
        about = (
            f"CPU milliseconds of the driver's protocol side: {CHAINS} chains of {OPERATORS_PER_CHAIN} operators with "
            f"state, store in memory, medians of {args.rounds} checkpoints; start: all subtasks report that they run."
        )
        write_section(HEADING, [*lines, "", about, "", f"{machine()}. `python benchmarks/coordinator_scale.py`."])
    print(last_line(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
