"""The places where the crash matrix kills: named points around calls of the runtime and of the libraries its sinks use.

Nothing in the product knows of them: `PointsInstalled` wraps the calls in this process, for as long as it is entered. A
call gives two points, "name: before" and "name: after". A wrapped call that is gone makes entering it fail, so the list
below cannot go stale in silence.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from tidegate.channel.control.protocol import (
    Acknowledged,
    Declined,
    DriverMessage,
    Failed,
    LetFinish,
    Over,
    SlotMessage,
    SubtaskCommitted,
    SubtaskEndedData,
    SubtaskFinished,
    Trigger,
)
from tidegate.channel.elements import MAX_WATERMARK, CheckpointBarrier, EndOfData, EndOfPartition, Watermark
from tidegate.connectors.sink_operator import SinkOperator
from tidegate.coordinator import job_run
from tidegate.coordinator.supervision.supervisor import Supervisor
from tidegate.jobs.decision_log import GenerationLog
from tidegate.subtask.chain import OperatorChain
from tidegate.subtask.slot import Slot
from tidegate.subtask.source import SourceInput
from tidegate.subtask.subtask import Subtask

Named = Callable[..., str | None]
"""Given the call's arguments: its name; None: no point."""

NAMED_STEPS = (
    "source exhausted: after",
    "trigger received: before",
    "stop received: before",
    "MAX_WATERMARK out: before",
    "end_input: before",
    "end_input: after",
    "finish: before",
    "finish: after",
    "EndOfData out: before",
    "EndOfData out: after",
    "EndOfData in: before",
    "log claim: before",
    "log claim: after",
    "trigger sent: before",
    "trigger sent: between two slots",
    "trigger sent: after",
    "barrier out: before",
    "barrier in: before",
    "pre-commit: before",
    "pre-commit: after",
    "asynchronous write: before",
    "sink stages: before",
    "sink stages: after",
    "acknowledgement: before",
    "acknowledgement: after",
    "_metadata: before",
    "_metadata: after",
    "log complete: before",
    "log complete: after",
    "complete sent: before",
    "complete sent: between two slots",
    "complete sent: after",
    "complete received: before",
    "sink commits: before",
    "sink commits: after",
    "committed sent: before",
    "committed sent: after",
    "log committed: before",
    "log committed: after",
    "EndOfPartition out: before",
    "EndOfPartition out: after",
    "finished sent: before",
    "finished sent: after",
    "over sent: before",
    "log status: before",
    "log status: after",
    "answer: before",
    "driver exit: before",
)
"""The steps of the end flow and of a commit by name (S7.1-S7.5), which the matrix must have met."""

