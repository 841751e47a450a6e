"""The messages between the driver and the slots of a run, as frozen dataclasses.

`protocol_codec` writes and reads them. Their version is `channel.tcp.handshake.WIRE_VERSION`, which both sides compare
before the first message. A field that is added, changed or removed needs a new wire version. Driver and slots always
run the same release, so no reader accepts an older version.

Messages of a subtask to the coordinator are also the coordinator's events.
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
    """The address where slot `slot` listens for data connections."""

    slot: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Deploy:
    """Restore the slot's subtasks and open their channels; answered by Deployed. The first message to a slot.

    Attributes:
        peers: every slot of the run.
        splits: source uid -> splits of the slot's subtask, as JSON (S4.3).
        restored: result of `coordinator.recovery.restore.RestoreState.for_slot`; None: a fresh start.
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
        stop: mode of the stop, for a stop-savepoint.
        path: location of the snapshot.
        triggered_ms: milliseconds since the epoch, by the driver's clock.
        subtasks: subtasks that start it; all others receive the barrier through their inputs.
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
    """The snapshot is complete, which permits the commit of all checkpoints up to it.

    `log_number`: number of its "complete" entry.
    """

    checkpoint_id: int
    generation: int
    log_number: int


@dataclass(frozen=True, slots=True)
class Durable:
    """With a commit gate: the snapshot is complete, which permits no commit. `last`: the job ends with it (S7.8)."""

    checkpoint_id: int
    last: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """With a commit gate: commit all checkpoints up to this one. `log_number`: the entry that permits it (S7.8)."""

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
    """Pause or resume reading sources, because too many checkpoints wait for a verdict (S7.8)."""

    paused: bool


@dataclass(frozen=True, slots=True)
class GroupWatermark:
    """The progress of an alignment group (S4.4).

    Attributes:
        low_us: its lowest watermark, microseconds since the epoch; MAX_WATERMARK: no subtask needs to wait.
        of: the subtask with that watermark; None: none.
        others_us: the lowest watermark of all other subtasks. `of` uses this value, because it must not wait for
            itself: the driver's information about it is always slightly old.
    """

    low_us: int
    of: Subtask | None
    others_us: int


@dataclass(frozen=True, slots=True)
class AlignSources:
    """The groups of sources whose watermark has changed, by name."""

    groups: Mapping[str, GroupWatermark]


@dataclass(frozen=True, slots=True)
class AssignSplits:
    """Give splits to a reader of a source that discovers them while the job runs (S4.3).

    Attributes:
        splits: the splits, as JSON.
        last: the reader gets no splits after these.
    """

    subtask: Subtask
    splits: tuple[Mapping[str, Any], ...]
    last: bool


@dataclass(frozen=True, slots=True)
class LetFinish:
    """Subtasks that have ended finish now, because no final snapshot is coming (S7.3)."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The run is over. The last message to a slot. It may come at any time, once."""


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
    | AssignSplits
    | LetFinish
    | Cancel
)

# ---------------------------------------------------------------- slot to driver


@dataclass(frozen=True, slots=True)
class Hello:
    """The slot has built the pipeline and listens for data connections. The first message of a slot.

    Attributes:
        pid, node, python: process id, host name and Python version, for display.
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
    """The subtask has been restored and is running."""

    subtask: Subtask


@dataclass(frozen=True, slots=True)
class SubtaskEndedData:
    """The subtask has sent EndOfData and waits for a snapshot that starts after that (S7.3).

    `natural`: the data ended without a stop.
    """

    subtask: Subtask
    natural: bool


@dataclass(frozen=True, slots=True)
class SubtaskFinished:
    """The subtask has closed and sent EndOfPartition. `counters`: counts of a source, by name, over all runs."""

    subtask: Subtask
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A subtask's part of a snapshot is durable.

    Attributes:
        operators: uid -> state handle as JSON; operators without state are left out.
        metrics: sync_ms, async_ms, alignment_ms, start_delay_ms, bytes, alignment_bytes.
        finished: the subtask had processed all its data when it took its part (S6.2).
        counters: counts of a source that has processed all its data, by name, over all runs.
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
    """The subtask's sinks have committed every transaction up to `checkpoint_id`."""

    subtask: Subtask
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SourceWatermark:
    """The watermark of a subtask with a source in an alignment group. `idle`: it holds no other source back (S4.4)."""

    subtask: Subtask
    group: str
    watermark_us: int
    idle: bool


@dataclass(frozen=True, slots=True)
class SourceWatermarks:
    """Watermarks that have changed since the slot's last message of this type."""

    sources: tuple[SourceWatermark, ...]


@dataclass(frozen=True, slots=True)
class SplitsHeld:
    """The splits of a reader whose source discovers splits while the job runs (S4.3). Sent when they change.

    Attributes:
        open: splits that are not read to their end.
        received: splits that this run has assigned to the reader so far.
        passed: the newest snapshot whose barrier has passed the reader.
        aborted: the newest aborted snapshot that the subtask knows. It reads on after this abort.
    """

    subtask: Subtask
    open: int
    received: int
    passed: int
    aborted: int


@dataclass(frozen=True, slots=True)
class SourceMetrics:
    """The progress of a source.

    Attributes:
        records: records that this subtask has emitted, over all runs.
        played_all: all rows are emitted; an unbounded source may still receive more.
        details: other values that the reader reports, by name, for display.
        counters: counts such as `bad_records`, by name, over all runs.
    """

    uid: str
    records: int
    played_all: bool
    details: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubtaskMetrics:
    """The work of a subtask in this run.

    Attributes:
        rows_in, rows_out: rows into and out of the chain.
        watermark_us: microseconds since the epoch.
        at_work: uids of operators that have not finished the requested work.
        source: metrics of the source, if the chain begins with one.
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
    """The work of a slot in this run. `progress`: rounds of its loop in which something was done."""

    progress: int
    subtasks: tuple[SubtaskMetrics, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The slot's process is alive.

    Attributes:
        resident_bytes: memory of the process.
        rounds: rounds of the slot's loop. The loop hangs when they do not increase. None: the loop is not running.
        metrics: None: the loop is not running, or the metrics could not be read.
    """

    resident_bytes: int
    rounds: int | None = None
    metrics: SlotMetrics | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The run must be abandoned.

    Attributes:
        message: the root cause.
        operator, subtask: uid and index, if known.
        traceback: traceback of the user's code, if there is one.
        code: code of the error, which decides whether a restart may help (S9.1).
        secondary: the failure is probably a consequence of another slot's failure.
    """

    message: str
    operator: str | None = None
    subtask: int | None = None
    traceback: str | None = None
    code: str = ""
    secondary: bool = False


@dataclass(frozen=True, slots=True)
class Over:
    """Every subtask of the slot has finished, and everything it wrote is durable. The last message of a slot."""


SubtaskEvent: TypeAlias = (
    SubtaskRunning | SubtaskEndedData | SubtaskFinished | Acknowledged | Declined | SubtaskCommitted
)
"""Messages of one subtask, which are events of the coordinator."""

SlotMessage: TypeAlias = Hello | Deployed | SubtaskEvent | SourceWatermarks | SplitsHeld | Heartbeat | Failed | Over
