"""The messages between the driver and the slots of a run, as frozen dataclasses.

`protocol_codec` writes and reads them; `channel.tcp.handshake.WIRE_VERSION` is their version, which both sides compare
before the first message. A field that is added, changed or removed needs a new wire version: driver and slots always
run the same release, so no reader accepts an older one.

Messages of a subtask to the coordinator are at the same time the coordinator's events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tidegate.channel.elements import CheckpointKind, StopMode
from tidegate.jobs.history.verdicts import WithheldRange

Subtask: TypeAlias = tuple[int, int]
"""(chain id, index)."""

DeclineCode = Literal["failed", "subtask_finished", "alignment_aborted"]
"""Why a subtask takes no part in a snapshot: its part could not be taken or written; it has finished (S1.5); a newer
checkpoint or a cancel marker ended its alignment (S3.4)."""

# ---------------------------------------------------------------- driver to slot


@dataclass(frozen=True, slots=True)
class Peer:
    """Where slot `slot` listens for data connections."""

    slot: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Deploy:
    """Restore and open the channels of the slot's subtasks; answered by Deployed. The first message to a slot.

    Attributes:
        peers: every slot of the run.
        splits: source uid -> splits of the slot's subtask, as JSON (S4.3).
        restored: `coordinator.recovery.restore.Restore.for_slot`; None: a fresh start.
        wait_for_final: subtasks that have ended wait for a final snapshot (S7.3).
    """

    peers: tuple[Peer, ...]
    splits: Mapping[str, Sequence[Mapping[str, Any]]]
    restored: Mapping[str, Any] | None
    wait_for_final: bool


@dataclass(frozen=True, slots=True)
class Start:
    """All slots are deployed: connect to the peers and run."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Start a snapshot.

    Attributes:
        stop: for a stop-savepoint.
        path: location of the snapshot.
        triggered_ms: milliseconds since the epoch, by the driver's clock.
        subtasks: those that start it; the barrier comes to all others through their inputs.
    """

    checkpoint_id: int
    kind: CheckpointKind
    stop: StopMode | None
    path: str
    triggered_ms: int
    subtasks: tuple[Subtask, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """The snapshot will never complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Complete:
    """The snapshot is complete, and permits the commit of what is <= it. `log_number`: the entry that says so."""

    checkpoint_id: int
    generation: int
    log_number: int


@dataclass(frozen=True, slots=True)
class Durable:
    """Behind a commit gate: the snapshot is complete, which permits no commit. `last`: the job ends with it (S7.8)."""

    checkpoint_id: int
    last: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Behind a commit gate: commit what is <= the checkpoint. `log_number`: the entry that permits it (S7.8)."""

    checkpoint_id: int
    generation: int
    log_number: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Move the data of rejected transactions to the folder `path`, and never commit it (S7.8)."""

    path: str
    withheld: WithheldRange


@dataclass(frozen=True, slots=True)
class PauseSources:
    """Stop or resume reading sources, since too much waits for a verdict (S7.8)."""

    paused: bool


@dataclass(frozen=True, slots=True)
class GroupWatermark:
    """How far an alignment group is (S4.4).

    Attributes:
        low_us: its least watermark, microseconds since the epoch; MAX_WATERMARK: nobody is waited for.
        of: the subtask that has it; None: nobody.
        others_us: the least of all other subtasks. It decides for `of`, which must not wait for itself: what the driver
            knows of it is always a little old.
    """

    low_us: int
    of: Subtask | None
    others_us: int


@dataclass(frozen=True, slots=True)
class AlignSources:
    """The groups of sources whose watermark has changed, by name."""

    groups: Mapping[str, GroupWatermark]


@dataclass(frozen=True, slots=True)
class LetFinish:
    """Subtasks that have ended finish now: no final snapshot is to come (S7.3)."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The run is over. The last message to a slot; it may come at any time, and comes once."""


DriverMessage: TypeAlias = (
    Deploy
    | Start
    | Trigger
    | Abort
    | Complete
    | Durable
    | Commit
    | Quarantine
    | PauseSources
    | AlignSources
    | LetFinish
    | Cancel
)

# ---------------------------------------------------------------- slot to driver


@dataclass(frozen=True, slots=True)
class Hello:
    """The slot has built the pipeline and listens for data connections. The first message of a slot.

    Attributes:
        pid, node, python: process id, host name and Python version; for people.
    """

    host: str
    port: int
    pid: int
    node: str
    python: str


