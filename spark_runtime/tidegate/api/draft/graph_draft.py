"""The graph while it is being drawn: nodes in the order of the user's calls, their uids, and the finished JobGraph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.api.draft.stream_time import StreamEventTime
from tidegate.connectors.interface import Sink, Source
from tidegate.errors import PipelineError
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.plan.job_graph import Edge, JobGraph, Node

MAX_UID_CHARACTERS = 100
"""Uids enter file names."""
UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class DraftOutput:
    """A side output: its name, the schema of its records, their event time."""

    name: str
    schema: pa.Schema
    event_time: StreamEventTime = StreamEventTime()


@dataclass(frozen=True)
class DraftNode:
    """A Node whose uid may still have to be derived; see there. `must_be_read`: side outputs -> why."""

    uid: str | None
    kind: str
    inputs: tuple[Edge, ...]
    schema: pa.Schema
    location: str
    stateful: bool = False
    source: Source | None = None
    spec: OperatorSpec | None = None
    sink: Sink | None = None
    side_outputs: tuple[DraftOutput, ...] = ()
    must_be_read: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Its place, for errors."""
        return call_place(self.kind, self.uid, self.location)


def call_place(kind: str, uid: str | None, location: str) -> str:
    """The `where` of an error: kind, uid where there is one, `file:line` of the user's call."""
    return f"{kind} {uid!r} at {location}" if uid else f"{kind} at {location}"


class GraphDraft:
    """Nodes so far; a node reads only earlier ones, so their order is topological. Not safe for several threads."""

    def __init__(self) -> None:
        self._nodes: list[DraftNode] = []
        self._by_uid: dict[str, DraftNode] = {}
        self._event_times: dict[int, tuple[str, TimeUnit]] = {}

    def note_event_time(self, node_id: int, column: str, unit: TimeUnit) -> None:
        """Say which column of a node's records holds event time."""
        self._event_times[node_id] = column, unit

    def add(self, node: DraftNode) -> int:
        """Append the node; gives its id.

        Raises:
            PipelineError: its uid is of another node already.
        """
        if node.uid is not None:
            other = self._by_uid.setdefault(node.uid, node)
            if other is not node:
                raise PipelineError(
                    f"the uid {node.uid!r} is given twice",
                    where=node.where,
                    cause=f"it belongs to the {other.kind} at {other.location}",
                    remedy="Give every operator a uid of its own: snapshots find its state by it",
                )
        self._nodes.append(node)
        return len(self._nodes) - 1

    def node(self, node_id: int) -> DraftNode:
        """The node of this id."""
        return self._nodes[node_id]

    def graph(self, *, check_sinks: bool) -> JobGraph:
        """The finished graph, uids derived where the user gave none.

        Args:
            check_sinks: ask every sink whether it can take its records, which may do I/O.

        Raises:
            PipelineError: no sink, records that go nowhere, or what a sink says.
        """
        if all(node.sink is None for node in self._nodes):
            raise PipelineError(
                "the pipeline has no sink",
                where=f"read at {self._nodes[0].location}" if self._nodes else "Pipeline()",
                remedy='End it with .write(sink, uid="..."), such as .write(Parquet(path), uid="out")',
            )
        self._refuse_unread()
        if check_sinks:
            for node in self._nodes:
                if node.sink is not None:
                    check_sink(node.sink, node)
        return self.partial_graph()

    def partial_graph(self) -> JobGraph:
        """The graph as it has been drawn, finished or not, unchecked; for people to look at."""
        uids = self._uids()
        return JobGraph(
            tuple(
                Node(
                    node_id,
                    uids[node_id],
                    node.kind,
                    node.inputs,
                    node.schema,
                    node.location,
                    node.stateful,
                    node.source,
                    node.spec,
                    node.sink,
                    tuple((side.name, side.schema) for side in node.side_outputs),
                    self._event_times.get(node_id),
                )
                for node_id, node in enumerate(self._nodes)
            )
        )

    def _refuse_unread(self) -> None:
        """Of side outputs only the main one must be read, and those that a source insists on: rows for the others are
        dropped and counted."""
        sides = {(edge.upstream, edge.output) for node in self._nodes for edge in node.inputs}
        for node_id, node in enumerate(self._nodes):
            for name, why in node.must_be_read.items():
                if (node_id, name) not in sides:
                    raise PipelineError(
                        f"nothing reads the side output {name!r} of this {node.kind}",
                        where=node.where,
                        cause=why,
                        remedy=f'Write it to a sink: stream.side_output("{name}").write(...), or choose "skip"',
                    )
        read = {edge.upstream for node in self._nodes for edge in node.inputs if edge.output == MAIN_OUTPUT}
        for node_id, node in enumerate(self._nodes):
            if node.sink is None and node_id not in read:
                raise PipelineError(
                    f"the records of this {node.kind} go nowhere",
                    where=node.where,
                    remedy="Write them to a sink (Discard() drops them), or take the call away",
                )

    def _uids(self) -> list[str]:
        """Uids given by the user, and `<nearest given uid upstream>.<kind>` for the rest, of what reads a side output
        `<uid>.<output>`: an operator added or taken away elsewhere does not change them."""
        taken = set(self._by_uid)
        uids: list[str] = []
        anchors: list[str] = []
        for node in self._nodes:
            anchor = node.uid or anchors[node.inputs[0].upstream]
            side = node.inputs[0].output if node.inputs else MAIN_OUTPUT
            derived = f"{anchor}.{node.kind if side == MAIN_OUTPUT else side}"
            uid, n = node.uid or derived, 1
            while node.uid is None and uid in taken:
                n += 1
                uid = f"{derived}-{n}"
            anchors.append(anchor if side == MAIN_OUTPUT else uid)
            taken.add(uid)
            uids.append(uid)
        return uids


def check_sink(sink: Sink, node: DraftNode) -> None:
    """Ask the sink whether it can take the node's records; PipelineError with the place in the user's code."""
    try:
        sink.check(node.schema)
    except PipelineError as error:
        raise with_place(error, node.where) from error


def with_place(error: PipelineError, where: str) -> PipelineError:
    """The same error, with the place in the user's code added to its own."""
    own = f"{error.where}, {where}" if error.where else where
    return PipelineError(error.what, where=own, cause=error.cause, remedy=error.remedy)


def require_uid(uid: object, kind: str, location: str) -> str:
    """The uid, checked. PipelineError when it is missing or cannot be part of a file name."""
    where = call_place(kind, None, location)
    if uid is None:
        raise PipelineError(
            f"the {kind} has no uid",
            where=where,
            cause="snapshots find the state of an operator by its uid",
            remedy='Give it a stable name: uid="..."',
        )
    if not isinstance(uid, str) or not UID.fullmatch(uid) or len(uid) > MAX_UID_CHARACTERS:
        raise PipelineError(
            f"{uid!r} cannot be a uid",
            where=where,
            remedy=(
                f"Use letters, digits and ._- , a letter or digit first, at most {MAX_UID_CHARACTERS} characters, "
                'such as "daily-delays"'
            ),
        )
    return uid


def optional_uid(uid: object, kind: str, location: str) -> str | None:
    """The uid, checked, or None."""
    return None if uid is None else require_uid(uid, kind, location)