SINK_STEPS = {
    "Parquet": ("sink: os.replace: before", "sink: os.replace: after", "sink: os.fsync: before"),
    "Csv": ("sink: os.replace: before", "sink: os.replace: after", "sink: os.fsync: before"),
    "JsonLines": ("sink: os.replace: before", "sink: os.replace: after", "sink: os.fsync: before"),
    "Delta": (
        "sink: os.replace: before",
        "sink: DeltaTable.create: after",
        "sink: DeltaTable.create_write_transaction: before",
        "sink: DeltaTable.create_write_transaction: after",
    ),
    "DeltaUpserts": (
        "sink: os.replace: before",
        "sink: os.fsync: before",
        "sink: DeltaTable.create_write_transaction: before",
        "sink: DeltaTable.create_write_transaction: after",
        "sink: LocalFileSystem.rm_file: after",
    ),
    "Iceberg": (
        "sink: os.replace: before",
        "sink: SqlCatalog.load_table: after",
        "sink: SqlCatalog.commit_table: before",
        "sink: SqlCatalog.commit_table: after",
    ),
    "IcebergUpserts": (
        "sink: os.replace: before",
        "sink: SqlCatalog.commit_table: before",
        "sink: SqlCatalog.commit_table: after",
        "sink: LocalFileSystem.rm_file: after",
    ),
    "Kafka": (
        "sink: os.replace: before",
        "sink: MarkedProducer.fence: after",
        "sink: MarkedProducer.begin: after",
        "sink: MarkedProducer.commit: before",
        "sink: MarkedProducer.commit: after",
        "sink: os.replace: after",
        "sink: LocalFileSystem.rm_file: after",
    ),
    "PySparkStream": (
        "sink: WriterCalls.write: before",
        "sink: WriterCalls.write: after",
        "sink: WriterCalls.commit: before",
        "sink: WriterCalls.commit: after",
        "sink: os.replace: before",
        "sink: os.replace: after",
        "sink: LocalFileSystem.rm_file: before",
        "sink: LocalFileSystem.rm_file: after",
    ),
    "PySparkBatch": (
        "sink: WriterCalls.write: before",
        "sink: WriterCalls.write: after",
        "sink: WriterCalls.commit: before",
        "sink: WriterCalls.commit: after",
        "sink: os.replace: before",
        "sink: os.replace: after",
        "sink: LocalFileSystem.rm_file: before",
        "sink: LocalFileSystem.rm_file: after",
    ),
    "Postgres": ("sink: Cursor.copy: after", "sink: Transaction.__exit__: before", "sink: Transaction.__exit__: after"),
}
"""Of each sink's own steps, some that the matrix must have met."""

INSTALLED: list[Points] = []
"""In this process, for as long as it lives: on Spark."""

_SENT: Mapping[type, str] = {
    Acknowledged: "acknowledgement",
    SubtaskEndedData: "ended sent",
    SubtaskFinished: "finished sent",
    Over: "over sent",
    SubtaskCommitted: "committed sent",
    Declined: "decline sent",
    Failed: "failed sent",
}
_BROADCAST: Mapping[type, str] = {LetFinish: "let_finish"}


def _told(message: SlotMessage) -> str | None:
    """A message of a slot to the driver."""
    return _SENT.get(type(message))


def _name(message: DriverMessage) -> str:
    return _BROADCAST.get(type(message), type(message).__name__.lower())


def broadcast_name(message: DriverMessage) -> str:
    """A message of the driver to the slots."""
    return "stop" if isinstance(message, Trigger) and message.stop is not None else _name(message)


def _sent(element: Any) -> str | None:
    """An element of a channel."""
    match element:
        case Watermark(time_us) if time_us == MAX_WATERMARK:
            return "MAX_WATERMARK"
        case EndOfData():
            return "EndOfData"
        case EndOfPartition():
            return "EndOfPartition"
        case CheckpointBarrier():
            return "barrier"
    return None


def _words(query: Any) -> str:
    """The first words of a statement."""
    text = query if isinstance(query, str) else query.as_string()
    return " ".join(text.replace("(", " ").split()[:3])


def _with(suffix: str, name: str | None) -> str | None:
    return None if name is None else f"{name} {suffix}"