@dataclass(frozen=True, slots=True)
class Deployed:
    """The slot's subtasks are restored and their channels open."""


@dataclass(frozen=True, slots=True)
class SubtaskRunning:
    """The subtask has been restored and runs."""

    subtask: Subtask


@dataclass(frozen=True, slots=True)
class SubtaskEndedData:
    """The subtask has sent EndOfData and waits for a snapshot that starts after that (S7.3). `natural`: no stop ended
    the data."""

    subtask: Subtask
    natural: bool


@dataclass(frozen=True, slots=True)
class SubtaskFinished:
    """The subtask has closed and sent EndOfPartition. `counters`: of a source, by name, over all runs."""

    subtask: Subtask
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A subtask's part of a snapshot is durable.

    Attributes:
        operators: uid -> state handle as JSON; operators without state are left out.
        metrics: sync_ms, async_ms, alignment_ms, start_delay_ms, bytes, alignment_bytes.
        finished: the subtask had processed all its data when it took its part (S6.2).
        counters: of a source that has processed all its data, by name, over all runs.
    """

    subtask: Subtask
    checkpoint_id: int
    run_id: str
    operators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    finished: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declined:
    """A subtask takes no part in a snapshot."""

    subtask: Subtask
    checkpoint_id: int
    run_id: str
    reason: str
    code: DeclineCode = "failed"


@dataclass(frozen=True, slots=True)
class SubtaskCommitted:
    """The subtask's sinks have committed every transaction <= `checkpoint_id`."""

    subtask: Subtask
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SourceWatermark:
    """The watermark of a subtask with a source in an alignment group. `idle`: it holds nobody back (S4.4)."""

    subtask: Subtask
    group: str
    watermark_us: int
    idle: bool


@dataclass(frozen=True, slots=True)
class SourceWatermarks:
    """Watermarks that have changed since the slot's last such message."""

    sources: tuple[SourceWatermark, ...]


@dataclass(frozen=True, slots=True)
class SourceMetrics:
    """How far a source is.

    Attributes:
        records: emitted by this subtask, over all runs.
        played_all: nothing more is there now, of an unbounded source; ever, of a bounded one.
        details: what else the reader reports, by name; for people.
        counters: such as `bad_records`, by name, over all runs.
    """

    uid: str
    records: int
    played_all: bool
    details: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubtaskMetrics:
    """What a subtask has done in this run.

    Attributes:
        rows_in, rows_out: of the chain.
        watermark_us: microseconds since the epoch.
        at_work: uids of operators that have not finished what they were asked to do.
        source: of a chain that begins with a source.
        counters: operator uid -> name -> count.
    """

    subtask: Subtask
    rows_in: int
    rows_out: int
    watermark_us: int
    at_work: tuple[str, ...] = ()
    source: SourceMetrics | None = None
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlotMetrics:
    """What a slot has done in this run. `progress`: rounds of its loop in which something was done."""

    progress: int
    subtasks: tuple[SubtaskMetrics, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The slot's process lives.

    Attributes:
        resident_bytes: memory of the process.
        rounds: of the slot's loop, which hangs when they stand still; None: the loop does not run.
        metrics: None: the loop does not run, or they could not be read.
    """

    resident_bytes: int
    rounds: int | None = None
    metrics: SlotMetrics | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The run must be given up.

    Attributes:
        message: the root cause.
        operator, subtask: uid and index, where they are known.
        traceback: of the user's code, where it has one.
        code: of the error; decides whether a restart may cure it (S9.1).
        secondary: probably the consequence of another slot's failure.
    """

    message: str
    operator: str | None = None
    subtask: int | None = None
    traceback: str | None = None
    code: str = ""
    secondary: bool = False


@dataclass(frozen=True, slots=True)
class Over:
    """Every subtask of the slot has finished, and what it wrote is durable. The last message of a slot."""


SubtaskEvent: TypeAlias = (
    SubtaskRunning | SubtaskEndedData | SubtaskFinished | Acknowledged | Declined | SubtaskCommitted
)
"""Messages of one subtask, which are events of the coordinator."""

SlotMessage: TypeAlias = Hello | Deployed | SubtaskEvent | SourceWatermarks | Heartbeat | Failed | Over
