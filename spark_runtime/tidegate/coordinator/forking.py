"""What a fork's pipeline must be like, so that it ends and leaves its original's output alone (S7.4). Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping

from tidegate.contract.errors import PipelineError
from tidegate.contract.records import Spec
from tidegate.contract.sink_places import is_same_place
from tidegate.plan.graph import JobGraph


def check_fork(
    graph: JobGraph, spec: Spec, live: Mapping[str, str], resolve: Callable[[str], str] = posixpath.normpath
) -> None:
    """Refuse a fork that would never end, or write to where its original writes. Other submissions pass.

    Args:
        live: two-phase sinks of the original, uid -> what each says of itself.
        resolve: the one name of a local path: `os.path.realpath`.

    Raises:
        PipelineError: names the sources, or the sinks.
    """
    original = spec.restore.fork_of if spec.restore is not None else None
    if original is None:
        return
    where = f"job {spec.job_id}, fork of {original}"
    sources = [(node.uid, node.source) for node in graph.nodes if node.source is not None]
    unbounded = [f"{uid!r} ({source.describe()})" for uid, source in sources if source.boundedness == "unbounded"]
    if unbounded:
        raise PipelineError(
            f"a fork needs bounded sources, and unbounded are {', '.join(unbounded)}",
            where=where,
            cause="a fork works off a part of the input and ends",
            remedy="Give the pipeline a bounded source, such as Files; under the same uid it goes on from the position "
            "in the snapshot, under another one it begins at its beginning",
        )
    sinks = {node.uid: node.sink for node in graph.nodes if node.sink is not None and node.sink.two_phase}
    for uid, sink in sinks.items():
        told = sink.describe()
        taken = next((other for other, text in live.items() if is_same_place(told, text, resolve)), None)
        if taken is not None:
            raise PipelineError(
                f"sink {uid!r} of the fork writes to where sink {taken!r} of its original writes",
                where=f"{where}, {told}",
                cause=f"its rows would mix with those of {live[taken]}",
                remedy="Give the fork a place of its own; a sink class of your own names its place in describe()",
            )
