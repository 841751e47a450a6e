"""The graph of a submission, recorded by the first driver that built it. A preflight compares a snapshot with it where
the pipeline cannot be built (S5.5, S6.4)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tidegate.errors import AlreadyExistsError, NotFoundError
from tidegate.jobs.codec import encode, read_record
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.stores.store import Store


@dataclass(frozen=True, slots=True)
class PinnedGraph:
    """Record `graphs/<submission>.json`. Create-only, by the driver.

    Attributes:
        spec: number of the submission; 0: a pipeline that was not submitted.
        parallelism: option of the submission.
        max_parallelism: option of the submission.
        graph: document of the JobGraph.
        pinned_at: time.
        sinks: two-phase-commit sinks, uid -> text of the sink's identity; empty in records of older versions.
        options: options in effect, with derived values of unset options; empty in records of older versions.
    """

    RECORD: ClassVar[str] = "graph"
    VERSION: ClassVar[int] = 1

    spec: int
    parallelism: int
    max_parallelism: int
    graph: Mapping[str, Any]
    pinned_at: str
    sinks: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def write_pinned_graph(store: Store, layout: JobLayout, pinned: PinnedGraph) -> None:
    """Write the graph unless an earlier driver of the submission did; it ran the same code. Raises StoreError."""
    with suppress(AlreadyExistsError):
        store.create(layout.graph(pinned.spec), encode(pinned))


def read_pinned_graph(store: Store, layout: JobLayout, spec: int) -> PinnedGraph | None:
    """Return the graph of a submission; None: no driver has built it yet, or the driver had an older version.

    Raises RecordError, StoreError.
    """
    path = layout.graph(spec)
    try:
        return read_record(store, path, PinnedGraph)
    except NotFoundError:
        return None
