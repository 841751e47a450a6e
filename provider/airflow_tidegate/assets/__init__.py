"""Assets that change on events of a job: schedule a DAG on one, and each event starts a run.

The event's payload is `context["triggering_asset_events"][asset][0].extra["payload"]`. docs/airflow/assets.md describes
its content, and when an event is delivered twice.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, AssetWatcher

from airflow_tidegate.hooks.tidegate import DEFAULT_CONN_ID
from airflow_tidegate.triggers.event_triggers import (
    JobEventTrigger,
    TidegateCheckpointEventTrigger,
    TidegateEndOfDataEventTrigger,
    TidegateSnapshotExpiringEventTrigger,
    TidegateWatermarkEventTrigger,
)
from tidegate.jobs.layout import check_job_id


def checkpoint_asset(
    job_id: str, *, conn_id: str = DEFAULT_CONN_ID, published: bool = False, name: str | None = None, **options: Any
) -> Asset:
    """An asset that changes when a snapshot of the job is completed.

    Args:
        job_id: the job; it need not exist yet.
        conn_id: connection of type `tidegate`.
        published: only snapshots whose output is committed.
        name: of the asset; None: derived from the arguments.
        options: `watcher`, `min_interval`, `poll_interval`; see `JobEventTrigger`.
    """
    trigger = TidegateCheckpointEventTrigger(job_id=job_id, conn_id=conn_id, published=published, **options)
    return _asset(trigger, "published-checkpoints" if published else "checkpoints", name)


def watermark_asset(
    job_id: str,
    *,
    every: str,
    conn_id: str = DEFAULT_CONN_ID,
    start: str | None = None,
    durable: bool = False,
    name: str | None = None,
    **options: Any,
) -> Asset:
    """An asset that changes each time the job's watermark has passed the end of an interval.

    Args:
        job_id: the job; it need not exist yet.
        every: length of an interval: "1 h".
        conn_id: connection of type `tidegate`.
        start: begin of the first interval; None: the first interval that begins after the watcher starts.
        durable: use the watermark of published checkpoints, so that the rows of the interval are committed.
        name: of the asset; None: derived from the arguments.
        options: see `checkpoint_asset`.
    """
    trigger = TidegateWatermarkEventTrigger(
        job_id=job_id, conn_id=conn_id, every=every, start=start, durable=durable, **options
    )
    label = f"{'durable-' if durable else ''}watermark-{every.replace(' ', '')}"
    return _asset(trigger, label, name)


def end_of_data_asset(
    job_id: str,
    *,
    sources: str = "",
    played_all: str = "",
    conn_id: str = DEFAULT_CONN_ID,
    name: str | None = None,
    **options: Any,
) -> Asset:
    """Return an asset that changes when sources of the job have reached the end of their input.

    Args:
        job_id: the job; it need not exist yet.
        sources: uids, separated by commas; with neither argument: all sources of the job.
        played_all: uids, separated by commas, of replaying sources that have played all their rows.
        conn_id: connection of type `tidegate`.
        name: of the asset; None: derived from the arguments.
        options: see `checkpoint_asset`.
    """
    trigger = TidegateEndOfDataEventTrigger(
        job_id=job_id, conn_id=conn_id, sources=sources, played_all=played_all, **options
    )
    label = "-".join(
        ["end-of-data", *(part.replace(",", "-").replace(" ", "") for part in (sources, played_all) if part)]
    )
    return _asset(trigger, label, name)


def snapshot_expiring_asset(
    job_id: str, *, before: str = "12 h", conn_id: str = DEFAULT_CONN_ID, name: str | None = None, **options: Any
) -> Asset:
    """Return an asset that changes when the newest snapshot from which the job can be restored expires within a time.

    It changes once; again when a newer snapshot that expired later is close to its expiry. The job may run, be stopped,
    or have failed.

    Args:
        job_id: the job; it need not exist yet.
        before: how long before the expiry: "12 h". Choose less than the retention of the input.
        conn_id: connection of type `tidegate`.
        name: of the asset; None: derived from the arguments.
        options: see `checkpoint_asset`.
    """
    trigger = TidegateSnapshotExpiringEventTrigger(job_id=job_id, conn_id=conn_id, before=before, **options)
    return _asset(trigger, f"snapshot-expiring-{before.replace(' ', '')}", name)


def _asset(trigger: JobEventTrigger, what: str, name: str | None) -> Asset:
    """Create the asset. Assets with other arguments have another name and URI; a `name` of the user must be unique
    too."""
    path = f"{check_job_id(trigger.job_id)}/{what}"
    title = name or f"tidegate-{path.replace('/', '-')}"
    watcher = AssetWatcher(name=title, trigger=trigger)
    return Asset(name=title, uri=f"tidegate://{trigger.conn_id}/{path}", watchers=[watcher])
