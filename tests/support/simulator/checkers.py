"""What must hold, checked from outside: from the objects on the disk, the external systems and what operators tell,
with none of the runtime's own decisions."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from simulator.delay import rows_delayed
from simulator.deletions import DeletionChecker
from simulator.external import External
from simulator.gate_checker import GateChecker
from simulator.rows import CountingSource, Row, owners, rows_in_flight, rows_of
from simulator.stop_checker import StopChecker
from simulator.store import Disk
from simulator.timelines import Timelines
from simulator.workload import Workload
from tidegate.channel.elements import SAVEPOINT_KINDS
from tidegate.connectors.transactions import parse_transaction_id
from tidegate.jobs.decision_log import reason_it_cannot_follow
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Command, CommandResult, Decision, Spec, decode
from tidegate.snapshot.blobs import matches
from tidegate.snapshot.metadata import SnapshotMetadata, decode_metadata

RECOVERY_KINDS = ("checkpoint", "final", "stop-savepoint")

Tally = Mapping[tuple[int, int, int, int], tuple[int, int]]


@dataclass
class Cut:
    """What the parts of one snapshot of one run were told to hold.

    Attributes:
        positions: (source, split) -> rows read.
        tallies: (operator uid, subtask) -> its state.
    """

    positions: dict[tuple[int, int], int] = field(default_factory=dict)
    tallies: dict[tuple[str, int], Tally] = field(default_factory=dict)


class Checkers:
    """Collects violations; `evaluated` counts how often each checker looked."""

    def __init__(
        self,
        disk: Disk,
        job_id: str,
        workload: Workload,
        *,
        max_parallelism: int,
        exactly_once: bool,
        two_phase: bool,
        retained: int,
        gated_specs: Sequence[Spec] | None = None,
        specs: Sequence[Spec] = (),
        deletion_grace_ms: int | None = None,
    ) -> None:
        """Args: gated_specs: the submissions of a job behind a commit gate; None: there is no gate. specs: the
        submissions. deletion_grace_ms: of a job whose store deletes slowly, from retirement to deletion."""
        self.violations: list[str] = []
        self.evaluated: Counter[str] = Counter()
        self.decisions: list[Decision] = []
        self.timeline: list[tuple[int, Decision]] = []
        self.cuts: dict[tuple[str, int], Cut] = {}
        self.parallelism_of: dict[str, int] = {}
        self.last_run_ms = 0
        self.rotten: str | None = None
        self.waiting: dict[int, Mapping[str, Sequence[Row]]] = {}
        """Completed snapshot -> uid of a delay -> rows that it holds there; of jobs with delays, exactly once."""
        self.commands: dict[str, tuple[Command, bool, bool]] = {}
        """Command id -> the command, whether it had expired when it was sent, whether it was withdrawn before."""
        self._disk = disk
        self._layout = JobLayout(job_id)
        self._shared: dict[int, frozenset[str]] = {}
        self._workload = workload
        self._max_parallelism = max_parallelism
        self._exactly_once = exactly_once
        self._two_phase = two_phase
        self._retained = retained
        self._specs = specs
        self._completed: dict[int, Decision] = {}
        self.gate = None if gated_specs is None else GateChecker(self._demand, gated_specs)
        self.timelines = Timelines(self._demand, specs)
        self._stops = StopChecker(self._demand, self.decisions, self._completed, disk.objects)
        self._aborted: set[int] = set()
        self._dropped: dict[int, frozenset[str]] = {}
        """Completed snapshot -> operators of which some keys have no state after its restore (S6.2)."""
        self._claimed: dict[int, Decision] = {}
        self._watermarks: dict[tuple[str, int], int] = {}
        self._deletions = None if deletion_grace_ms is None else DeletionChecker(self._demand, disk, deletion_grace_ms)
        disk.on_create = self._created
        disk.on_delete = self._deleted

    def violation(self, what: str) -> None:
        """Note one."""
        self.violations.append(what)

    def _demand(self, checker: str, holds: bool, what: str) -> None:
        self.evaluated[checker] += 1
        if not holds:
            self.violations.append(f"{checker}: {what}")

    # ------------------------------------------------------------ the log

    def _created(self, path: str, by: str) -> None:
        folder = f"{self._layout.decisions}/"
        name = path[len(folder) :]
        if path.startswith(folder) and name[:8].isdigit() and name.endswith(".json") and "-" not in name:
            self._decided(decode(self._disk.objects[path], Decision, path), path, by)
        elif path.startswith(f"{self._layout.commands}/") and path.endswith(".result.json"):
            self._answered(path, by)

    def _decided(self, entry: Decision, path: str, by: str) -> None:
        last = self.decisions[-1] if self.decisions else None
        problem = reason_it_cannot_follow(entry, len(self.decisions) + 1, last.generation if last else 0)
        self._demand("log", problem is None, f"entry {entry.number} by {by}: {problem}")
        self.decisions.append(entry)
        self.timeline.append((self._disk.created_ms[path], entry))
        match entry.kind:
            case "claim":
                n = entry.data["checkpoint_id"]
                self._demand(
                    "ids monotone", n > max(self._claimed, default=0), f"{n} claimed after {len(self._claimed)}"
                )
                self._claimed[n] = entry
            case "abort":
                n = entry.data["checkpoint_id"]
                self._demand("one end per id", n not in self._completed, f"{n} aborted after its completion")
                self._aborted.add(n)
            case "complete":
                self._check_complete(entry)
            case "committed":
                self._check_committed(entry)
        self.timelines.decided(entry)
        if self._deletions is not None:
            self._deletions.decided(entry, self._disk.created_ms[path], self._completed, self._needed)
        if self.gate is not None:
            self.gate.decided(entry)

    def _check_complete(self, entry: Decision) -> None:
        n = entry.data["checkpoint_id"]
        once = n in self._claimed and n not in self._completed and n not in self._aborted
        self._demand("one end per id", once, f"{n} completed out of turn")
        if n in self._claimed:
            same = self._claimed[n].run_id == entry.run_id and self._claimed[n].generation == entry.generation
            self._demand("one attempt", same, f"{n} was claimed by another run than completed it")
        self._completed[n] = entry
        sound = self.rotten is None or self._is_rejected(self.rotten)
        self._demand("damage", sound, f"{n} completed while {self.rotten} of its origin was damaged")
        path = f"{entry.data['path']}/_metadata"
        data = self._disk.objects.get(path)
        self._demand("durable", data is not None, f"{n} is complete without {path}")
        if data is None:
            return
        metadata = decode_metadata(data, where=path)
        whole = (metadata.checkpoint_id, metadata.run_id, metadata.generation) == (n, entry.run_id, entry.generation)
        self._demand("one attempt", whole, f"the metadata of {n} is of run {metadata.run_id}")
        for handle in metadata.handles():
            if handle.path is None:
                continue
            held = self._disk.objects.get(f"{entry.data['path']}/{handle.path}")
            good = held is not None and hashlib.sha256(held).hexdigest() == handle.sha256
            self._demand("durable", good, f"{n} is complete, but {handle.path} is missing or damaged")
            named = f"-g{entry.generation}-{entry.run_id}-" in handle.path
            self._demand("one attempt", named, f"{n} holds {handle.path} of another run")
        self._dropped[n] = self._dropped_in(entry.run_id) | _partly_finished(metadata)
        self._check_shared(n, metadata)
        self._check_splits(entry.run_id, n, metadata)
        if self._exactly_once and not self.violations:
            in_flight = self._in_flight(metadata, entry.data["path"])
            if self._workload.has_delays:
                self.waiting[n] = in_flight
            self._check_cut(entry.run_id, n, in_flight)

    def _is_rejected(self, path: str) -> bool:
        """Return whether an object belongs to a snapshot that a verdict has ruled out: no run begins with it."""
        named = (n for n, done in self._completed.items() if path.startswith(f"{done.data['path']}/"))
        snapshot = next(named, None)
        rejected = [d.data["checkpoint_id"] for d in self.decisions if d.kind == "reject"]
        return any(n <= snapshot for n in rejected) if snapshot is not None else False

    def _dropped_in(self, run_id: str) -> frozenset[str]:
        """Return the operators of which some keys have no state in a run, because of the snapshot that it restored."""
        for entry in self.decisions:
            if (
                entry.kind == "status"
                and entry.data.get("run_id") == run_id
                and (path := entry.data.get("restored_from"))
            ):
                return next(self._dropped[n] for n, done in self._completed.items() if done.data["path"] == path)
        return frozenset()

    def _check_splits(self, run_id: str, n: int, metadata: SnapshotMetadata) -> None:
        """A split that a source discovers while the job runs is in one place: with a reader, waiting, or not found."""
        cut = self.cuts.setdefault((run_id, n), Cut())
        for uid, part in metadata.enumerators.items():
            source = self._workload.graph.by_uid(uid).source
            assert isinstance(source, CountingSource)
            waiting = [int(split["data"]["split"]) for split in part["waiting"]]
            for number in [*waiting, *range(int(part["state"] or 0), source.splits)]:
                place = (source.src, number)
                self._demand("splits", place not in cut.positions, f"{n} holds split {place} with a reader and without")
                cut.positions[place] = 0

    def _check_shared(self, n: int, metadata: SnapshotMetadata) -> None:
        """Every file of blobs is there with what the snapshot uses of it, whoever wrote it."""
        savepoint = metadata.kind in SAVEPOINT_KINDS
        for file in (file for handle in metadata.handles() for file in handle.files if file.name is not None):
            self._demand("self-contained", file.shared is not savepoint, f"{n} has {file.name} in the wrong place")
            folder = self._layout.shared if file.shared else self._completed[n].data["path"]
            held = self._disk.objects.get(f"{folder}/{file.name}", b"")
            for blob in file.blobs:
                data = held[blob.offset : blob.offset + blob.size_bytes]
                good = matches(data, blob.checksum)
                self._demand("shared", good, f"{n} is complete, but {blob.id} in {file.name} is missing or damaged")
        self._shared[n] = metadata.shared_files()

    def _in_flight(self, metadata: SnapshotMetadata, folder: str) -> dict[str, list[Row]]:
        """Operator uid -> rows that the snapshot's files hold as the state of its input channels, or in a delay."""
        rows: dict[str, list[Row]] = {}
        for operator in metadata.operators:
            for state in operator.subtasks:
                handle = state.handle
                waits = self._workload.is_delay(operator.uid)
                if handle is None or not (waits or "channel" in (handle.kinds or ())):
                    continue
                data = handle.inline if handle.path is None else self._disk.objects[f"{folder}/{handle.path}"]
                assert data is not None, "a handle is a file or inline"
                found = rows_in_flight(data) + (rows_delayed(data) if waits else [])
                rows.setdefault(operator.uid, []).extend(found)
        return rows

    def _check_cut(self, run_id: str, n: int, in_flight: Mapping[str, Sequence[Row]]) -> None:
        """Every tally holds exactly what the sources had sent before the barrier, less what the snapshot holds in
        flight to it."""
        cut = self.cuts.get((run_id, n))
        if cut is None:
            return
        read = self._workload.everything(cut.positions)
        parallelism = self.parallelism_of[run_id]
        owner = {k: o for k, (_, o) in owners(parallelism, self._max_parallelism).items()}
        for node in self._workload.graph.nodes:
            present = {subtask for uid, subtask in cut.tallies if uid == node.uid}
            if not present:
                continue
            held: dict[Any, tuple[int, int]] = {}
            for subtask in present:
                held.update(cut.tallies[node.uid, subtask])
            for key, seqs in self._workload.still_to_come(node.node_id, in_flight).items():
                last, count = held.get(key, (-1, 0))
                held[key] = (max(last, *seqs), count + len(seqs))
                self.evaluated["consistent cut with rows in flight"] += 1
            due = self._workload.tally_at(node.node_id, read)
            due = {k: v for k, v in due.items() if owner[k[2]] in present}
            some = node.uid in self._dropped_in(run_id)
            wrong = [k for k in (held.keys() if some else held.keys() | due.keys()) if held.get(k) != due.get(k)]
            what = f"snapshot {n}, {node.uid}: " + ", ".join(f"{k}: {held.get(k)} not {due.get(k)}" for k in wrong[:3])
            self._demand("consistent cut", not wrong, what)

    def _check_committed(self, entry: Decision) -> None:
        n = entry.data["checkpoint_id"]
        self._demand("commit implies completed", n in self._completed, f"{n} committed, not completed")

    # ------------------------------------------------------------ commands

    def accepted(self, command: Command) -> None:
        """A driver is about to carry a command out."""
        _, expired, withdrawn = self.commands[command.command_id]
        self._demand("commands", not expired and not withdrawn, f"{command} was accepted")

    def _answered(self, path: str, by: str) -> None:
        """Results are create-only: this is the first and only one."""
        result = decode(self._disk.objects[path], CommandResult, path)
        command, expired, withdrawn = self.commands[result.command_id]
        self._demand("commands", not withdrawn, f"{command} was withdrawn and answered {result.code}")
        # An expired stop or cancel may find that what it asked for has come about without it.
        done = expired and result.ok and command.verb not in ("stop", "cancel")
        self._demand("commands", not done, f"{command} had expired and was answered {result.code}")
        if result.code == "superseded":
            reigning = by.removeprefix("driver-").partition(".")[0]
            self._demand("commands", str(command.spec) != reigning, f"{command} was superseded by its own submission")
        if command.verb == "stop":
            self._stops.answered(command, result)
        if not result.ok:
            return
        match command.verb:
            case "checkpoint" | "savepoint":
                n = result.data["checkpoint_id"]
                good = n in self._completed and self._completed[n].data["kind"] == command.verb
                self._demand("answers", good, f"{command} was answered with {n}")
            case "commit" | "reject":
                n = result.data["checkpoint_id"]
                gate = self.gate
                good = gate is not None and n in (
                    gate.permitted if command.verb == "commit" else gate.rejected | gate.quarantined.keys()
                )
                self._demand("answers", good, f"{command}: answered with {n}")
            case "stop":
                n = result.data["checkpoint_id"]
                good = n in self._completed and self._completed[n].data["kind"] == "stop-savepoint"
                ends = [d.get("stop") or {} for d in self._statuses("STOPPED", command.spec)]
                good = good and any(end.get("checkpoint_id") == n for end in ends)
                self._demand("answers", good, f"{command}: answered with {n}")
            case "cancel":
                cancelled = bool(self._statuses("CANCELED", command.spec))
                self._demand("answers", cancelled, f"{command}: the job is not cancelled")

    def _statuses(self, status: str, spec: int) -> list[Mapping[str, Any]]:
        """What the log says where submission `spec` came to `status`, whatever a later one has said since."""
        found: list[Mapping[str, Any]] = []
        reigning = 0
        for decision in self.decisions:
            if decision.kind == "fence":
                reigning = decision.data["spec"]
            elif decision.kind == "status" and reigning == spec and decision.data["status"] == status:
                found.append(decision.data)
        return found

    # ------------------------------------------------------------ effects

    def published(self, transaction: str) -> None:
        """A transaction became visible."""
        made = parse_transaction_id(transaction)
        covered = any(
            n >= made.checkpoint_id and (entry.run_id, entry.generation) == (made.run_id, made.generation)
            for n, entry in self._completed.items()
        )
        self._demand("commit implies completed", covered, f"{transaction} was published without a completion")
        self.timelines.published(transaction)
        if self.gate is not None:
            self.gate.published(transaction, made)

    def _deleted(self, path: str, by: str) -> None:
        if path.startswith(f"{self._layout.shared}/"):
            needed = self._needed()
            name = path.rpartition("/")[2]
            users = [n for n, e in self._completed.items() if e.data["path"] in needed and name in self._shared[n]]
            self._demand("shared", not users, f"{by} deleted {path}, which {users} need")
            return
        if path.startswith(f"{self._layout.savepoints}/"):
            restores = [spec.restore for spec in self._specs if spec.restore is not None]
            given_up = {restore.path for restore in restores if restore.claim_mode == "claim"}
            reigning = self.decisions[-1].generation
            ends = {
                *self._completed,
                *(n for n, e in self._claimed.items() if e.generation == reigning),
            } - self._aborted
            given_up |= {e.data["path"] for n, e in self._claimed.items() if n not in ends}
            held = path.rpartition("/")[0] not in given_up
            self._demand("savepoints", not held, f"{by} deleted {path}, which nobody claimed, and may complete or has")
        elif "/checkpoints/" not in path:
            return
        folder = "/".join(path.split("/")[:3])
        self._demand("collection", folder not in self._needed(), f"{by} deleted {path}, which is needed")

    def _needed(self) -> set[str]:
        """Folders that may not be deleted now."""
        gone = self.timelines.unreachable | (self.gate.rejected if self.gate is not None else set())
        first = self.timelines.back_to
        reached = [(n, e) for n, e in self._completed.items() if n >= first and n not in gone]
        points = [e for _, e in reached if e.data["kind"] in RECOVERY_KINDS]
        stops = [i for i, point in enumerate(points) if point.data["kind"] == "stop-savepoint"]
        since_stop = points[max(stops, default=0) :]  # nothing in front of it is needed any more
        needed = {point.data["path"] for point in since_stop[-self._retained :]}
        generation = self.decisions[-1].generation
        needed |= {
            e.data["path"]
            for n, e in self._claimed.items()
            if e.generation == generation and n not in self._completed and n not in self._aborted
        }
        if self.gate is not None:
            needed |= self.gate.pinned()
        return needed

    def watermark(self, run_id: str, channel_id: int, time_us: int) -> None:
        """A watermark was sent."""
        last_us = self._watermarks.get((run_id, channel_id), -(2**63) - 1)
        self._demand("watermarks", time_us > last_us, f"channel {channel_id}: {time_us} after {last_us}")
        self._watermarks[run_id, channel_id] = time_us

    def stop_taken(self, command_id: str, generation: int) -> None:
        """A run of this generation takes a stop."""
        own = (n for n, e in self._claimed.items() if e.generation == generation and e.data["kind"] == "final")
        pending = [n for n in own if n not in self._completed and n not in self._aborted]
        self._stops.taken(command_id, generation, final_pending=bool(pending))

    def closed(self, run_id: str, subtask: tuple[int, int], unwritten: Collection[int]) -> None:
        """A subtask has closed; `unwritten`: snapshots of which it has taken a part that is neither durable nor
        aborted."""
        self._demand("closed", not unwritten, f"{subtask} of {run_id} closed while it wrote its part of {unwritten}")

    # ------------------------------------------------------------ the end

    def output(
        self,
        externals: Mapping[str, External],
        read: Mapping[tuple[int, int], int],
        *,
        fired: bool,
        whole: bool = True,
        at: int = 0,
    ) -> None:
        """What every sink shows is what a run without failures shows after exactly `read`. `fired`: every window has
        fired; else those that have are right. `whole`: False: rows of `read` may be missing. `at`: the snapshot that
        `read` is of: what waits in it for the clock is missing."""
        rows, windows = self._workload.expected(self._workload.everything(read))
        for uid, external in externals.items():
            shown: Counter[Row] = Counter()
            for batches in [*external.committed.values(), *self._put_away(external)]:
                for batch in batches:
                    shown.update(rows_of(batch))
            plain = Counter({row: times for row, times in shown.items() if row[0] >= 0})
            of_windows = Counter({row: times for row, times in shown.items() if row[0] < 0})
            due = rows[uid] - self._workload.still_to_show(uid, self.waiting.get(at, {}))
            complete = whole and (fired or self._exactly_once or not self._workload.has_delays)
            self._compare(f"output of {uid}", plain, due, complete=complete)
            self._compare(f"windows of {uid}", of_windows, windows[uid], complete=fired)
            twice = [t for t, times in external.publications.items() if times != (t in external.committed)]
            self._demand("committed once", not twice, f"{uid}: {twice[:2]}")
            # A zombie of an earlier run may stage after the last run has cleaned up; only the next start finds that.
            left = sorted(t for t in external.staged if external.staged_ms[t] < self.last_run_ms and not self._waits(t))
            self._demand("nothing left staged", not left, f"{uid}: {left[:2]} of {len(left)}")

    def _put_away(self, external: External) -> Iterator[Sequence[pa.RecordBatch]]:
        """What is shown to nobody, and lies in quarantine instead."""
        for transaction, batches in external.quarantined.items():
            if self.gate is not None and self.gate.is_missing(parse_transaction_id(transaction)):
                yield batches

    def put_away(self, transaction: str) -> None:
        """A transaction went to quarantine."""
        assert self.gate is not None, "a quarantine without a gate"
        self.gate.put_away(transaction, parse_transaction_id(transaction))

    def nothing_shown(self, externals: Mapping[str, External]) -> None:
        """No sink shows anything: nothing was approved."""
        for uid, external in externals.items():
            self._demand("nothing unapproved", not external.committed, f"{uid} shows {list(external.committed)[:2]}")

    def _waits(self, transaction: str) -> bool:
        return self.gate is not None and self.gate.may_be_staged(parse_transaction_id(transaction))

    def _compare(self, what: str, shown: Counter[Row], due: Counter[Row], *, complete: bool) -> None:
        lost, extra = due - shown, shown - due
        if not self._two_phase:
            extra = Counter()  # rows of runs that were rolled back
        if not self._exactly_once:
            # Repeated rows, also from beyond the last snapshot, and windows that count them are what this mode allows.
            extra = Counter()
            lost = Counter() if any(row[0] < 0 for row in due) else lost
        if complete:
            self._demand("output", not lost, f"{what}: {sum(lost.values())} rows lost, such as {list(lost)[:2]}")
        self._demand("output", not extra, f"{what}: {sum(extra.values())} rows too many, such as {list(extra)[:2]}")


def _partly_finished(metadata: SnapshotMetadata) -> frozenset[str]:
    """Return the operators of which some subtasks, but not all, had finished: a restore drops their state (S6.2)."""
    ended = {operator.uid: {state.finished for state in operator.subtasks} for operator in metadata.operators}
    return frozenset(uid for uid, finished in ended.items() if len(finished) > 1)
