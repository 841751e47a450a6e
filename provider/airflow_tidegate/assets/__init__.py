"""Assets that change by what happens to a job: schedule a DAG on one, and each event starts a run.

The event's payload is `context["triggering_asset_events"][asset][0].extra["payload"]`; what it holds, and what is told
twice when, is in docs/airflow/assets.md.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, AssetWatcher

from airflow_tidegate.hooks.tidegate import DEFAULT_CONN_ID
from airflow_tidegate.triggers.event_triggers import (
    JobEventTrigger,
    TidegateCheckpointEventTrigger,
    TidegateEndOfDataEventTrigger,
    TidegateWatermarkEventTrigger,
)
from tidegate.jobs.layout import check_job_id


def checkpoint_asset(
    job_id: str, *, conn_id: str = DEFAULT_CONN_ID, published: bool = False, name: str | None = None, **options: Any
) -> Asset:
    """An asset that changes when a snapshot of the job is completed.

    Args:
        job_id: the job; it need not be there yet.
        conn_id: connection of type `tidegate`.
        published: only snapshots whose output is committed.
        name: of the asset; None: made from the arguments.
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
        job_id: the job; it need not be there yet.
        every: length of an interval: "1 h".
        conn_id: connection of type `tidegate`.
        start: where the first interval begins; None: with the first that begins after the watcher does.
        durable: by the watermark of published checkpoints: the rows of the interval are committed.
        name: of the asset; None: made from the arguments.
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
    """An asset that changes when sources of the job have come to their end.

    Args:
        job_id: the job; it need not be there yet.
        sources: uids with commas; with neither argument: all sources of the job.
        played_all: uids, with commas, of replaying sources that have played all they have.
        conn_id: connection of type `tidegate`.
        name: of the asset; None: made from the arguments.
        options: see `checkpoint_asset`.
    """
    trigger = TidegateEndOfDataEventTrigger(
        job_id=job_id, conn_id=conn_id, sources=sources, played_all=played_all, **options
    )
    label = "-".join(
        ["end-of-data", *(part.replace(",", "-").replace(" ", "") for part in (sources, played_all) if part)]
    )
    return _asset(trigger, label, name)


def _asset(trigger: JobEventTrigger, what: str, name: str | None) -> Asset:
    """Name and URI tell assets of other arguments apart; so must a name that is given."""
    path = f"{check_job_id(trigger.job_id)}/{what}"
    title = name or f"tidegate-{path.replace('/', '-')}"
    watcher = AssetWatcher(name=title, trigger=trigger)
    return Asset(name=title, uri=f"tidegate://{trigger.conn_id}/{path}", watchers=[watcher])