class Points:
    """Wraps and unwraps."""

    def __init__(self, at: Callable[[str], None]) -> None:
        """Args: at: called at every point, in the thread that is there; may not return."""
        self._at = at
        self._undo: list[Callable[[], None]] = []
        self._in_sink = threading.local()

    # ------------------------------------------------------------ ways to wrap

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Until `remove`."""
        own = name in vars(owner)
        original = vars(owner).get(name)
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))
        setattr(owner, name, replacement)

    def remove(self) -> None:
        """Everything as it was."""
        while self._undo:
            self._undo.pop()()

    def around(self, owner: Any, name: str, named: Named, *, after: bool = True) -> None:
        """Points before and after a call."""
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            point = named(*args, **kwargs)
            if point is not None:
                self._at(f"{point}: before")
            made = original(*args, **kwargs)
            if point is not None and after:
                self._at(f"{point}: after")
            return made

        is_static = isinstance(vars(owner).get(name), staticmethod | classmethod) if isinstance(owner, type) else False
        self.put(owner, name, staticmethod(call) if is_static else call)

    def around_emission(self, owner: Any, name: str, point: str) -> None:
        """Points before and after all that a call emits."""
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
            self._at(f"{point}: before")
            yield from original(*args, **kwargs)
            self._at(f"{point}: after")

        self.put(owner, name, call)

    def in_sink(self, owner: Any, name: str, told: str | Named, *, after: bool = True) -> None:
        """Points of a library's call, but only while a sink is at work in this thread."""

        def named(*args: Any, **kwargs: Any) -> str | None:
            if not getattr(self._in_sink, "depth", 0):
                return None
            point = told if isinstance(told, str) else told(*args, **kwargs)
            return None if point is None else f"sink: {point}"

        self.around(owner, name, named, after=after)

    @contextmanager
    def sink_at_work(self) -> Iterator[None]:
        """What libraries do in this thread now is a sink's doing."""
        self._in_sink.depth = getattr(self._in_sink, "depth", 0) + 1
        try:
            yield
        finally:
            self._in_sink.depth -= 1

    # ------------------------------------------------------------ what is wrapped

    def everywhere(self) -> None:
        """Whatever process this is."""
        self.in_slots()
        self.in_sinks()
        self.in_drivers()

    def in_slots(self) -> None:
        """Subtasks, the slot, and its messages."""
        self._wrap_source()
        self.around(
            Subtask,
            "trigger",
            lambda _, barrier: "trigger received" if barrier.stop is None else "stop received",
            after=False,
        )
        self.around_emission(OperatorChain, "end_input", "end_input")
        self.around_emission(OperatorChain, "finish", "finish")
        routed = importlib.import_module("tidegate.subtask.router").Router
        self.around(routed, "send", lambda _, element: _with("out", _sent(element)))
        self.around(Subtask, "_on_element", lambda _, __, element: _with("in", _sent(element)), after=False)
        self.around(Slot, "_write", lambda *_: "asynchronous write", after=False)
        self.around(Slot, "_on_message", lambda _, message: f"{_name(message)} received", after=False)
        self.around(Subtask, "_close", lambda _: "close")
        self._wrap_slot_sends()

    def _wrap_source(self) -> None:
        original = SourceInput.poll

        def poll(source: SourceInput, now_ms: int) -> Any:
            polled = original(source, now_ms)
            if polled.state == "end":
                self._at("source exhausted: after")
            return polled

        self.put(SourceInput, "poll", poll)

    def _wrap_slot_sends(self) -> None:
        original = Slot.__init__

        def init(slot: Slot, **arguments: Any) -> None:
            send = arguments["send"]

            def traced(message: dict[str, Any]) -> None:
                point = _told(message)
                if point is not None:
                    self._at(f"{point}: before")
                send(message)
                if point is not None:
                    self._at(f"{point}: after")

            original(slot, **{**arguments, "send": traced})

        self.put(Slot, "__init__", init)

    def in_sinks(self) -> None:
        """The sink operator's calls, and within them the files, logs, catalogs, the database and the broker."""
        self.around(SinkOperator, "snapshot", lambda *_: "pre-commit")
        self._wrap_staging()
        self._wrap_sink_work("_publish", "sink commits")
        self._wrap_recovery()
        for name in ("replace", "fsync"):
            self.in_sink(os, name, f"os.{name}", after=name == "replace")
        self.in_sink(LocalFileSystem, "rm_file", "LocalFileSystem.rm_file")
        producer = importlib.import_module("tidegate.connectors.kafka.sink.marked_producer").MarkedProducer
        for name in ("fence", "begin", "send", "commit"):
            self.in_sink(producer, name, f"MarkedProducer.{name}")
        self._wrap_data_sources()
        try:
            delta = importlib.import_module("deltalake").DeltaTable
        except ImportError:
            pass
        else:
            for name in ("create", "create_write_transaction"):
                self.in_sink(delta, name, f"DeltaTable.{name}")
        try:
            iceberg = importlib.import_module("pyiceberg.catalog.sql").SqlCatalog
        except ImportError:
            pass
        else:
            for name in ("load_table", "commit_table"):
                self.in_sink(iceberg, name, f"SqlCatalog.{name}")
        try:
            psycopg = importlib.import_module("psycopg")
        except ImportError:
            return
        self.in_sink(psycopg.Cursor, "execute", lambda _, query, *__, **___: _words(query), after=False)
        self.in_sink(psycopg.Cursor, "copy", "Cursor.copy")
        self.in_sink(
            psycopg.Transaction, "__exit__", lambda _, kind, *__: "Transaction.__exit__" if kind is None else None
        )

    def _wrap_data_sources(self) -> None:
        calls = importlib.import_module("tidegate.connectors.pyspark.data_source_writer").WriterCalls
        for name in ("write", "commit", "abort"):
            self.in_sink(calls, name, f"WriterCalls.{name}")

    def _wrap_staging(self) -> None:
        original = SinkOperator.snapshot

        def snapshot(operator: SinkOperator, checkpoint_id: int) -> Any:
            work = original(operator, checkpoint_id)
            if work is None:
                return None

            def stage() -> Any:
                self._at("sink stages: before")
                with self.sink_at_work():
                    made = work()
                self._at("sink stages: after")
                return made

            return stage

        self.put(SinkOperator, "snapshot", snapshot)

    def _wrap_sink_work(self, name: str, point: str) -> None:
        original = getattr(SinkOperator, name)

        def call(*args: Any) -> Any:
            self._at(f"{point}: before")
            with self.sink_at_work():
                made = original(*args)
            self._at(f"{point}: after")
            return made

        self.put(SinkOperator, name, call)

    def _wrap_recovery(self) -> None:
        original = SinkOperator.recover

        def recover(operator: SinkOperator, permit: Any) -> Any:
            work = original(operator, permit)

            def recovering() -> None:
                self._at("sink recovers: before")
                with self.sink_at_work():
                    work()
                self._at("sink recovers: after")

            return recovering

        self.put(SinkOperator, "recover", recover)

    def in_drivers(self) -> None:
        """The log, the run's actions, and what the supervisor asks for."""
        self.around(GenerationLog, "append", lambda _, kind, *__, **___: f"log {kind}")
        self.around(job_run, "write_metadata", lambda *_: "_metadata")
        self.around(job_run.JobRun, "on_slot_message", lambda _, m: _with("taken", _told(m)), after=False)
        original = Supervisor.handle

        def handle(supervisor: Supervisor, event: Any, now_ms: int) -> Iterator[Any]:
            for action in original(supervisor, event, now_ms):
                point = {"AnswerCommand": "answer", "AnswerAllOpen": "answer", "EndDriver": "driver exit"}.get(
                    type(action).__name__
                )
                if point is not None:
                    self._at(f"{point}: before")
                yield action
                if point is not None:
                    self._at(f"{point}: after")

        self.put(Supervisor, "handle", handle)

    def on_spark(self) -> None:
        """What the world in this process says itself."""
        attempt = importlib.import_module("tidegate.spark.driver_loop.attempt").Attempt
        self.around(attempt, "broadcast", lambda _, message: f"{broadcast_name(message)} sent")


@contextmanager
def points_installed(at: Callable[[str], None]) -> Iterator[Points]:
    """All points, in this process."""
    points = Points(at)
    try:
        points.everywhere()
        # All processes share this thread, so that a wait for a subtask of another slot would end only with its run.
        claims = importlib.import_module("tidegate.connectors.pyspark.commit_claims").CommitClaims
        points.put(claims, "_run_ends_within", lambda *_: True)
        yield points
    finally:
        points.remove()
