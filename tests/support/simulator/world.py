"""One simulation: a job, the people and programs that run it, and the faults that strike it, all from one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

from simulator.checkers import Checkers, Cut
from simulator.deletions import SLOWNESS_MS
from simulator.driver_process import grace_ms
from simulator.external import External, ExternalSink
from simulator.faults import Faults
from simulator.gate_checker import GateChecker
from simulator.network import SLOW_CHANNELS, ControlLink, DataChannel
from simulator.scheduler import Process, Scheduler, current_task
from simulator.store import Disk
from simulator.story import FAULTY_MS, JOB_ID, RECOVERY_BOUND_MS, Story
from simulator.workload import Workload, random_workload
from tidegate.channel.control.protocol import SlotMessage
from tidegate.connectors.interface import Sink, SourceContext, Split
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Decision, Spec
from tidegate.operators.stream_operator import OperatorContext
from tidegate.plan.execution_plan import ExecutionPlan, make_execution_plan

MAX_PARALLELISM = 8
MAX_STEPS = 60_000
SLOW_DELETIONS = 0.25
"""Part of the seeds whose store deletes slowly, of those that try none of the other scenarios of their own."""

GROWING = 0.5
"""Part of the seeds whose sources discover splits while the job runs, of those whose rows have no times."""


@dataclass
class Report:
    """What one simulation did.

    Attributes:
        seed: that made it.
        violations: empty when all is well.
        faults: by kind.
        evaluated: checkers, by name.
        events: crashes, zombies, restores, rescales, ... by kind.
        operators: nodes of the graph.
        recovered: a checkpoint completed after a fault.
        trace: a digest of all that happened: equal for equal seeds.
    """

    seed: int
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    evaluated: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    operators: int = 0
    recovered: bool = False
    steps: int = 0
    trace: int = 0


class World:
    """See the module. Implements Observer of the simulated operators."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        random = self.scheduler.random
        self.faults = Faults(random)
        self.disk = Disk()
        self.events: Counter[str] = Counter()
        self.specs: list[Spec] = []
        self.externals: dict[str, External] = {}
        self.options_of_spec: dict[int, JobOptions] = {}
        self._seed = seed
        self._nonces = 0
        self._read: dict[tuple[str, int], list[Split]] = {}
        self._plans: dict[int, ExecutionPlan] = {}
        self._given: dict[tuple[str, str], str] = {}
        self._readers: dict[int, tuple[SourceContext, str]] = {}
        self.exactly_once = random.random() < 0.85
        self.capacity_bytes = random.choice((150, 400, 1_500, 10_000))
        interval = f"{random.choice((80, 120, 250))} ms" if random.random() < 0.9 else None
        # With neither an interval nor anything to commit, a job needs no final snapshot.
        self.two_phase = random.random() < (0.95 if interval is not None else 0.4)
        self.options: dict[str, Any] = self._random_options(interval)
        self.crowded = self._overtakes() and random.random() < 0.7
        if self.crowded:
            self._crowd()
        # Apart from the seed's own numbers, so that the others are what they were.
        growth = Random(seed * 32_452_843 + 13)
        self.workload: Workload = random_workload(
            random,
            self,
            self._sink,
            exactly_once=self.exactly_once,
            crowded=self.crowded,
            growth=growth if growth.random() < GROWING else None,
        )
        gate = Random(seed * 7_919 + 1)
        self.haste = Random(seed * 7_919 + 2)
        self.gated = self.two_phase and gate.random() < 0.3
        if self.gated:
            self.options["commit"] = "on_request"
            self.options["max_uncommitted_checkpoints"] = gate.choice((1, 2, 3, 10))
        self.ways_back = Random(seed * 104_729 + 7)
        """For going back to older snapshots: apart, too."""
        self.wanders = not self.crowded and self.ways_back.random() < 0.2
        if self.wanders:
            self.options["retained_checkpoints"] = 10  # what is chosen must be there still when the driver comes to it
        self.deletion_ms = self._slow_deletions(Random(seed * 15_485_863 + 11), interval)
        """How long the store takes to delete a folder while faults strike, milliseconds; None: not worth mentioning."""
        self.checkers = Checkers(
            self.disk,
            JOB_ID,
            self.workload,
            max_parallelism=MAX_PARALLELISM,
            exactly_once=self.exactly_once,
            two_phase=self.two_phase,
            retained=self.options["retained_checkpoints"],
            gated_specs=self.specs if self.gated else None,
            specs=self.specs,
            deletion_grace_ms=None if self.deletion_ms is None else grace_ms(JobOptions.from_mapping(self.options)),
        )
        self.story = Story(self, random.choice((2, 2, 3) if self.crowded else (1, 1, 1, 2, 2, 3)))

    def _random_options(self, interval: str | None) -> dict[str, Any]:
        random = self.scheduler.random
        options: dict[str, Any] = {
            "max_parallelism": MAX_PARALLELISM,
            "checkpoint_mode": "exactly_once" if self.exactly_once else "at_least_once",
            "checkpoint_interval": interval,
            "min_pause_between_checkpoints": random.choice(("0 s", "20 ms")),
            "checkpoint_timeout": random.choice(("400 ms", "800 ms", "1500 ms")),
            "max_concurrent_checkpoints": random.choice((1, 1, 2, 3)),
            "tolerable_checkpoint_failures": random.choice((0, 1, 3)),
            "retained_checkpoints": random.choice((1, 1, 2, 3)),
            "state_size_threshold": random.choice(("64 B", "64 B", "1 KiB")),
            "restart_delay": "20 ms",
            "restart_strategy": random.choice(("fixed_delay", "exponential_delay", "failure_rate")),
            "restart_attempts": random.choice((2, 5, 20)),
            "sigterm_timeout": "300 ms",
            "heartbeat_interval": "100 ms",
            "heartbeat_timeout": "300 ms",
        }
        if self.exactly_once and random.random() < 0.4:
            options["unaligned_checkpoints"] = True
            options["aligned_checkpoint_timeout"] = random.choice(("0 s", "0 s", "10 ms", "60 ms"))
            # An aligned stop comes behind all that a restored snapshot held in flight, at one element a round; with
            # less time every try replays it and expires (seeds 12362, 29056).
            options["checkpoint_timeout"] = "3 s"
        return options

    def _overtakes(self) -> bool:
        return "unaligned_checkpoints" in self.options

    def _crowd(self) -> None:
        """Many records, and savepoints beside checkpoints that overtake; one is aborted while the other goes on."""
        self.options["max_concurrent_checkpoints"] = 2
        self.options["checkpoint_interval"] = "400 ms"
        self.options["tolerable_checkpoint_failures"] = 3
        # What has piled up takes seconds to pass in front of an aligned stop, at one element a round (seed 501858).
        self.options["checkpoint_timeout"] = "6 s"
        self.capacity_bytes = max(self.capacity_bytes, 1_500)
        self.faults.spare_processes()

    def _slow_deletions(self, slow: Random, interval: str | None) -> int | None:
        """See `deletion_ms`."""
        apart = self._overtakes() or self.wanders or self.gated or interval is None
        if slow.random() >= SLOW_DELETIONS or apart:
            return None
        self.options |= {"checkpoint_interval": "80 ms", "checkpoint_timeout": "400 ms", "retained_checkpoints": 1}
        self.options["tolerable_checkpoint_failures"] = 3
        self.faults.spare_processes()
        return slow.choice(SLOWNESS_MS)

    def run(self) -> Report:
        """From the first submission to the last check."""
        done = self.scheduler.run(
            lambda: self.story.is_over or bool(self.checkers.violations),
            limit_ms=FAULTY_MS * 2 + 2 * RECOVERY_BOUND_MS,
            limit_steps=MAX_STEPS,
        )
        if not done:
            self.violation(f"stuck at {self.story.where()}")
        if not self.checkers.violations:
            self._check_end()
        self.scheduler.close()
        return Report(
            self._seed,
            self.checkers.violations,
            self.faults.counts,
            self.checkers.evaluated,
            self.events,
            len(self.workload.graph.nodes),
            self.story.recovered,
            self.scheduler.steps,
            hash((self.scheduler.steps, self.scheduler.now_ms, len(self.checkers.decisions))),
        )

    @property
    def decisions(self) -> list[Decision]:
        """The log as it is on the disk."""
        return self.checkers.decisions

    def describe(self) -> str:
        """Options and sizes."""
        chosen = ", ".join(f"{name}={value}" for name, value in self.options.items())
        sinks = "two-phase" if self.two_phase else "one-phase"
        return f"{chosen}, {sinks} sinks, channels of {self.capacity_bytes} bytes"

    def reads_bounded(self, completed: Decision) -> bool:
        """When this checkpoint was taken, some bounded source had not come to its end."""
        cut = self.checkers.cuts.get((completed.run_id, completed.data["checkpoint_id"]), Cut())
        rows = self.workload.everything({})
        return any(rows[split] and read < rows[split] for split, read in cut.positions.items())

    def _check_end(self) -> None:
        if self.checkers.gate is not None:
            self._check_end_of_gated(self.checkers.gate)
            return
        if self.checkers.decisions[-1].data.get("status") == "FINISHED":
            self.checkers.output(self.externals, {}, fired=True)
            return
        last = next(
            d for d in reversed(self.checkers.decisions) if d.kind == "complete" and d.data["kind"] != "savepoint"
        )
        cut = self.checkers.cuts.get((last.run_id, last.data["checkpoint_id"]), Cut())
        self.checkers.output(self.externals, cut.positions, fired=last.data.get("stop") == "drain", at=_id(last))

    def _check_end_of_gated(self, gate: GateChecker) -> None:
        """Every sink shows what was approved, and nothing else."""
        last = next((d for d in self.decisions if d.kind == "complete" and gate.committed == _id(d)), None)
        if last is None:
            self.checkers.nothing_shown(self.externals)
            return
        cut = self.checkers.cuts.get((last.run_id, _id(last)), Cut())
        fired = last.data["kind"] == "final" or last.data.get("stop") == "drain"
        whole = not last.data["metrics"].get("unaligned")  # else rows are in flight in it
        self.checkers.output(self.externals, cut.positions, fired=fired, whole=whole, at=_id(last))

    # ------------------------------------------------------------ for the processes

    def options_of(self, spec: Spec) -> JobOptions:
        """Parsed."""
        return self.options_of_spec[spec.number]

    def plan_of(self, spec: Spec) -> ExecutionPlan:
        """The graph, planned for the submission's parallelism."""
        parallelism = int(spec.options["parallelism"])
        if parallelism not in self._plans:
            self._plans[parallelism] = make_execution_plan(self.workload.graph, parallelism, MAX_PARALLELISM)
        return self._plans[parallelism]

    def nonce(self) -> str:
        """New at every call."""
        self._nonces += 1
        return f"n{self._nonces:04d}"

    def now_iso(self) -> str:
        """Virtual time as text."""
        return datetime.fromtimestamp(self.scheduler.now_ms / 1000, UTC).isoformat()

    def link(self, target: Process, deliver: Callable[[SlotMessage], None]) -> ControlLink[SlotMessage]:
        """A control connection from a slot to its driver."""
        return ControlLink(self.scheduler, target, deliver)

    def make_channel(self, run_id: str, channel_id: int) -> DataChannel:
        """A data channel of a run."""
        return DataChannel(
            channel_id,
            self.capacity_bytes,
            SLOW_CHANNELS if self.crowded else 0.0,
            self.scheduler,
            self.faults,
            lambda channel, time_us: self.checkers.watermark(run_id, channel, time_us),
        )

    def on_run(self, run_id: str, parallelism: int, generation: int) -> None:
        """A run begins; of a driver that does not know yet that it is fenced off, perhaps."""
        self.events["runs"] += 1
        self.checkers.parallelism_of[run_id] = parallelism
        if generation == self.decisions[-1].generation:
            self.checkers.last_run_ms = self.scheduler.now_ms

    def failed(self, where: str, error: Exception) -> None:
        """A process ended with an error that no fault explains: right only where it names a damaged object."""
        if self.story.is_named(error):
            self.events["damage named"] += 1
        elif "neither published nor staged" in str(error) and self._is_rewound(where):
            self.events["zombies without their rows"] += 1
        else:
            self.violation(f"{where} raised {error!r}")

    def _is_rewound(self, where: str) -> bool:
        """Return whether a newer generation has rewound the sinks of a slot's run, which is then a zombie (S9.3)."""
        runs = ((d.generation, d.run_id or d.data.get("run_id")) for d in self.decisions)
        own = next((generation for generation, run in runs if run and f"-{run}-" in where), None)
        return own is not None and any(d.kind == "rewind" and d.generation > own for d in self.decisions)

    def subtask_snapshot(
        self, run_id: str, checkpoint_id: int, subtask: tuple[int, int], uids: Sequence[str], unaligned: bool
    ) -> None:
        """A subtask took its part of a snapshot; a reader has told its positions just before."""
        cut = self.checkers.cuts.setdefault((run_id, checkpoint_id), Cut())
        if unaligned:
            self.events["unaligned parts"] += 1
        for uid in uids:
            for split in self._read.pop((uid, subtask[1]), ()):
                src, _, number = split.split_id.partition("-")
                cut.positions[int(src), int(number)] = int(split.position or 0)

    # ------------------------------------------------------------ Observer

    def now_ms(self) -> int:
        """Virtual time."""
        return self.scheduler.now_ms

    def violation(self, what: str) -> None:
        """Note one."""
        self.checkers.violation(what)

    def given(self, ctx: SourceContext, splits: Sequence[Split]) -> None:
        """See Observer."""
        task = current_task()  # only a deployment is one; later assignments come to readers that are known
        named = "" if task is None else task.process.name.rpartition("-")[0]
        _, run = self._readers.setdefault(id(ctx), (ctx, named))
        if task is None:
            self.events["splits assigned later"] += len(splits)
        for split in splits:
            before = self._given.setdefault((run, split.split_id), str(ctx.subtask))
            if before != str(ctx.subtask):
                self.violation(f"{split.split_id} was given to subtasks {before} and {ctx.subtask} of {run}")

    def positions(self, ctx: SourceContext, splits: Sequence[Split]) -> None:
        """See Observer."""
        self._read[ctx.uid, ctx.subtask] = list(splits)

    def state(self, ctx: OperatorContext, checkpoint_id: int, state: Mapping[Any, Any]) -> None:
        """See Observer."""
        cut = self.checkers.cuts.setdefault((ctx.run_id, checkpoint_id), Cut())
        cut.tallies[ctx.uid, ctx.subtask] = state

    def _sink(self, uid: str) -> Sink:
        external = External(
            self.faults,
            self.now_ms,
            lambda t: self.checkers.published(t),
            lambda t: self.checkers.put_away(t),
            lambda t: self.checkers.timelines.taken_back(t),
        )
        self.externals[uid] = external
        return ExternalSink(external, two_phase=self.two_phase)


def _id(decision: Decision) -> int:
    return int(decision.data["checkpoint_id"])


def simulate(seed: int) -> Report:
    """Run one seed."""
    return World(seed).run()
