"""Checks whether a submission of a job, or another pipeline, can be restored from a snapshot (S5.5, S6.4, S7.5).

They read only documents of the job directory. They need no runtime, and change nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.errors import NotFoundError, OptionError, SnapshotError
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph, read_pinned_graph
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.codec import canonical, decode, from_document
from tidegate.jobs.json_documents import read_bounded, read_metadata_document
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.restore.compatibility import RestoreTarget, RestoreVerdict, SnapshotFacts, check_compatibility
from tidegate.jobs.restore.snapshot_lookup import open_snapshot_folder, resolve_restore
from tidegate.jobs.stores.store_registry import open_store

NEWEST_METADATA = 5
"""Newest version of `_metadata` documents that can be read."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """Result of a check before a restore.

    Attributes:
        path: path of the snapshot, relative to the root, absolute, or a URL.
        spec: submission whose graph was compared; 0: a graph of no submission.
        verdict: the findings.
    """

    path: str
    spec: int
    verdict: RestoreVerdict


def preflight_restore(
    client: JobClient, restore: RestoreFrom, graph: PinnedGraph | None = None, *, parallelism: int | None = None
) -> Preflight:
    """Compare the snapshot that `restore` names with a pipeline's graph.

    Args:
        restore: the snapshot, and the differences that are allowed.
        graph: None: the graph of the submission whose code a restore runs (`JobView.followed`).
        parallelism: parallelism of the restored job; None: the graph's own.

    Raises:
        SnapshotError: the snapshot does not exist, is damaged, or has a newer version.
        OptionError: the submission has no pinned graph.
        StoreError, RecordError: the job directory cannot be read.
    """
    specs = client.specs()
    view = client.view() if specs else None
    resolved = resolve_restore(client.store, client.storage_options, client.job_id, restore, specs, view)
    path = resolved.restore.path
    if path is None:
        assert view is not None and view.latest_recovery_point is not None, "resolve_restore has just found it"
        path = view.latest_recovery_point.path
    state_backend = None
    if graph is None:
        number = view.followed if view is not None else 0
        graph = _pinned(client, number)
        state_backend = JobOptions.from_mapping(specs[number - 1].options).state_backend
    target = RestoreTarget(
        graph.graph,
        parallelism or graph.parallelism,
        graph.max_parallelism,
        allow_non_restored_state=restore.allow_non_restored_state,
        allow_drained=restore.allow_drained,
        state_backend=state_backend,
        is_fork=resolved.lineage is None,
    )
    body = metadata_body(client, path)
    try:
        verdict = check_compatibility(SnapshotFacts.from_body(body), target)
    except (KeyError, TypeError) as error:
        raise SnapshotError(
            "the snapshot cannot be compared with the pipeline: its metadata or the pipeline's graph lacks a field",
            where=path,
            cause=repr(error),
            remedy="Name another snapshot, or write the graph again with `tidegate snapshot check --write-graph`",
        ) from error
    return Preflight(path, graph.spec, verdict)


def metadata_body(client: JobClient, path: str) -> Mapping[str, Any]:
    """Return the body of a snapshot's `_metadata`, after a check of its checksum. Raises SnapshotError, StoreError."""
    store, folder = open_snapshot_folder(client.store, client.storage_options, path)
    try:
        document = read_metadata_document(store, JobLayout.metadata(folder))
        body, version, sha256 = document["body"], document["v"], document["sha256"]
    except NotFoundError as error:
        raise SnapshotError(
            f"{path} is not a complete snapshot: it has no _metadata",
            where=path,
            remedy="Name a snapshot that `tidegate checkpoints` lists",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(
            f"the metadata of {path} is damaged", where=path, cause=repr(error), remedy="Restore another snapshot"
        ) from error
    if version > NEWEST_METADATA:
        raise SnapshotError(
            f"the snapshot's metadata has version {version}, but this tidegate reads versions up to {NEWEST_METADATA}",
            where=path,
            cause="a newer tidegate wrote it",
            remedy="Upgrade tidegate in this environment",
        )
    # `canonical` ends with a line break, which is not part of the checksum.
    if hashlib.sha256(canonical(body).rstrip(b"\n")).hexdigest() != sha256:
        raise SnapshotError(
            f"the metadata of snapshot {path} was changed after it was written: its checksum differs",
            where=path,
            remedy="Name another snapshot",
        )
    return dict(body)


def graph_from(given: str | Mapping[str, Any], storage_options: Mapping[str, Any]) -> PinnedGraph:
    """Return a graph that `tidegate snapshot check --write-graph` wrote, from its document, or from its path or URL.

    Raises OptionError when it does not exist, RecordError when it is another document.
    """
    if isinstance(given, Mapping):
        return from_document(dict(given), PinnedGraph, "graph")
    folder, name = os.path.split(given)
    try:
        return decode(read_bounded(open_store(folder or ".", storage_options), name), PinnedGraph, given)
    except NotFoundError as error:
        raise OptionError(
            "the file of the pipeline's graph does not exist",
            where=given,
            remedy="Write it with `tidegate snapshot check --write-graph FILE.json`",
        ) from error


def _pinned(client: JobClient, spec: int) -> PinnedGraph:
    found = read_pinned_graph(client.store, client.layout, spec) if spec else None
    if found is None:
        raise OptionError(
            f"no graph of the pipeline is stored for submission {spec} of the job"
            if spec
            else "the job has no submission",
            where=f"job {client.job_id}",
            cause="no driver has built its pipeline yet, or a driver of an older version did not record the graph",
            remedy="Write the graph with `tidegate snapshot check --write-graph FILE.json`, and pass that file",
        )
    return found
