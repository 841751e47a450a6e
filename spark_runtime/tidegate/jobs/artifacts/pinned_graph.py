"""The graph of a submission, pinned by the driver that built it first: what a preflight compares a snapshot with, where
nobody can build the pipeline (S5.5, S6.4)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tidegate.errors import AlreadyExistsError, NotFoundError
from tidegate.jobs.codec import decode, encode
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.stores.store import Store


@dataclass(frozen=True, slots=True)
class PinnedGraph:
    """`graphs/<submission>.json`; create-only, by the driver.

    Attributes:
        spec: submission; 0: of a pipeline that was not submitted.
        parallelism: of its options.
        max_parallelism: of its options.
        graph: document of the JobGraph.
        pinned_at: time.
        sinks: two-phase ones, uid -> what each says of itself; empty also in those of earlier versions.
        options: in effect, with what the submission left open; empty in those of earlier versions.
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
    """Write it, unless an earlier driver of the submission has: a relaunch runs the same code. Raises StoreError."""
    with suppress(AlreadyExistsError):
        store.create(layout.graph(pinned.spec), encode(pinned))


def read_pinned_graph(store: Store, layout: JobLayout, spec: int) -> PinnedGraph | None:
    """That of a submission; None: no driver has built it yet, or one of an earlier version. Raises RecordError,
    StoreError."""
    path = layout.graph(spec)
    try:
        return decode(store.read(path), PinnedGraph, path)
    except NotFoundError:
        return None
