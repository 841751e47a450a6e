"""Which schemas a submission's sources have that found them in their input: those of the run that made its snapshot, or
of its own first build, and never those of today's files (S5.5)."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.connectors.found_schema import FoundSchemas, found_schemas
from tidegate.coordinator.recovery.restore_point import choose_restore_point, end_status
from tidegate.jobs.artifacts.pinned_graph import read_pinned_graph
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Spec
from tidegate.jobs.stores.store import Store
from tidegate.snapshot.location import open_location
from tidegate.snapshot.metadata import read_metadata

FIRST_WITH_SCHEMAS = 5
"""Version of the graph document."""


def schemas_in_effect(
    store: Store, layout: JobLayout, spec: Spec, specs: Sequence[Spec], log: DecisionLog
) -> FoundSchemas:
    """For building the pipeline of submission `spec`, before its graph is known; blocks on the store.

    The graph that the submission's first driver pinned comes first: slots, relaunches and late commits then agree with
    it, with a checkpoint or without. A submission that has none begins with what it restores, which may be a savepoint
    of another job. Where neither has one, as in a fresh start and in earlier versions, sources find it in their input.

    Raises:
        SnapshotError: there is nothing of what the submission restores, or it is damaged.
        StoreError: the job directory, or the snapshot's, cannot be read; looking at the input would be a guess.
    """
    pinned = read_pinned_graph(store, layout, spec.number)
    if pinned is not None and pinned.graph.get("version", 1) >= FIRST_WITH_SCHEMAS:
        return found_schemas(pinned.graph)
    decisions = log.read()
    if end_status(decisions, spec.number) is not None:
        return {}  # it runs no more, and what it restored may have been deleted
    point = choose_restore_point(decisions, specs, spec.number)
    if point is None:
        return {}
    return found_schemas(read_metadata(*open_location(store, spec, point.location)).graph)
