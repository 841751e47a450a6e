"""Converts a job to JSON for the page. Pure; the page shows all texts as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from airflow_tidegate.plugins.job_cache import JobState
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.submissions import LogEntry, entries_by_submission
from tidegate.jobs.records import Spec
from tidegate.jobs.status import CheckpointView, JobStatus, JobView, SourceView, failure_views
from tidegate.jobs.status_text import (
    counters_period,
    deletions_words,
    event_time_text,
    failure_text,
    records_read,
    refusal_text,
    slots_available,
    was_restored,
)
from tidegate.jobs.stop_outcomes import STOP_OUTCOMES, stop_warning

NEWEST_CHECKPOINTS = 60
"""Number of newest snapshots that are sent."""
NEWEST_ENTRIES = 40
"""Number of newest events that are sent."""
NEWEST_FAILURES = 10
MAX_FILES = 20
"""Number of staged files that are listed."""

Json = dict[str, Any]


def summary_document(conn_id: str, job_id: str, job_state: JobState, now: datetime) -> Json:
    """Return a job for the list."""
    view = job_state.view
    last = view.completed[-1] if view.completed else None
    return {
        "conn_id": conn_id,
        "job_id": job_id,
        "status": str(view.settled.status),
        "reason": refusal_text(view)
        or view.reason
        or (view.failure.message if view.failure and view.status is JobStatus.FAILED else ""),
        "is_terminal": view.is_terminal,
        "is_silent": job_state.is_silent,
        "owner_dag": job_state.spec.owner_dag,
        "submitted_by": job_state.spec.submitted_by,
        "submitted_at": job_state.spec.submitted_at,
        "restarts": view.restarts,
        "records": records_read(view),
        "rate": sum(job_state.rates.values()) if job_state.rates else None,
        "watermark": event_time_text(view.watermark_us),
        "lag_s": _lag_s(view.watermark_us, now),
        "checkpoints": len(view.completed),
        "last_checkpoint_at": last.completed_at if last is not None else None,
        "waiting": list(view.waiting),
    }


def job_document(conn_id: str, job_state: JobState, now: datetime) -> Json:
    """Return a job for its page."""
    view = job_state.view
    newest = view.checkpoints[-NEWEST_CHECKPOINTS:]
    entries = entries_by_submission(job_state.decisions)
    return {
        **summary_document(conn_id, view.job_id, job_state, now),
        "now": _iso(now),
        "reason": refusal_text(view) or view.reason,
        "is_active": view.is_active,
        "silent_s": round(job_state.silent_s, 1),
        "submissions": [_submission(spec, was_restored(entries, spec.number)) for spec in job_state.specs[-5:]],
        "spec": view.spec_number,
        "generation": view.generation,
        "pipeline": job_state.spec.pipeline,
        "master": job_state.spec.master,
        "parallelism": job_state.spec.options.get("parallelism"),
        "slots": {"registered": slots_available(view), "needed": view.slots_needed},
        "sources": [_source(source, job_state.rates, now) for source in view.sources],
        "sources_paused": view.sources_paused,
        "waits_for_deletions": view.waits_for_deletions,
        "deletions": deletions_words(view),
        "counters": {uid: dict(counts) for uid, counts in view.counters.items()},
        "counters_periods": {uid: counters_period(uid, view) for uid in view.counters},
        "stop": _stop(view.settled.stop),
        "failures": _failures(entries, view),
        "statistics": asdict(view.statistics),
        "history": [_checkpoint(checkpoint) for checkpoint in reversed(newest)],
        "history_total": len(view.checkpoints),
        "uncommitted": list(view.uncommitted),
        "gated": job_state.spec.options.get("commit") == "on_request",
        "staged": [_staged(data) for data in job_state.staged],
        "staged_problem": job_state.staged_problem,
        "points": [_checkpoint(point) for point in job_state.points],
        "restore_problem": job_state.restore_problem,
        "latest_point": view.latest_recovery_point.checkpoint_id if view.latest_recovery_point else None,
        "events": _events(entries),
    }


def _submission(spec: Spec, was_restored: bool) -> Json:
    return {
        "number": spec.number,
        "by": spec.submitted_by,
        "at": spec.submitted_at,
        "restored": None if spec.restore is None else spec.restore.checkpoint_id or spec.restore.path or "latest",
        "was_restored": was_restored,
    }


def _source(source: SourceView, rates: Mapping[str, float], now: datetime) -> Json:
    return {
        "uid": source.uid,
        "boundedness": source.boundedness,
        "records": source.records,
        "rate": rates.get(source.uid),
        "end_of_data": source.end_of_data,
        "played_all": source.played_all,
        "watermark": event_time_text(source.watermark_us),
        "lag_s": _lag_s(source.watermark_us, now),
    }


def _checkpoint(checkpoint: CheckpointView) -> Json:
    metrics = checkpoint.metrics
    return {
        "id": checkpoint.checkpoint_id,
        "kind": checkpoint.kind,
        "status": checkpoint.status,
        "path": checkpoint.path,
        "spec": checkpoint.spec,
        "triggered_at": checkpoint.triggered_at,
        "completed_at": checkpoint.completed_at,
        "duration_ms": checkpoint.duration_ms,
        **{name: _number(metrics.get(name)) for name in ("alignment_ms", "sync_ms", "async_ms", "bytes")},
        "reason": checkpoint.reason,
        "code": checkpoint.code,
        "committed": checkpoint.committed,
        "verdict": checkpoint.verdict,
        "taken_back": checkpoint.taken_back,
        "by": checkpoint.by,
    }


def _staged(data: StagedData) -> Json:
    return {
        "uid": data.uid,
        "checkpoint_id": data.checkpoint_id,
        "kind": data.kind,
        "rows": data.rows,
        "bytes": data.bytes,
        "format": data.format,
        "place": data.place,
        "relation": data.relation,
        "paths": list(data.paths[:MAX_FILES]),
        "more_paths": max(0, len(data.paths) - MAX_FILES),
    }


def _stop(stop: Mapping[str, Any] | None) -> Json | None:
    if stop is None:
        return None
    outcome = STOP_OUTCOMES.get(str(stop.get("outcome")))
    documents = {name: stop.get(name) for name in ("outcome", "mode", "checkpoint_id", "path")}
    return {
        **documents,
        "stopped": outcome is not None and outcome.stopped,
        "meaning": outcome.meaning if outcome is not None else "",
        "next": outcome.next_action if outcome is not None else "",
        "remark": stop_warning(stop),
    }


def _failures(entries: Sequence[LogEntry], view: JobView) -> list[Json]:
    """Return the failures, newest first."""
    documents = [
        {
            "at": failure.at,
            "spec": spec,
            "message": failure.message,
            "operator": failure.operator,
            "subtask": failure.subtask,
            "traceback": failure.traceback,
            "words": failure_text(failure, view.status if spec == view.spec_number else JobStatus.FAILED),
        }
        for spec, failure in failure_views(entries)
    ]
    return documents[-NEWEST_FAILURES:][::-1]


def _events(entries: Iterable[LogEntry]) -> list[Json]:
    """Return entries of the decision log for users, newest first, without the checkpoints that the job takes by
    itself."""
    documents: list[Json] = []
    for entry in entries:
        words = _words(entry)
        if words:
            documents.append({"at": entry.decision.at, "what": words, "by": str(entry.data.get("by") or "")})
    return documents[-NEWEST_ENTRIES:][::-1]


def _words(entry: LogEntry) -> str:
    data, n = entry.data, entry.data.get("checkpoint_id")
    match entry.kind:
        case "fence":
            goes = "commits pending output" if data.get("only_commits") else f"runs submission {entry.spec}"
            return f"Driver generation {entry.decision.generation} {goes}"
        case "claim":
            asked = data.get("by") or data.get("kind") != "checkpoint"
            return f"{str(data.get('kind')).replace('-', ' ').capitalize()} {n} triggered" if asked else ""
        case "abort":
            return f"Snapshot {n} aborted: {data.get('reason') or data.get('code') or ''}"
        case "approve":
            return f"Checkpoint {n} approved"
        case "reject":
            why = f": {data['reason']}" if data.get("reason") else ""
            return f"Checkpoint {n} rejected, then {data.get('then')}{why}"
        case "rewind":
            return f"Sinks delete output committed after checkpoint {n}"
        case "end_of_data":
            return f"Source {data.get('source')} has been read to its end"
        case "status":
            why = f": {data['reason']}" if data.get("reason") else ""
            return f"Status {data.get('status')}{why}"
        case "failure":
            return f"Failure: {data.get('message') or ''}"
        case _:
            return ""


def _lag_s(watermark_us: int | None, now: datetime) -> float | None:
    return None if watermark_us is None else round(now.timestamp() - watermark_us / 1e6, 1)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
