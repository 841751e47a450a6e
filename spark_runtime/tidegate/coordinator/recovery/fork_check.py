"""Check that a fork's pipeline ends, and does not write to the sinks of its original (S7.4).

Pure, except `two_phase_sinks_with_data`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping

from tidegate.connectors.interface import Sink
from tidegate.errors import PipelineError
from tidegate.jobs.artifacts.pinned_graph import read_pinned_graph
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.history.rewinds import rewound_sinks
from tidegate.jobs.history.sink_identity import is_same_place, recorded_identity
from tidegate.jobs.history.submissions import entries_by_submission, may_have_run, next_submission_that_ran
from tidegate.jobs.records import Spec
from tidegate.jobs.stores.store import Store
from tidegate.plan.job_graph import JobGraph


def check_fork(
    graph: JobGraph, spec: Spec, live: Mapping[str, str], resolve: Callable[[str], str] = posixpath.normpath
) -> None:
    """Refuse a fork that would never end, or would write where its original writes. Other submissions pass.

    Args:
        live: two-phase-commit sinks of the original, uid -> recorded text of each identity.
        resolve: maps a local path to its canonical name: `os.path.realpath`.

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
            f"a fork needs bounded sources, but these sources are unbounded: {', '.join(unbounded)}",
            where=where,
            cause="a fork processes a limited part of the input, and then ends",
            remedy="Use a bounded source, such as Files. With the same uid the source resumes from its position in the "
            "snapshot; with a new uid it reads from the beginning",
        )
    for uid, sink in two_phase_sinks(graph).items():
        own = sink.identity()
        taken = next((o for o, text in live.items() if is_same_place(own, recorded_identity(text), resolve)), None)
        if taken is not None:
            raise PipelineError(
                f"sink {uid!r} of the fork writes to the same place as sink {taken!r} of the original job",
                where=f"{where}, {sink.describe()}",
                cause=f"rows of the fork would mix with the rows of {live[taken]}",
                remedy="Configure another place for the fork. A custom sink class names its place in identity()",
            )


def two_phase_sinks(graph: JobGraph) -> dict[str, Sink]:
    """Return the graph's two-phase-commit sinks, by uid."""
    return {node.uid: node.sink for node in graph.nodes if node.sink is not None and node.sink.two_phase}


def two_phase_sinks_with_data(store: Store, job_id: str, fork_id: str) -> dict[str, str]:
    """Return two-phase-commit sinks of another job of the root that may hold data: uid -> last recorded description.

    If that job is a fork itself, the sinks of its original jobs are included. Included are sinks that have committed,
    and sinks of the newest submission that may have run, even if it has completed nothing yet. Blocks on the store.

    Args:
        store: store of the root.
        fork_id: the job that asks.
    """
    found: dict[str, str] = {}
    stems_from: str | None = job_id
    seen = {fork_id}
    # An ended job may be started again as a fork (`--fresh`), so that a chain of forks may lead back to a job.
    while stems_from is not None and stems_from not in seen:
        seen.add(stems_from)
        client = JobClient(store, stems_from)
        specs, entries = client.specs(), entries_by_submission(client.decisions())
        described = dict(rewound_sinks(entries, (e.data["checkpoint_id"] for e in entries if e.kind == "complete")))
        newest = next_submission_that_ran(len(specs) + 1, may_have_run(entries))
        pinned = read_pinned_graph(store, client.layout, newest) if newest else None
        for uid, now in pinned.sinks.items() if pinned is not None else ():
            described[uid if described.get(uid, now) == now else f"{uid} of submission {newest}"] = now
        found |= {uid if stems_from == job_id else f"{uid} of {stems_from}": text for uid, text in described.items()}
        stems_from = next((s.restore.fork_of for s in reversed(specs) if s.restore and s.restore.fork_of), None)
    return found
