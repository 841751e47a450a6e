"""Reports to OpenLineage: the places that a job writes to, and the job, submission and snapshot of a task.

Needs `apache-airflow-providers-openlineage`; without it nothing is reported.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any
from urllib.parse import urlsplit

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.history.rewinds import rewound_sinks
from tidegate.jobs.history.sink_identity import recorded_identity
from tidegate.jobs.history.submissions import entries_by_submission

FACET = "tidegate_job"
"""Name of the run facet."""


def lineage_of(client: JobClient) -> Any:
    """Return an `OperatorLineage` with the sinks of the job's current submission as outputs.

    The run facet `tidegate_job` has `job_id`, `submission`, `generation`, `status`, and `checkpoint_id` and `snapshot`
    of the newest completed snapshot.

    Raises:
        ImportError: OpenLineage's provider is not installed.
        TidegateError: the job cannot be read.
    """
    lineage: Any = importlib.import_module("airflow.providers.openlineage.extractors").OperatorLineage
    dataset: Any = importlib.import_module("openlineage.client.event_v2").Dataset
    view = client.view()
    newest = view.completed[-1] if view.completed else None
    entries = [entry for entry in entries_by_submission(client.decisions()) if entry.spec == view.spec_number]
    described = rewound_sinks(entries, (e.data["checkpoint_id"] for e in entries if e.kind == "complete"))
    named = [_named(recorded_identity(text).plain_place) for _, text in sorted(described.items())]
    facet = _facet_class()(
        job_id=view.job_id,
        submission=view.spec_number,
        generation=view.generation,
        status=view.settled.status.value,
        checkpoint_id=newest.checkpoint_id if newest is not None else None,
        snapshot=newest.path if newest is not None else None,
    )
    outputs = [dataset(namespace=namespace, name=name) for namespace, name in filter(None, named)]
    return lineage(outputs=outputs, run_facets={FACET: facet})


def _named(place: tuple[str, ...]) -> tuple[str, str] | None:
    """Return namespace and name of a dataset, by OpenLineage's naming; None for a place without a name there."""
    if len(place) == 2:
        server, _, database = place[0].partition("/")
        return f"postgres://{server}", f"{database}.{place[1]}"
    if len(place) != 1:
        return None
    url = urlsplit(place[0])
    if url.scheme in ("", "file"):
        return "file", url.path
    return f"{url.scheme}://{url.netloc}", url.path.strip("/") or "/"


@functools.cache
def _facet_class() -> Any:
    attr: Any = importlib.import_module("attr")
    base = importlib.import_module("openlineage.client.facet_v2").RunFacet
    fields = {
        "job_id": str,
        "submission": int,
        "generation": int,
        "status": str,
        "checkpoint_id": int | None,
        "snapshot": str | None,
    }
    attributes = {name: attr.field(type=kind, kw_only=True) for name, kind in fields.items()}
    return attr.make_class("TidegateJobRunFacet", attributes, bases=(base,))
