"""The slot process: runs inside one Spark task of the barrier stage."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.channel.control.connections import ControlClient
from tidegate.channel.control.protocol import (
    Cancel,
    Deploy,
    Deployed,
    DriverMessage,
    Failed,
    Heartbeat,
    Hello,
    Over,
    Start,
)
from tidegate.channel.failures import PeerLostError
from tidegate.channel.tcp.data_transport import DataTransport
from tidegate.clock import steady_clock
from tidegate.connectors.transactions import job_storage
from tidegate.errors import PipelineError, TidegateError
from tidegate.jobs.artifacts.artifact import unpack_artifact
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Spec, read_record
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.log_format import set_up
from tidegate.plan.execution_plan import ExecutionPlan, make_execution_plan
from tidegate.snapshot.local_copies import LocalCopies
from tidegate.snapshot.location import open_location
from tidegate.spark.kernel_preload import preload_kernels
from tidegate.spark.scratch import ScratchFolder
from tidegate.spark.shared_cores import SWITCH_INTERVAL_S, CpuWait, switch_interval_s, usable_cores
from tidegate.spark.slot_parameters import SlotParameters
from tidegate.spark.versions import check_versions, own_versions
from tidegate.subtask.chain import OperatorFailure
from tidegate.subtask.deployment import Deployment, deploy
from tidegate.subtask.failure_codes import SLOT_MEMORY, failure_code
from tidegate.subtask.slot import LINGER_S, LoopSignal, Slot
from tidegate.subtask.snapshots.restored_state import load_restored_state

logger = logging.getLogger("tidegate.spark")
SNAPSHOT_WRITERS = 8
"""Threads of a slot that write snapshots and commit, one operator each at a time.

They mostly wait for disk or network. With two threads, six two-phase-commit sinks in a chain would wait in three rounds
(S7.3; benchmarks/end_of_job.py).
"""
MEMORY_CHECK_S = 0.5
"""Interval, in seconds, of the checks of a slot's resident memory."""
CONNECT_TIMEOUT_S = 30.0
"""Timeout, in seconds, for the connections to all other slots, which listen by then."""
RELEASE_TIMEOUT_S = 600.0
"""Time, in seconds, that a finished slot waits for the others; commits of the slowest sink must end within it."""
DEPLOY_TIMEOUT_S = 600.0
"""Time, in seconds, that a slot waits for the deployment; the slowest other slot must start within it."""


class SlotMail:
    """Mailbox for messages of the driver: none is lost between its queue and a loop.

    Messages that arrive before the loop begins are handed to it. Messages that the loop has not processed when it ends
    return to the queue. The driver's last message, `cancel`, may arrive at any time, and arrives once.

    `deliver` may be called from any thread; all other methods from the slot's own.
    """

    def __init__(self) -> None:
        self._queue: queue.Queue[DriverMessage] = queue.Queue()
        self._switch = threading.Lock()
        self._slot: Slot | None = None

    def deliver(self, message: DriverMessage) -> None:
        """Store a message of the driver, or pass it to the loop."""
        with self._switch:
            if self._slot is not None:
                self._slot.post(message)
            else:
                self._queue.put(message)

    def open(self, slot: Slot) -> None:
        """Pass all messages to this loop from now on."""
        with self._switch:
            self._slot = slot
            # Under the lock, so that a message that arrives now is not delivered before the waiting ones.
            while not self._queue.empty():
                slot.post(self._queue.get())

    def close(self) -> None:
        """Return to the queue, because the loop has ended. Call it before the end is reported to the driver."""
        with self._switch:
            if self._slot is not None:
                for message in self._slot.unhandled():
                    self._queue.put(message)
            self._slot = None

    def take(self, timeout_s: float) -> DriverMessage:
        """Return the next message from the queue. Raises queue.Empty."""
        return self._queue.get(timeout=timeout_s)


