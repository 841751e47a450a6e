"""`JobOptions`: all settings of a job. Python, Airflow, the command line and the docs use the same names."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from tidegate.errors import OptionError
from tidegate.jobs.option_types import (
    AUTO,
    AutoCount,
    AutoDuration,
    Choice,
    Count,
    Duration,
    Factor,
    Flag,
    OptionalDuration,
    OptionalSize,
    OptionalText,
    Size,
)
from tidegate.log_format import LogFormat
from tidegate.units import format_duration, format_size, parse_duration, parse_size

__all__ = ["JobOptions", "format_duration", "format_size", "parse_duration", "parse_size"]

MAX_KEY_GROUPS = 32_768
"""Upper limit of `max_parallelism`. Key groups are sent as uint16, which could hold twice as many."""

STATE_MEMORY_DIVISOR = 4
"""Part of `slot_memory` that RocksDB may use, as a divisor. Python with Arrow and numba needs about 300 MiB itself."""

MEMORY_STREAM_BYTES = 6 * 2**20
"""With state_backend="memory", state up to this size is stored in the metadata. Its snapshots have at most 5 MiB."""

DEFAULT_ATTEMPTS = 3
"""`restart_attempts` when it is not set and restarts are limited."""

ExecutionMode = Literal["streaming", "batch"]
CheckpointMode = Literal["exactly_once", "at_least_once", "off"]
Retention = Literal["keep", "delete"]
Commit = Literal["automatic", "on_request"]
ProcessingTimeOnEnd = Literal["fire", "drop"]
OnOwnerLost = Literal["keep_running", "savepoint_then_stop", "cancel"]
StateBackend = Literal["heap", "memory", "rocksdb"]
SnapshotCompression = Literal["none", "lz4", "zstd"]
Restart = Literal["fixed_delay", "exponential_delay", "failure_rate", "none"]


@dataclass(frozen=True)
class JobOptions:
    """Settings of one submission.

    Durations are `timedelta` or text such as "10 min", sizes are text such as "4 MiB". Bare numbers are refused. A
    wrong value raises OptionError.

    Attributes:
        parallelism: subtasks per operator, and number of slots; 1 to `max_parallelism`.
        max_parallelism: number of key groups; it never changes in the life of a job (S5.1).
        slot_memory: resident memory that a slot may use.
        state_backend: storage of keyed state (S5.2). "heap": columns in the slot's memory, copied on write. "memory":
            the same for small state; snapshots are stored in the metadata, with a size limit. "rocksdb": files on local
            disk; the state may be several times larger than memory.
        state_memory: part of `slot_memory` that all operators of a slot with "rocksdb" state may use together; None: a
            quarter.
        execution_mode: "streaming", or "batch". Batch runs bounded input as stages of Spark, without checkpoints.
            Options about checkpoints, restarts from them and savepoints have no effect then (S8.1, docs/modes.md).
        allow_mode_dependent: in batch mode, run operators whose rows may differ from streaming mode; the clock then
            stands still at the start of the run (S8.2).
        checkpoint_mode: how often a record counts in the state after a restart: "exactly_once" or "at_least_once"
            (S3.2, S3.3). "off": no snapshots; each request for one is refused, and after a failure the job starts from
            the beginning.
        unaligned_checkpoints: barriers of checkpoints overtake queued records, which become part of the snapshot. A
            checkpoint then does not wait for slow operators, but is larger. Savepoints and the final snapshot align,
            and so do operators with a forward or broadcast input (S3.7).
        aligned_checkpoint_timeout: with `unaligned_checkpoints`: how long an operator aligns, from the first barrier,
            before barriers overtake.
        checkpoint_interval: time between periodic checkpoints; None or "off": no periodic checkpoints (S1.1). If it is
            not set, the driver uses 1 min for a streaming pipeline with an unbounded source, and none for others.
        min_pause_between_checkpoints: shortest time from a completion to the next periodic trigger (S1.2).
        checkpoint_timeout: age at which a pending checkpoint is aborted (S1.4).
        max_concurrent_checkpoints: most checkpoints pending at the same time (S1.2).
        max_queued_requests: most checkpoint requests that may wait (S1.2).
        tolerable_checkpoint_failures: failures in a row before the job fails over (S2.2).
        retained_checkpoints: number of newest completed checkpoints to keep (S2.3).
        retention: "keep" or "delete" checkpoints when the job is FINISHED or CANCELED. After any other end they are
            kept. Savepoints are always kept (S2.3).
        state_size_threshold: state streams smaller than this are stored in the snapshot's metadata (S5.4).
        snapshot_compression: compression of large state. Files of "rocksdb" are not affected. "none": as fast as a
            local disk. "lz4", "zstd": fewer bytes for more CPU time. A restore reads all of them.
        local_recovery: keep state files of checkpoints also on the slot's own disk. A restart on the same machine reads
            intact files there (S5.4).
        restart_strategy: "exponential_delay", "fixed_delay", "failure_rate", or "none": the first failure ends the job
            (S9.1). A wait for slots uses up no restart, and does not count in the times of these options. A failure
            that a restart cannot fix ends the job at once with every strategy.
        restart_attempts: restarts since the last completed checkpoint before the job fails; None: no limit. With
            "failure_rate": failures in any `restart_failure_interval`, whatever completes meanwhile. If it is not set:
            no limit with "exponential_delay" in streaming mode, else 3.
        restart_delay: pause before a restart; with "exponential_delay" the first pause.
        restart_max_delay: longest pause with "exponential_delay".
        restart_backoff_multiplier: with "exponential_delay", factor from one pause to the next, varied by up to a
            tenth; 1 or more.
        restart_reset_after: with "exponential_delay": after a run of this length, pauses start at `restart_delay`
            again, and all attempts are available again.
        restart_failure_interval: with "failure_rate": the period that may have `restart_attempts` failures.
        slots_timeout: how long to wait for slots.
        idle_after: a source without records for this long no longer holds the watermark back; None: it always does
            (S4.4).
        channel_capacity: bytes buffered per channel.
        heartbeat_interval: time between heartbeats of slots and driver.
        heartbeat_timeout: time without a heartbeat after which a slot or driver counts as dead; longer than
            `heartbeat_interval`.
        store_timeout: how long the driver repeats a write to the decision log while the store does not report whether
            it succeeded. Meanwhile nothing is decided: no checkpoint completes, nothing is committed, no command is
            answered. Then the driver ends with exit code 14 (S9.2).
        slot_progress_timeout: if a user function or connector in a live slot does not return for this long, the slot
            counts as hung, and the run restarts; None: never.
        stop_timeout: timeout of a stop that does not name one, from the moment the driver accepts the command to the
            end of the job. The command's `on_timeout` says what happens then (S7.7).
        sigterm_timeout: timeout of a graceful end after SIGTERM.
        commit: "automatic": a completed checkpoint is committed (S7.4). "on_request": it is committed only after an
            approval, which may come much later (S7.8).
        max_uncommitted_checkpoints: with commit="on_request": most completed checkpoints that may wait for a verdict.
            While so many wait, sources pause and no periodic checkpoint starts.
        processing_time_on_end: what happens to open processing-time windows when their input ends, by itself or by a
            stop with drain. "fire": they fire once, early. "drop": they are dropped, counted as
            `processing_time_dropped`, and logged. A stop without drain keeps them in the savepoint (S7.6).
        savepoint_directory: absolute folder or URL for savepoints; None: below the job directory.
        on_owner_lost: what the job does when its owner stops renewing `owner.json`. An owner is an Airflow task or
            trigger that has begun to renew it. "keep_running"; "savepoint_then_stop": the job stops with a savepoint,
            as after a stop command, and repeats a failed stop; "cancel".
        owner_timeout: how long `owner.json` may stay unchanged, by the driver's own clock, before the owner is lost.
        log_format: format of the driver's and slots' log lines. "text": the message, then key=value. "json": one JSON
            object per line.
    """

    parallelism: Count = Count(1, 1, MAX_KEY_GROUPS)
    max_parallelism: Count = Count(128, 1, MAX_KEY_GROUPS)
    slot_memory: Size = Size("1 GiB", least="128 MiB")
    state_backend: Choice[StateBackend] = Choice("heap", "memory", "rocksdb")
    state_memory: OptionalSize = OptionalSize(None, least="16 MiB")
    execution_mode: Choice[ExecutionMode] = Choice("streaming", "batch")
    allow_mode_dependent: Flag = Flag(False)
    checkpoint_mode: Choice[CheckpointMode] = Choice("exactly_once", "at_least_once", "off")
    unaligned_checkpoints: Flag = Flag(False)
    aligned_checkpoint_timeout: Duration = Duration("0 s")
    checkpoint_interval: AutoDuration = AutoDuration(AUTO)
    min_pause_between_checkpoints: Duration = Duration("0 s")
    checkpoint_timeout: Duration = Duration("10 min", least="1 ms")
    max_concurrent_checkpoints: Count = Count(1, 1, 100)
    max_queued_requests: Count = Count(1000, 1, 100_000)
    tolerable_checkpoint_failures: Count = Count(3, 0)
    retained_checkpoints: Count = Count(1, 1, 10_000)
    retention: Choice[Retention] = Choice("keep", "delete")
    state_size_threshold: Size = Size("20 KiB")
    snapshot_compression: Choice[SnapshotCompression] = Choice("none", "lz4", "zstd")
    local_recovery: Flag = Flag(False)
    restart_strategy: Choice[Restart] = Choice("exponential_delay", "fixed_delay", "failure_rate", "none")
    restart_attempts: AutoCount = AutoCount(lambda options: options.derived_attempts, 0)
    restart_delay: Duration = Duration("1 s")
    restart_max_delay: Duration = Duration("1 min")
    restart_backoff_multiplier: Factor = Factor(2.0, 1.0)
    restart_reset_after: Duration = Duration("10 min", least="1 s")
    restart_failure_interval: Duration = Duration("10 min", least="1 s")
    slots_timeout: Duration = Duration("10 min", least="1 ms")
    idle_after: OptionalDuration = OptionalDuration(None)
    channel_capacity: Size = Size("4 MiB", least="64 KiB")
    heartbeat_interval: Duration = Duration("1 s", least="10 ms")
    heartbeat_timeout: Duration = Duration("30 s", least="20 ms")
    store_timeout: Duration = Duration("2 min")
    slot_progress_timeout: OptionalDuration = OptionalDuration("5 min")
    stop_timeout: Duration = Duration("10 min", least="1 ms")
    sigterm_timeout: Duration = Duration("20 s")
    commit: Choice[Commit] = Choice("automatic", "on_request")
    max_uncommitted_checkpoints: Count = Count(10, 1, 10_000)
    processing_time_on_end: Choice[ProcessingTimeOnEnd] = Choice("fire", "drop")
    savepoint_directory: OptionalText = OptionalText(None)
    on_owner_lost: Choice[OnOwnerLost] = Choice("keep_running", "savepoint_then_stop", "cancel")
    owner_timeout: Duration = Duration("10 min", least="1 s")
    log_format: Choice[LogFormat] = Choice("text", "json")

    def __post_init__(self) -> None:
        if self.parallelism > self.max_parallelism:
            raise OptionError(
                f"parallelism {self.parallelism} is more than max_parallelism {self.max_parallelism}",
                where="option parallelism",
                remedy="Lower parallelism, or raise max_parallelism before the job's first start",
            )
        if self.heartbeat_timeout <= self.heartbeat_interval:
            raise OptionError(
                f"heartbeat_timeout {format_duration(self.heartbeat_timeout)} is not longer than heartbeat_interval",
                where="option heartbeat_timeout",
                remedy=f"Give heartbeat_timeout a duration longer than {format_duration(self.heartbeat_interval)}",
            )
        if self.state_memory is not None and self.state_memory >= self.slot_memory:
            raise OptionError(
                f"state_memory {format_size(self.state_memory)} is not less than slot_memory "
                f"{format_size(self.slot_memory)}",
                where="option state_memory",
                cause="a slot also needs memory for its buffers and for Python",
                remedy="Lower state_memory, or raise slot_memory",
            )
        self._check_restarts()
        if self.checkpoint_mode == "off" and self.checkpoint_interval is not None:
            raise OptionError(
                "checkpoint_interval requests checkpoints, but checkpoint_mode is 'off'",
                where="option checkpoint_interval",
                remedy="Set checkpoint_interval=none, or checkpoint_mode to exactly_once or at_least_once",
            )
        if self.checkpoint_mode == "off" and self.commit == "on_request":
            raise OptionError(
                "commit='on_request' waits for the approval of checkpoints, but checkpoint_mode is 'off'",
                where="option commit",
                remedy="Leave commit at its default, or set checkpoint_mode to exactly_once or at_least_once",
            )
        if self.checkpoint_mode == "off" and self.on_owner_lost == "savepoint_then_stop":
            raise OptionError(
                "on_owner_lost='savepoint_then_stop' needs a savepoint, but checkpoint_mode is 'off'",
                where="option on_owner_lost",
                remedy="Give 'cancel', or set checkpoint_mode to exactly_once or at_least_once",
            )
        if self.unaligned_checkpoints and self.checkpoint_mode != "exactly_once":
            raise OptionError(
                f"unaligned_checkpoints cannot be used with checkpoint_mode={self.checkpoint_mode!r}",
                where="option unaligned_checkpoints",
                cause="only exactly_once holds channels back until all barriers have arrived, which unaligned "
                "checkpoints avoid",
                remedy="Leave unaligned_checkpoints or checkpoint_mode at its default",
            )
        if self.aligned_checkpoint_timeout and not self.unaligned_checkpoints:
            raise OptionError(
                "aligned_checkpoint_timeout limits the alignment of checkpoints, but unaligned_checkpoints is off",
                where="option aligned_checkpoint_timeout",
                remedy="Set unaligned_checkpoints=true, or leave aligned_checkpoint_timeout out",
            )

    def _check_restarts(self) -> None:
        if self.restart_strategy == "exponential_delay" and not timedelta(0) < self.restart_delay:
            raise OptionError(
                "restart_strategy=exponential_delay needs a restart_delay above 0 s",
                where="option restart_delay",
                cause="the strategy multiplies the delay, so every delay would be 0 s",
                remedy="Set restart_delay to the first delay, such as 1 s, or set restart_strategy=fixed_delay",
            )
        if self.restart_strategy == "exponential_delay" and self.restart_delay > self.restart_max_delay:
            raise OptionError(
                f"restart_max_delay {format_duration(self.restart_max_delay)} is shorter than restart_delay",
                where="option restart_max_delay",
                remedy=f"Set restart_max_delay to at least {format_duration(self.restart_delay)}, or set "
                "restart_strategy=fixed_delay",
            )
        if self.restart_strategy == "failure_rate" and self.restart_attempts is None:
            raise OptionError(
                "restart_strategy=failure_rate needs restart_attempts, the number of failures allowed in an interval",
                where="option restart_attempts",
                remedy="Set restart_attempts to a number. For restarts without limit, set "
                "restart_strategy=fixed_delay and restart_attempts=none",
            )

    @property
    def left_open(self) -> frozenset[str]:
        """Names of the options that the user did not set. Records contain "auto" for them. Their values are derived
        from the other options and, by the driver, from the pipeline (S1.1, S9.1)."""
        return frozenset(field.name for field in dataclasses.fields(self) if vars(self)[field.name] == AUTO)

    @property
    def derived_attempts(self) -> int | None:
        """The value of an unset `restart_attempts`. In batch it is limited: each restart repeats all work (S9.1)."""
        forever = self.restart_strategy == "exponential_delay" and self.execution_mode == "streaming"
        return None if forever else DEFAULT_ATTEMPTS

    @property
    def unaligned_after_ms(self) -> int | None:
        """Time from a checkpoint's first barrier until barriers overtake, in milliseconds; None: never (S3.7)."""
        if not self.unaligned_checkpoints:
            return None
        return self.aligned_checkpoint_timeout // timedelta(milliseconds=1)

    @property
    def slot_memory_bytes(self) -> int:
        """`slot_memory` in bytes."""
        return int(self.slot_memory)

    @property
    def state_memory_bytes(self) -> int:
        """`state_memory` in bytes, set by the user or derived."""
        return int(self.slot_memory) // STATE_MEMORY_DIVISOR if self.state_memory is None else int(self.state_memory)

    @property
    def state_size_threshold_bytes(self) -> int:
        """`state_size_threshold` in bytes. With state_backend="memory", the limit of a snapshot in the metadata."""
        given = int(self.state_size_threshold)
        return max(given, MEMORY_STREAM_BYTES) if self.state_backend == "memory" else given

    @property
    def channel_capacity_bytes(self) -> int:
        """`channel_capacity` in bytes."""
        return int(self.channel_capacity)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any] | None) -> JobOptions:
        """Make options from names and values, as in a file, a DAG or on the command line. Numbers may be text.

        Raises OptionError with the nearest valid name, or with the allowed values.
        """
        given = dict(mapping or {})
        names = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
                raise OptionError(
                    f"there is no job option {name!r}",
                    where="options",
                    remedy=f"Did you mean {near[0]!r}?" if near else f"The options are: {', '.join(names)}",
                )
        return cls(**given)

    def to_mapping(self) -> dict[str, str | float | None]:
        """Return every option as JSON. `from_mapping` makes equal options from it."""
        mapping: dict[str, str | float | None] = {}
        for field in dataclasses.fields(self):
            setting: Any = vars(type(self))[field.name]
            mapping[field.name] = setting.plain(vars(self)[field.name])
        return mapping
