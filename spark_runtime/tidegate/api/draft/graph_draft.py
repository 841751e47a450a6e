"""GraphDraft: the graph while a user builds it: nodes in the order of the calls, their uids, and the finished
JobGraph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.api.draft.change_flow import refuse_changes
from tidegate.api.draft.stream_time import StreamEventTime
from tidegate.connectors.interface import Sink, Source
from tidegate.errors import PipelineError
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.plan.job_graph import Edge, JobGraph, Node

MAX_UID_CHARACTERS = 100
"""Limit of a uid's length, because file names contain uids."""
UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class DraftOutput:
    """A side output: its name, the schema of its records, and their event time."""

    name: str
    schema: pa.Schema
    event_time: StreamEventTime = StreamEventTime()


@dataclass(frozen=True)
class DraftNode:
    """A Node whose uid may be derived later; see `Node`.

    Attributes:
        must_be_read: side outputs that something must read -> reason.
    """

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
        """Return its place, for errors."""
        return call_place(self.kind, self.uid, self.location)


def call_place(kind: str, uid: str | None, location: str) -> str:
    """Return the `where` of an error: kind, uid if there is one, `file:line` of the user's call."""
    return f"{kind} {uid!r} at {location}" if uid else f"{kind} at {location}"


class GraphDraft:
    """The nodes so far. A node reads only earlier nodes, so their order is topological. Not thread-safe."""

    def __init__(self) -> None:
        self._nodes: list[DraftNode] = []
        self._by_uid: dict[str, DraftNode] = {}
        self._event_times: dict[int, tuple[str, TimeUnit]] = {}

    def note_event_time(self, node_id: int, column: str, unit: TimeUnit) -> None:
        """Record the column of a node's records that holds event time."""
        self._event_times[node_id] = column, unit

    def add(self, node: DraftNode) -> int:
        """Append the node and return its id.

        Raises:
            PipelineError: another node has the same uid.
        """
        if node.uid is not None:
            other = self._by_uid.setdefault(node.uid, node)
            if other is not node:
                raise PipelineError(
                    f"the uid {node.uid!r} is used twice",
                    where=node.where,
                    cause=f"the {other.kind} at {other.location} has this uid, too",
                    remedy="Use a different uid for every operator: snapshots find an operator's state by its uid",
                )
        self._nodes.append(node)
        return len(self._nodes) - 1

    def node(self, node_id: int) -> DraftNode:
        """Return the node of this id."""
        return self._nodes[node_id]

    def graph(self, *, check_sinks: bool) -> JobGraph:
        """Return the finished graph, with derived uids for nodes without one.

        Args:
            check_sinks: check that every sink supports its records; this may do I/O.

        Raises:
            PipelineError: there is no sink, nothing reads a stream, or a sink refuses its records.
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
        graph = self.partial_graph()
        refuse_changes(graph)
        return graph

    def partial_graph(self) -> JobGraph:
        """Return the graph so far, unchecked, for display."""
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
        """Check that every main output is read, and the side outputs that a source requires to be read. Rows for other
        unread side outputs are dropped and counted."""
        sides = {(edge.upstream, edge.output) for node in self._nodes for edge in node.inputs}
        for node_id, node in enumerate(self._nodes):
            for name, why in node.must_be_read.items():
                if (node_id, name) not in sides:
                    raise PipelineError(
                        f"no operator or sink reads the side output {name!r} of the {node.kind}",
                        where=node.where,
                        cause=why,
                        remedy=f'Write it: stream.side_output("{name}").write(sink, ...), or set on_bad_record="skip"',
                    )
        read = {edge.upstream for node in self._nodes for edge in node.inputs if edge.output == MAIN_OUTPUT}
        for node_id, node in enumerate(self._nodes):
            if node.sink is None and node_id not in read:
                raise PipelineError(
                    f"no operator or sink reads the records of the {node.kind}",
                    # The derived uid says which source or operator it belongs to.
                    where=call_place(node.kind, self._uids()[node_id], node.location),
                    remedy="Write the records to a sink (Discard() drops them), or remove the call",
                )

    def _uids(self) -> list[str]:
        """Return the uids: the user's, and for other nodes `<nearest uid upstream>.<kind>`, or `<uid>.<output>` for a
        node that reads a side output. Adding or removing an operator elsewhere does not change them."""
        # All uids of the user, also of later nodes, so that no derived uid takes one of them.
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
    """Check that the sink supports the node's records. Raises PipelineError with the place in the user's code."""
    try:
        sink.check(node.schema)
    except PipelineError as error:
        raise with_place(error, node.where) from error


def with_place(error: PipelineError, where: str) -> PipelineError:
    """Return the same error, with the place in the user's code added."""
    own = f"{error.where}, {where}" if error.where else where
    return PipelineError(error.what, where=own, cause=error.cause, remedy=error.remedy)


def require_uid(uid: object, kind: str, location: str) -> str:
    """Return the uid, checked. Raises PipelineError if it is missing or cannot be part of a file name."""
    where = call_place(kind, None, location)
    if uid is None:
        raise PipelineError(
            f"the {kind} has no uid",
            where=where,
            cause="snapshots find the state of an operator by its uid",
            remedy='Set a stable name: uid="..."',
        )
    if not isinstance(uid, str) or not UID.fullmatch(uid) or len(uid) > MAX_UID_CHARACTERS:
        raise PipelineError(
            f"{uid!r} is not a valid uid",
            where=where,
            remedy=(
                f"Use letters, digits and ._- , starting with a letter or digit, at most {MAX_UID_CHARACTERS}, "
                'such as "daily-delays"'
            ),
        )
    return uid


def optional_uid(uid: object, kind: str, location: str) -> str | None:
    """Return the uid, checked, or None."""
    return None if uid is None else require_uid(uid, kind, location)
