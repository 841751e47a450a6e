"""Calls that keep nothing between records: columns, rows, functions of batches, union."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import PipelineError
from tidegate.operators.specs import BatchFunction, FilterSpec, MapInArrowSpec, ProjectSpec, UnionSpec
from tidegate.api.draft.column_checks import refuse_duplicates, require_column, require_result_schema, same_columns
from tidegate.api.draft.graph_draft import DraftNode, optional_uid, place
from tidegate.api.draft.stream_time import common_event_time
from tidegate.api.draft.expression_checks import passed_column, require_boolean, require_expression, result_fields
from tidegate.api.draft.call_site import user_location
from tidegate.api.draft.side_outputs import checked_side_outputs
from tidegate.api.stream_base import StreamBase
from tidegate.plan.job_graph import Edge


class ColumnCalls(StreamBase):
    """Calls of `Stream`; see there."""

    def select(self, *columns: str | pc.Expression, **expressions: pc.Expression) -> Self:
        """The named columns, then the named expressions, and no others.

        Raises:
            PipelineError: no such column, types that do not fit, or a name twice.
        """
        location = user_location()
        where = place("select", None, location)
        wanted: list[tuple[str, pc.Expression]] = []
        for column in columns:
            name = passed_column(column, self.schema) if isinstance(column, pc.Expression) else column
            if name is None:
                raise PipelineError(
                    f"the expression {column} has no name", where=where, remedy=f"Name it: select(name={column})"
                )
            wanted.append((require_column(self.schema, name, where).name, pc.field(name)))
        wanted.extend((name, require_expression(value, where)) for name, value in expressions.items())
        if not wanted:
            raise PipelineError("select of no columns", where=where, remedy="Name at least one column")
        return self._project(wanted, "select", location)

    def with_columns(self, **expressions: pc.Expression) -> Self:
        """All columns, with these added, or replaced where the name is there already.

        Every expression sees the columns as they are before the call.

        Raises:
            PipelineError: no such column, or types that do not fit.
        """
        location = user_location()
        where = place("with_columns", None, location)
        checked = {name: require_expression(value, where) for name, value in expressions.items()}
        if not checked:
            raise PipelineError(
                "with_columns of no columns", where=where, remedy='Give at least one: name=pc.field("delay") * 2'
            )
        wanted = [(name, checked.pop(name, None)) for name in self.schema.names]
        plain = [(name, pc.field(name) if value is None else value) for name, value in wanted]
        return self._project([*plain, *checked.items()], "with_columns", location)

    def filter(self, predicate: pc.Expression) -> Self:
        """The records for which `predicate` is true; null counts as false.

        Raises:
            PipelineError: no such column, or not a boolean.
        """
        location = user_location()
        where = place("filter", None, location)
        require_boolean(require_expression(predicate, where), self.schema, where)
        spec = FilterSpec(predicate, self.schema)
        node = DraftNode(None, "filter", self._forward(), self.schema, location, spec=spec)
        return self._then(node, self._event_time)

    def map_in_arrow(
        self,
        fn: BatchFunction,
        schema: pa.Schema,
        *,
        side_outputs: Mapping[str, pa.Schema] | None = None,
        uid: str | None = None,
    ) -> Self:
        """Apply a function of record batches: it takes an iterator and gives batches of `schema`.

        It is called afresh for each delivered batch, the iterator holds that one batch, and what it gives is exhausted
        before any barrier passes: nothing that it keeps is part of a snapshot, and how records are cut into batches
        may differ from run to run. The event-time column counts as unchanged where `schema` has it, of the same type.

        Args:
            fn: takes Iterator[pyarrow.RecordBatch], gives pyarrow.RecordBatch objects, and `SideOutput(name, batch)`.
            schema: of what it gives; checked batch by batch.
            side_outputs: other outputs, name -> schema; read them with `.side_output(name)` of what this returns.
            uid: default: derived from the nearest uid upstream.

        Raises:
            PipelineError: not a function, or not a schema, also of a side output.
        """
        location = user_location()
        uid = optional_uid(uid, "map_in_arrow", location)
        where = place("map_in_arrow", uid, location)
        if not callable(fn):
            raise PipelineError(
                f"map_in_arrow needs a function, got {type(fn).__name__}",
                where=where,
                remedy="Give a function that takes an iterator of record batches and yields record batches",
            )
        require_result_schema(schema, "map_in_arrow", where)
        sides = checked_side_outputs(side_outputs, self.schema, self._event_time, where)
        spec = MapInArrowSpec(fn, schema, tuple((side.name, side.schema) for side in sides))
        node = DraftNode(uid, "map_in_arrow", self._forward(), schema, location, spec=spec, side_outputs=sides)
        return self._then(node, self._event_time.kept_by(same_columns(schema, self.schema), where))

    def union(self, *others: Self) -> Self:
        """The records of all, in order of arrival; columns are matched by name and must have equal types.

        Raises:
            PipelineError: other columns or types, or no other stream.
        """
        location = user_location()
        where = place("union", None, location)
        if not others:
            raise PipelineError("union of one stream", where=where, remedy="Give at least one other")
        for other in others:
            self._require_sibling(other, where)
            _require_same_columns(self.schema, other.schema, where)
        inputs = (self, *others)
        schema = pa.schema(
            [
                field.remove_metadata().with_nullable(any(s.schema.field(field.name).nullable for s in inputs))
                for field in self.schema
            ]
        )
        edges = tuple(Edge(stream._aligned(schema, location), "forward") for stream in inputs)
        node = DraftNode(None, "union", edges, schema, location, spec=UnionSpec())
        event_time = common_event_time([s._event_time for s in inputs], where)
        return type(self)(
            self._draft, self._draft.add(node), schema, event_time, bounded=all(s.bounded for s in inputs)
        )

    def _project(self, columns: Sequence[tuple[str, pc.Expression]], call: str, location: str) -> Self:
        where = place(call, None, location)
        refuse_duplicates((name for name, _ in columns), where, remedy="Give one of them another name")
        schema = pa.schema(result_fields(columns, self.schema, where))
        node = DraftNode(None, "project", self._forward(), schema, location, spec=ProjectSpec(tuple(columns), schema))
        sources: Mapping[str, str] = {
            name: source for name, value in columns if (source := passed_column(value, self.schema)) is not None
        }
        return self._then(node, self._event_time.kept_by(sources, where))

    def _aligned(self, schema: pa.Schema, location: str) -> int:
        """Id of a node that gives this stream's records in exactly `schema`, which has the same names and types."""
        if self.schema.equals(schema):
            return self._node_id
        spec = ProjectSpec(tuple((name, pc.field(name)) for name in schema.names), schema)
        return self._draft.add(DraftNode(None, "project", self._forward(), schema, location, spec=spec))


def _require_same_columns(left: pa.Schema, right: pa.Schema, where: str) -> None:
    for mine, theirs, side in ((left, right, "first"), (right, left, "other")):
        lacking = [name for name in mine.names if name not in theirs.names]
        if lacking:
            raise PipelineError(
                f"column {lacking[0]!r} is in the {side} stream of the union alone",
                where=where,
                remedy="Give all the same columns first, with .select(...)",
            )
    for field in left:
        other = right.field(field.name)
        if other.type != field.type:
            raise PipelineError(
                f"column {field.name!r} is {field.type} in the first stream of the union and {other.type} in another",
                where=where,
                remedy=f"Cast one of them first: .with_columns({field.name}=pc.field({field.name!r}).cast(...))",
            )
