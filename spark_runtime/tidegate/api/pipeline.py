"""Pipeline: the object with which a user starts to build a job."""

from __future__ import annotations

from tidegate.api.draft.call_site import user_location
from tidegate.api.draft.column_checks import refuse_duplicates
from tidegate.api.draft.graph_draft import DraftNode, DraftOutput, GraphDraft, call_place, require_uid, with_place
from tidegate.api.draft.stream_time import StreamEventTime
from tidegate.api.stream import Stream
from tidegate.connectors.found_schema import recorded_schema
from tidegate.connectors.interface import Source
from tidegate.errors import PipelineError
from tidegate.plan.graph_svg import graph_html
from tidegate.plan.graph_text import explain_graph
from tidegate.plan.job_graph import JobGraph


class Pipeline:
    """A job being built: read sources, chain calls on the streams, write to sinks. Nothing runs.

    A pipeline file has a function that takes the job's arguments and returns the pipeline::

        def build(args):
            p = Pipeline()
            flights = p.read(Files(args["flights"]), uid="flights").with_watermark("time_hour", "1 hour")
            daily = flights.group_by("carrier").window(tumbling("1 day")).agg(flights=count(), uid="daily")
            daily.write(Parquet(args["out"]), uid="out")
            return p

    The function must depend on its arguments only: the driver and every slot call it separately.
    """

    def __init__(self) -> None:
        self._draft = GraphDraft()

    def read(self, source: Source, *, uid: str | None = None) -> Stream:
        """Read the records of a source. This asks the source for its schema, and the source may read a file's header.

        Raises:
            PipelineError: the argument is not a source, uid is missing, or the source fails, for example on a missing
                file.
        """
        location = user_location()
        uid = require_uid(uid, "source", location)
        where = call_place("source", uid, location)
        if not isinstance(source, Source):
            raise PipelineError(
                f"the argument of read(...) must be a source, but is {source!r}",
                where=where,
                remedy=f"Write Files({source!r})" if isinstance(source, str) else "Pass a source, such as Files(path)",
            )
        try:
            recorded = recorded_schema(uid)
            # The schema belongs to the job (S5.5): a restart must not infer another one from files that came later.
            if recorded is not None:
                source = source.with_found_schema(recorded)
            schema = source.schema()
        except PipelineError as error:
            raise with_place(error, where) from error
        if not schema.names:
            raise PipelineError("the source has no columns", where=where, remedy="Check the files, or pass schema=")
        refuse_duplicates(schema.names, where, remedy="Rename one of the columns in the source")
        sides = tuple(DraftOutput(name, side) for name, side in source.side_outputs().items())
        node = DraftNode(
            uid,
            "source",
            (),
            schema,
            location,
            stateful=True,
            source=source,
            side_outputs=sides,
            must_be_read=source.required_side_outputs(),
        )
        return Stream(
            self._draft, self._draft.add(node), schema, StreamEventTime(), bounded=source.boundedness == "bounded"
        )

    def build(self, *, check_sinks: bool = True) -> JobGraph:
        """Return the finished graph as frozen data. May be called again after more calls.

        Args:
            check_sinks: check that every sink supports its records; this may do I/O.

        Raises:
            PipelineError: there is no sink, nothing reads a stream, or a sink refuses its records.
        """
        return self._draft.graph(check_sinks=check_sinks)

    def explain(self) -> str:
        """Return the graph as readable text, with schemas and places in the user's code.

        Sinks, or streams that nothing reads yet, come first; their inputs are below them. Works before there is a sink.
        """
        return explain_graph(self._draft.partial_graph())

    def _repr_html_(self) -> str:
        """Return a picture of the graph, for notebooks."""
        return graph_html(self._draft.partial_graph())
