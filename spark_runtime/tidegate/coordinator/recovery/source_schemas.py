"""Find the schemas of sources that infer them from their input (S5.5).

A restart uses the schemas of the run that took its snapshot, or of the submission's own first build. It never infers
them from today's files.
"""

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
"""First version of the graph document that contains schemas."""


def schemas_in_effect(
    store: Store, layout: JobLayout, spec: Spec, specs: Sequence[Spec], log: DecisionLog
) -> FoundSchemas:
    """Return the schemas for building the pipeline of submission `spec`, before its graph is known. Blocks on the
    store.

    The graph that the submission's first driver pinned has precedence, so that slots, relaunches and late commits agree
    with it, with or without a checkpoint. If there is none, the schemas come from the restored snapshot, which may be a
    savepoint of another job. If that has none either, as in a fresh start and in earlier versions, the sources infer
    them.

    Raises:
        SnapshotError: the snapshot that the submission restores is missing or damaged.
        StoreError: the job directory or the snapshot's store cannot be read. Inferring schemas instead would be a
            guess.
    """
    pinned = read_pinned_graph(store, layout, spec.number)
    if pinned is not None and pinned.graph.get("version", 1) >= FIRST_WITH_SCHEMAS:
        return found_schemas(pinned.graph)
    decisions = log.read()
    if end_status(decisions, spec.number) is not None:
        return {}  # it never runs again, and its restored snapshot may have been deleted
    point = choose_restore_point(decisions, specs, spec.number)
    if point is None:
        return {}
    return found_schemas(read_metadata(*open_location(store, spec, point.location)).graph)
