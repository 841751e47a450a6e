"""The people and programs that operate a simulated job: they submit it, launch dead drivers anew, send commands, stop
and restore it, damage a snapshot and mend it, and see in the end that it comes to rest."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from simulator.auditor import Auditor
from simulator.deletions import BUSY, SLOW_PHASE_MS
from simulator.driver_process import DriverProcess
from simulator.scheduler import START_MS
from tidegate.errors import SnapshotError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Command, CommandResult, RestoreFrom, Spec, Verb, Withdrawn, decode, encode
from tidegate.jobs.stop_outcomes import ON_TIMEOUT
from tidegate.snapshot.metadata import decode_metadata

if TYPE_CHECKING:
    from simulator.world import World

JOB_ID = "job"
FAULTY_MS = 700
"""About how long faults strike, milliseconds."""
RECOVERY_BOUND_MS = 60_000
"""Once faults have stopped, a checkpoint must complete, and a stop must end the job, within this time."""
LAST_STOPS = 5
"""Stops that may fail once faults have stopped: what still dies of them, a driver that comes late."""
DAMAGED_MS = 400
"""How long a damaged snapshot stays damaged."""
ENDS = ("FINISHED", "FINISHED_COMMIT_PENDING", "STOPPED", "FAILED", "CANCELED")
WAY_BACK = 0.7
"""How often a submission goes back to an older snapshot, where people do such things."""
LAST_ROUNDS = 2
"""Times that a job behind a gate is started again after its end to commit what was approved late, while more is."""


class Story:
    """See the module.

    Attributes:
        driver: the newest.
        is_over: the job has come to rest.
        recovered: a checkpoint completed after a fault.
        rotten: path and bytes of the damaged object, while there is one.
    """

    def __init__(self, world: World, parallelism: int) -> None:
        self._world = world
        self._scheduler = world.scheduler
        self._layout = JobLayout(JOB_ID)
        self._parallelism = parallelism
        self._launches = 0
        faulty_ms = FAULTY_MS // 4 if world.crowded else FAULTY_MS
        self._quiet_from_ms = self._scheduler.now_ms + FAULTY_MS // 2 + self._scheduler.upto(faulty_ms)
        if world.wanders:
            self._quiet_from_ms += FAULTY_MS // 3
        if world.deletion_ms is not None:
            self._quiet_from_ms += SLOW_PHASE_MS
        # In some seeds the checkpoint that shows health must come when every bounded source has ended.
        self._lingers = not world.crowded and self._scheduler.chance(0.12)
        self._seen = 0
        self._fenced_spec = 0
        self._completed = False
        self._completed_since_quiet = False
        self._status = ""
        self._way_to_end: str | None = None
        self._stop_command: str | None = None
        self._last_stops = 0
        self._savepoint_command: str | None = None
        self._rotten_since_ms = 0
        self.rotten: tuple[str, bytes] | None = None
        self.driver: DriverProcess
        self.is_over = False
        self.recovered = False
        self._auditor = Auditor(world, self._send)
        self._haste = world.haste
        self._last_rounds = 0
        self._submit()
        self._tend()

    def where(self) -> str:
        """For the report of a simulation that is stuck."""
        driver = self.driver
        last = [(d.kind, d.data.get("status") or d.data.get("message") or "") for d in self._world.decisions[-4:]]
        return (
            f"{self._scheduler.now_ms - START_MS} ms, {self._scheduler.steps} steps, quiet {self._is_quiet}, "
            f"{driver.process.name} alive {driver.process.alive} ended {driver.ended}, "
            f"way to the end {self._way_to_end}, {last}"
        )

    # ------------------------------------------------------------ submissions and launches

    @property
    def _is_quiet(self) -> bool:
        return self._scheduler.now_ms >= self._quiet_from_ms

    @property
    def _is_healthy(self) -> bool:
        """A checkpoint has completed since faults stopped; of a job that takes none by itself none is awaited."""
        if self._world.options["checkpoint_interval"] is None:
            return self._is_quiet
        return self._completed_since_quiet

    def _way_back(self) -> RestoreFrom | None:
        """Now and then, while faults strike: to an older snapshot, and sinks take back what they committed behind
        it."""
        world, random = self._world, self._world.ways_back
        timelines = world.checkers.timelines
        if self._is_quiet or self.rotten is not None or not world.wanders or random.random() > WAY_BACK:
            return None
        gate = world.checkers.gate
        candidates = [
            entry
            for entry in timelines.reachable
            if timelines.is_covered(entry)
            and f"{entry.data['path']}/_metadata" in world.disk.objects
            # Behind a gate only what is approved: what waits may be rejected meanwhile, and a savepoint has no verdict
            # of its own by which the checker knows what must be visible.
            and (gate is None or entry.data["checkpoint_id"] in gate.approved)
        ]
        if not candidates or not timelines.is_settled:
            return None
        world.events["ways back"] += 1
        chosen = random.choice(candidates[:-1] or candidates).data
        kind: Any = "savepoint" if "savepoint" in chosen["kind"] else "checkpoint"
        n, path = chosen["checkpoint_id"], chosen["path"]
        mode: Any = random.choice(("no_claim", "claim"))
        return RestoreFrom(kind, path, n, on_committed_after="rewind", allow_drained=True, claim_mode=mode)

    def _submit(self) -> None:
        """A submission that goes on from the latest checkpoint, or an older one, or starts afresh when there has been
        none."""
        world = self._world
        # The latest of one that was to go back and died of something else lies in front of what that one was to rewind.
        answer: Any = "rewind" if world.wanders else "refuse"
        latest = RestoreFrom("latest", allow_drained=True, on_committed_after=answer) if self._completed else None
        restore = self._way_back() or latest
        number = len(world.specs) + 1
        if number > 1:
            world.events["restores"] += 1
            if self._scheduler.chance(0.7):
                before, self._parallelism = self._parallelism, self._scheduler.random.choice((1, 1, 2, 2, 3))
                world.events["rescales"] += self._parallelism != before
        options = JobOptions.from_mapping({**world.options, "parallelism": self._parallelism})
        spec = Spec(
            job_id=JOB_ID,
            number=number,
            submission_id=f"s{number}",
            pipeline="simulation:build",
            artifact="",
            arguments={},
            options=options.to_mapping(),
            master="simulation",
            spark_conf={},
            storage_options={},
            restore=restore,
            lineage="lineage",
            owner_dag=None,
            submitted_at=world.now_iso(),
            submitted_by="simulation",
        )
        world.specs.append(spec)
        world.options_of_spec[number] = options
        self._launches = 0
        self._status = ""
        self._stop_command = None
        self._launch()

    def _launch(self) -> None:
        self._launches += 1
        self._world.events["launches"] += 1
        self.driver = DriverProcess(self._world, self._world.specs[-1], self._launches)
        self.driver.start()

    # ------------------------------------------------------------ looking after the job

    def _tend(self) -> None:
        if self.is_over:
            return
        self._scheduler.after(10 + self._scheduler.upto(40), self._tend)
        self._read_log()
        if self._is_quiet:
            self._world.faults.active = False
        if self.rotten is not None and self._scheduler.now_ms > self._rotten_since_ms + DAMAGED_MS:
            self._mend()
        driver, world = self.driver, self._world
        dead = driver.ended is not None or not driver.process.alive
        if dead and driver.ended is None:
            driver.ended = "crashed"
            world.events["crashed drivers"] += 1
            driver.release_slots()
        if dead and self._status in ENDS:
            self._after_the_end()
        elif dead:
            self._launch()
        elif driver.process.stalled_until_ms > self._scheduler.now_ms + 200 and self._scheduler.chance(0.2):
            world.events["zombie drivers"] += 1
            self._launch()
        elif self._is_quiet:
            self._bring_to_rest()
        else:
            self._ask_for_something()

    def _read_log(self) -> None:
        """What the log tells of the newest submission, and of its checkpoints."""
        world = self._world
        for entry in world.decisions[self._seen :]:
            if entry.kind == "fence":
                self._fenced_spec = entry.data["spec"]
            elif entry.kind == "status" and self._fenced_spec == len(world.specs):
                self._status = entry.data["status"]
            elif entry.kind == "complete" and entry.data["kind"] != "savepoint":
                self._completed = True
                self.recovered = self.recovered or world.faults.total > 0
                healthy = self._is_quiet and not (self._lingers and world.reads_bounded(entry))
                self._completed_since_quiet = self._completed_since_quiet or healthy
        self._seen = len(world.decisions)

    def _ask_for_something(self) -> None:
        world, chance = self._world, self._scheduler.chance
        self._auditor.look()
        if world.deletion_ms is not None and not chance(BUSY):
            return
        if chance(0.5 if world.crowded else 0.04):
            if self._savepoint_command is not None and self._is_open(self._savepoint_command):
                return
            self._savepoint_command = self._send("savepoint")
            world.events["savepoints"] += 1
            if world.crowded:
                self._send("checkpoint")  # side by side: one of them may be aborted while the other goes on
        elif chance(0.03):
            self._send("checkpoint")
        elif chance(0.05):
            self._ask_for_stop(drain=not world.workload.has_windows and chance(0.3))
        elif chance(0.02):
            world.events["signals"] += 1
            self.driver.terminate()
        elif chance(0.01):
            world.events["cancels"] += 1
            self._send("cancel")
        elif self._completed and chance(0.02):
            world.events["resubmissions"] += 1  # beside a driver that lives, and will be fenced off
            self._submit()
        elif world.wanders and world.ways_back.random() < 0.04:
            self._send("savepoint")
        elif self._completed and world.wanders and world.ways_back.random() < 0.05:
            world.events["resubmissions"] += 1
            self._submit()

    def _bring_to_rest(self) -> None:
        """Faults are over: a checkpoint completes; then the job ends, by itself or by a stop."""
        world = self._world
        if self._scheduler.now_ms > self._quiet_from_ms + RECOVERY_BOUND_MS:
            world.violation(f"the job came not to rest after the faults had stopped: {self.where()}")
        if self._last_rounds < LAST_ROUNDS:
            self._auditor.approve()
        if not self._is_healthy:
            return
        if self._way_to_end is None:
            waits = world.workload.is_bounded and self._scheduler.chance(0.7)
            self._way_to_end = "wait" if waits else self._scheduler.random.choice(("suspend", "drain"))
            if world.gated and world.workload.has_windows and self._way_to_end == "drain":
                self._way_to_end = "suspend"  # it may be started again, and windows that a drain fired fire again
        if self._way_to_end == "wait":
            return
        if not self._is_stopping():
            result = self._result_of(self._stop_command) if self._stop_command is not None else None
            self._ask_for_stop(drain=self._way_to_end == "drain")
            # One that met another is no failure: it is the other that ends the job.
            self._last_stops += result is None or result.code != "stop_in_progress"
            if self._last_stops > LAST_STOPS:
                world.violation(f"{LAST_STOPS} stops did not end the job although faults had stopped: {self.where()}")

    def _is_stopping(self) -> bool:
        """A stop has been sent to this submission that was neither withdrawn nor refused."""
        command_id = self._stop_command
        if command_id is None or self._layout.withdrawn(command_id) in self._world.disk.objects:
            return False
        result = self._result_of(command_id)
        return result is None or result.ok

    def _after_the_end(self) -> None:
        finished = self._status in ("FINISHED", "FINISHED_COMMIT_PENDING")
        at_rest = finished or (self._status == "STOPPED" and self._way_to_end is not None)
        gate = self._world.checkers.gate
        if at_rest and gate is not None and gate.outstanding:
            self._last_rounds += 1
            self._last_stops = 0
            at_rest = False
        if at_rest and self.rotten is None and (self._is_quiet or not self._world.wanders):
            self.is_over = True
            return
        if self._status == "STOPPED" and self._scheduler.chance(0.15) and not self._is_quiet:
            self._spoil()
        self._submit()

    # ------------------------------------------------------------ commands

    def _ask_for_stop(self, *, drain: bool) -> None:
        """While faults strike, some have little time."""
        self._world.events["drains" if drain else "stops"] += 1
        given: dict[str, Any] = {"mode": "drain" if drain else "suspend"}
        if not self._is_quiet and self._haste.random() < 0.6:
            self._world.events["hasty stops"] += 1
            given["timeout"] = self._haste.choice(("1 ms", "30 ms", "80 ms", "200 ms", "600 ms"))
            given["on_timeout"] = self._haste.choice(ON_TIMEOUT)
        self._stop_command = self._send("stop", **given)

    def _send(self, verb: Verb, **arguments: Any) -> str:
        """Send a command; some have expired on arrival, some are withdrawn at once, some later."""
        world, chance = self._world, self._scheduler.chance
        command_id = world.nonce()
        expired = not self._is_quiet and chance(0.05)
        lives_ms = -1 if expired else 60_000
        spec = len(world.specs) - (1 if len(world.specs) > 1 and not self._is_quiet and chance(0.1) else 0)
        at_ms = self._scheduler.now_ms
        command = Command(command_id, verb, arguments, spec, _iso(at_ms), _iso(at_ms + lives_ms), "simulation")
        withdrawn = not self._is_quiet and chance(0.06)
        world.checkers.commands[command_id] = (command, expired, withdrawn)
        if withdrawn:
            self._withdraw(command_id)
        elif not self._is_quiet and chance(0.1):
            self._scheduler.after(self._scheduler.upto(400), lambda: self._withdraw(command_id))
        world.events["commands"] += 1
        world.disk.put(self._layout.command(command_id), encode(command), self._scheduler.now_ms, "client")
        return command_id

    def _is_open(self, command_id: str) -> bool:
        """Neither withdrawn nor answered."""
        return (
            self._layout.withdrawn(command_id) not in self._world.disk.objects and self._result_of(command_id) is None
        )

    def _withdraw(self, command_id: str) -> None:
        if self._result_of(command_id) is None:
            record = Withdrawn(command_id, self._world.now_iso(), "simulation")
            path = self._layout.withdrawn(command_id)
            self._world.disk.put(path, encode(record), self._scheduler.now_ms, "client")

    def _result_of(self, command_id: str) -> CommandResult | None:
        data = self._world.disk.objects.get(self._layout.result(command_id))
        return decode(data, CommandResult) if data is not None else None

    # ------------------------------------------------------------ damaged snapshots

    def _spoil(self) -> None:
        """Damage one object of the snapshot that comes next: it must be named, and nothing may run from it."""
        kinds = ("checkpoint", "final", "stop-savepoint")
        gate = self._world.checkers.gate
        timelines = self._world.checkers.timelines
        gone = timelines.gone | timelines.abandoned | (gate.rejected if gate is not None else set())
        completed = (d for d in reversed(self._world.decisions) if d.kind == "complete" and d.data["kind"] in kinds)
        point = next((d for d in completed if d.data["checkpoint_id"] not in gone), None)
        if point is None or self.rotten is not None:
            return
        disk = self._world.disk
        folder = point.data["path"]
        metadata = decode_metadata(disk.objects[f"{folder}/_metadata"])
        names = ["_metadata", *(handle.path for handle in metadata.handles() if handle.path is not None)]
        paths = [f"{folder}/{name}" for name in names]
        paths += [self._layout.shared_file(name) for name in sorted(metadata.shared_files())]
        path = self._scheduler.random.choice(paths)
        data = disk.objects[path]
        self.rotten, self._rotten_since_ms = (path, data), self._scheduler.now_ms
        self._world.checkers.rotten = path
        self._world.events["damaged snapshots"] += 1
        at = self._scheduler.upto(len(data) - 1)
        how = self._scheduler.random.choice(("gone", "cut", "changed"))
        if how == "gone":
            del disk.objects[path]
        elif how == "cut":
            disk.objects[path] = data[:at]
        else:
            disk.objects[path] = data[:at] + bytes([data[at] ^ (1 + self._scheduler.upto(254))]) + data[at + 1 :]

    def _mend(self) -> None:
        """Somebody puts the object back."""
        assert self.rotten is not None, "nothing is damaged"
        path, data = self.rotten
        self._world.disk.objects[path] = data
        self._world.disk.created_ms.setdefault(path, self._scheduler.now_ms)
        self.rotten, self._world.checkers.rotten = None, None

    def is_named(self, error: Exception) -> bool:
        """`error` names the damaged object, or its snapshot."""
        if self.rotten is None or not isinstance(error, SnapshotError):
            return False
        folder, _, name = self.rotten[0].rpartition("/")
        return name in str(error) or folder in str(error)


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