def slot_main(parameters: SlotParameters, _partition: Iterable[int]) -> Iterator[str]:
    """Run one slot to its end. Any failure is reported to the driver as root cause before Spark sees it."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    assert context is not None
    index = context.partitionId()
    host = parameters.bind_host or context.getTaskInfos()[index].address.rsplit(":", 1)[0]
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    set_up(parameters.log_format, job=parameters.job_id, generation=parameters.generation, slot=index)
    logger.info("started the slot of run %s on %s, process %d", parameters.run_id, socket.gethostname(), os.getpid())
    process = SlotRuntime(parameters, index, host)
    try:
        process.run()
    finally:
        process.close()
    yield f"slot {index} ended"


class SlotRuntime:
    """Connections, threads and directories of one slot; `run` returns when every subtask has finished."""

    def __init__(self, parameters: SlotParameters, index: int, host: str) -> None:
        self._parameters = parameters
        self._index, self._host = index, host
        self._wake = LoopSignal()
        self._mail = SlotMail()
        self._slot: Slot | None = None
        self._over = threading.Event()
        self._scratch = ScratchFolder(f"slot{index}")
        self._writers = ThreadPoolExecutor(SNAPSHOT_WRITERS, thread_name_prefix="snapshot-writer")
        self._store: Store = open_store(parameters.root, parameters.storage_options)
        self._layout = JobLayout(parameters.job_id)
        self._spec = read_record(self._store, self._layout.spec(parameters.spec), Spec)
        self._options = JobOptions.from_mapping(self._spec.options)
        unaligned = self._options.unaligned_after_ms is not None
        overdraft_bytes = self._options.channel_capacity_bytes if unaligned else 0
        self._transport = DataTransport(
            slot=index,
            secret=parameters.secret,
            generation=parameters.generation,
            run_id=parameters.run_id,
            capacity_bytes=self._options.channel_capacity_bytes,
            wake=self._wake.set,
            overdraft_bytes=overdraft_bytes,
        )
        self._address = self._transport.listen(host)
        self._control = ControlClient(
            host=parameters.control_host,
            port=parameters.control_port,
            secret=parameters.secret,
            generation=parameters.generation,
            run_id=parameters.run_id,
            slot=index,
            on_message=self._mail.deliver,
            on_lost=self._on_control_lost,
        )

    def run(self) -> None:
        """Register, build the pipeline, deploy, and run the loop."""
        threading.Thread(target=self._watch, name="slot-watch", daemon=True).start()
        try:
            where = f"job {self._parameters.job_id}, slot {self._index} on {socket.gethostname()}"
            check_versions(self._parameters.versions, own_versions(), where)
            execution = self._build()
            # Before Hello, from which on the driver expects signs of life: no other thread runs while kernels are
            # compiled.
            preload_kernels()
            self._control.send(Hello(*self._address, os.getpid(), socket.gethostname(), sys.version.split()[0]))
            message = self._mail.take(DEPLOY_TIMEOUT_S)
            if isinstance(message, Deploy) and self._loop(execution, message):
                self._control.send(Over())
                self._await_release()
        except BaseException as error:
            self._report(error)
            raise
        finally:
            self._over.set()
            if self._slot is not None:
                self._slot.close()

    def _build(self) -> ExecutionPlan:
        """Rebuild the pipeline from the pinned artifact: nothing is unpickled."""
        code = os.path.join(self._scratch.path, "artifact")
        unpack_artifact(self._store, self._layout, self._spec.artifact, code)
        graph = load_pipeline(
            code,
            self._spec.pipeline,
            dict(self._spec.arguments),
            check_sinks=False,
            paths=self._spec.relative_paths,
            schemas=self._parameters.schemas,
        )
        execution = make_execution_plan(graph, self._options.parallelism, self._options.max_parallelism)
        if execution.digest != self._parameters.digest:
            raise PipelineError(
                "a slot builds a different pipeline than the driver",
                where=f"job {self._parameters.job_id}, slot {self._index}",
                cause="build() does not depend on its arguments alone, or the machines have different package versions",
                remedy="Make build() depend on its arguments alone, and install the same package versions on all "
                "machines",
            )
        return execution

    def _await_release(self) -> None:
        """Wait until all slots are done: to the others, closed connections of a finished slot would look like a
        failure.
        """
        with contextlib.suppress(queue.Empty):
            while not isinstance(self._mail.take(RELEASE_TIMEOUT_S), Cancel):
                continue

    def _loop(self, execution: ExecutionPlan, message: Deploy) -> bool:
        """Deploy and run. Returns False if the driver cancelled the run."""
        peers = {peer.slot: (peer.host, peer.port) for peer in message.peers}
        slots_here = sum(host == self._host for host, _ in peers.values())
        sys.setswitchinterval(switch_interval_s(slots_here, usable_cores()))
        copies = self._local_copies()
        cpu_wait = CpuWait()
        slot = self._new_slot(copies, len(peers), cpu_wait)
        restored = {} if message.restored is None else {self._index: message.restored}
        deployment = Deployment(
            job_id=self._parameters.job_id,
            lineage=self._spec.lineage,
            generation=self._parameters.generation,
            run_id=self._parameters.run_id,
            indices=(self._index,),
            mode=self._options.checkpoint_mode,
            wait_for_final=message.wait_for_final,
            channel_capacity_bytes=self._options.channel_capacity_bytes,
            splits={uid: {self._index: splits} for uid, splits in message.splits.items()},
            restored=load_restored_state(restored, self._open_location, execution, copies),
            idle_after_ms=_milliseconds(self._options.idle_after),
            scratch=self._scratch.path,
            unaligned_after_ms=self._options.unaligned_after_ms,
            processing_time_on_end=self._options.processing_time_on_end,
            gated=self._options.commit == "on_request",
            state_backend=self._options.state_backend,
            state_memory_bytes=self._options.state_memory_bytes,
            sink_storage=job_storage(self._store, self._spec),
        )
        subtasks = deploy(execution, deployment, slot, self._transport)
        self._control.send(Deployed())
        if not isinstance(self._mail.take(DEPLOY_TIMEOUT_S), Start):
            return False
        self._transport.connect(peers, timeout_s=CONNECT_TIMEOUT_S)
        self._transport.start()
        self._transport.writes.hold()
        slot.start(subtasks)
        self._slot = slot
        self._mail.open(slot)
        with _long_lived_objects_kept(), contextlib.closing(cpu_wait):
            slot.run()
        if slot.was_cancelled:
            return False
        self._control.send(_heartbeat(resident_bytes(), slot))
        # The writers still commit the final snapshot. `Over` is reported only after their work.
        self._writers.shutdown(wait=True)
        self._transport.flush()
        slot.close()
        self._slot = None
        self._mail.close()
        if copies is not None:
            copies.clear()
        return True

    def _new_slot(self, copies: LocalCopies | None, slots: int, cpu_wait: CpuWait) -> Slot:
        """Args: copies: local copies of state; None: the job has none. slots: number of slots of the job. cpu_wait: of
        this thread."""
        return Slot(
            run_id=self._parameters.run_id,
            generation=self._parameters.generation,
            send=self._control.send,
            open_location=self._open_location,
            threshold_bytes=self._options.state_size_threshold_bytes,
            writers=self._writers,
            now_ms=steady_clock(),
            wake=self._wake,
            transport_failure=lambda: self._transport.failure,
            write_out=self._transport.writes.write,
            copies=copies,
            compression=self._options.snapshot_compression,
            linger_s=LINGER_S if slots > 1 else 0.0,
            core_wait_ms=cpu_wait.ms,
        )

    def _local_copies(self) -> LocalCopies | None:
        """Return the local copies of state; None: the job has none (S5.4)."""
        if not self._options.local_recovery:
            return None
        return LocalCopies.of_job(self._parameters.root, self._parameters.job_id, self._index)

    def _open_location(self, location: str) -> tuple[Store, str]:
        return open_location(self._store, self._spec, location)

    # ------------------------------------------------------------ threads

    def _on_control_lost(self, reason: str) -> None:
        """End the process: without its driver, a slot is a zombie."""
        if not self._over.is_set():
            logger.error(
                "the control connection to the driver was lost (%s): the slot ends. A living driver restarts the job",
                reason,
            )
            self._scratch.remove()
            # `sys.exit` would end only this thread.
            os._exit(70)

    def _watch(self) -> None:
        """Send heartbeats, and enforce the memory limit.

        It has its own thread, so that the driver can distinguish a hung loop from a dead slot.
        """
        interval_s = self._options.heartbeat_interval.total_seconds()
        next_beat = time.monotonic()
        while not self._over.wait(min(MEMORY_CHECK_S, interval_s)):
            resident = resident_bytes()
            limit = self._options.slot_memory_bytes
            if resident > limit:
                self._control.send(
                    Failed(
                        f"slot {self._index} exceeded slot_memory: it has {resident / 2**20:.0f} MiB resident memory, "
                        f"the limit is {limit / 2**20:.0f} MiB. Raise slot_memory or parallelism",
                        subtask=self._index,
                        code=SLOT_MEMORY,
                    )
                )
                # Otherwise the process would end before the message is sent, and the driver would see only a lost slot.
                self._control.flush(1.0)
                self._scratch.remove()
                # 128 + SIGKILL, as if the kernel had killed the process for its memory. `sys.exit` would end only this
                # thread.
                os._exit(137)
            if time.monotonic() >= next_beat:
                # Counted from the planned time, so that delays do not add up.
                next_beat += interval_s
                self._control.send(_heartbeat(resident, self._slot))
                # The rounds of an idle loop, which sleeps long, must increase between two heartbeats: else it would
                # look hung.
                self._wake.set()

    def _report(self, error: BaseException) -> None:
        if isinstance(error, OperatorFailure):
            message = Failed(error.message, error.uid, error.subtask, error.traceback, error.code)
        else:
            message = Failed(
                str(error) if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(error)),
                code=failure_code(error),
                secondary=isinstance(error, PeerLostError),
            )
        self._control.send(message)
        self._control.flush(2.0)

    def close(self) -> None:
        """Close connections and remove the scratch directory."""
        self._over.set()
        self._control.flush(2.0)
        self._control.close()
        self._transport.close()
        self._writers.shutdown(wait=False, cancel_futures=True)
        self._scratch.remove()


@contextlib.contextmanager
def _long_lived_objects_kept() -> Iterator[None]:
    """Exclude existing objects from garbage collection: modules, classes and kernels, which the loop never drops.

    A full collection visits all of them for 60 ms. User code that creates objects for each row causes many collections,
    which took 40 % of its time.
    """
    gc.freeze()
    try:
        yield
    finally:
        # Spark may use the process for another run.
        gc.unfreeze()


def _heartbeat(resident: int, slot: Slot | None) -> Heartbeat:
    """Return a heartbeat. `rounds` shows whether the loop hangs; a loop that has ended makes no rounds."""
    if slot is None:
        return Heartbeat(resident)
    rounds = None if slot.is_over else slot.rounds
    try:
        return Heartbeat(resident, rounds, slot.metrics())
    # a source's `progress` failed, or the loop changed the metrics meanwhile: heartbeats must continue
    except Exception:
        logger.exception("the metrics of the slot could not be collected; this heartbeat is sent without them")
        return Heartbeat(resident, rounds)


def _milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else int(duration.total_seconds() * 1000)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it.

    Memory that slots share for their batches does not count: each slot that has mapped it would count it again.
    """
    try:
        with open("/proc/self/status") as status:
            facts = dict(line.split(":", 1) for line in status)
        return 1024 * sum(int(facts[name].split()[0]) for name in ("RssAnon", "RssFile"))
    except (OSError, KeyError):  # the system reports only their sum
        return _all_resident_bytes()


def _all_resident_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
