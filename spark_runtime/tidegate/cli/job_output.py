"""A job's view as text and as JSON. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.cli.output import table
from tidegate.jobs.history.statistics import CheckpointStatistics
from tidegate.jobs.status import OUTAGE, CheckpointView, FailureView, JobStatus, JobView, SourceView
from tidegate.jobs.status_text import (
    counters_period,
    deletions_words,
    event_time_text,
    failure_text,
    records_read,
    records_text,
    refusal_text,
    slots_available,
    waiting_text,
)
from tidegate.jobs.stop_outcomes import COMMITS_PENDING, COMMITTED, STOP_OUTCOMES, stop_warning

MAX_IDS = 20
"""The most checkpoint ids that one line lists."""
MAX_LIST_CHARACTERS = 100
"""Most characters of a status in `tidegate list`, so that a job takes one or two lines of a terminal."""
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def view_document(view: JobView, *, alive: bool | None = None) -> dict[str, Any]:
    """Return a job as a JSON document. `alive`: whether its driver lives; None: not checked, or the job has ended.

    A start that was refused does not change the job: the document shows the job as before, and `refused_start`.
    """
    refused = refused_start_document(view)
    view = view.settled
    return {
        "job_id": view.job_id,
        "status": str(view.status),
        "reason": view.reason,
        "is_terminal": view.is_terminal,
        "driver_alive": alive,
        "spec": view.spec_number,
        "generation": view.generation,
        "run_id": view.run_id,
        "restarts": view.restarts,
        "slots": {"registered": slots_available(view), "needed": view.slots_needed},
        "watermark": event_time_text(view.watermark_us),
        "watermark_us": view.watermark_us,
        "sources": [_source_document(source) for source in view.sources],
        "latest_checkpoint": _optional(view.completed[-1] if view.completed else None),
        "latest_recovery_point": _optional(view.latest_recovery_point),
        "latest_savepoint": _optional(view.latest_savepoint),
        "restored_from": view.restored_from,
        "failure": _failure_document(view.failure),
        "stop": dict(view.stop) if view.stop is not None else None,
        "waiting": list(view.waiting),
        "uncommitted": list(view.uncommitted),
        "sources_paused": view.sources_paused,
        "waits_for_deletions": view.waits_for_deletions,
        "counters": {uid: dict(counts) for uid, counts in view.counters.items()},
        "refused_start": refused,
    }


def refused_start_document(view: JobView) -> dict[str, Any] | None:
    """Return the newest submission if it was refused before it ran, and left an ended job as it was; else None."""
    if view.before_refusal is None:
        return None
    failure = view.failure
    return {
        "spec": view.spec_number,
        "status": str(view.status),
        "message": failure.message if failure is not None else view.reason,
        "code": failure.code if failure is not None else "",
        "at": failure.at if failure is not None else None,
    }


def checkpoint_document(checkpoint: CheckpointView) -> dict[str, Any]:
    """Return a snapshot as a JSON document."""
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "kind": checkpoint.kind,
        "status": checkpoint.status,
        "path": checkpoint.path,
        "generation": checkpoint.generation,
        "spec": checkpoint.spec,
        "triggered_at": checkpoint.triggered_at,
        "completed_at": checkpoint.completed_at,
        "duration_ms": checkpoint.duration_ms,
        "reason": checkpoint.reason,
        "code": checkpoint.code,
        "committed": checkpoint.committed,
        "verdict": checkpoint.verdict,
        "taken_back": checkpoint.taken_back,
        "by": checkpoint.by,
        "readable_until": None if checkpoint.deleted else checkpoint.readable_until,
        "deleted": checkpoint.deleted,
        "metrics": dict(checkpoint.metrics),
    }


def view_lines(view: JobView, *, alive: bool | None = None) -> list[str]:
    """Return the lines that `tidegate status` prints for a job.

    If its driver is dead, that comes first: the status is what the driver recorded last. A start that was refused does
    not change the job: the lines show the job as before, and why the start was refused.
    """
    lines = _head_lines(view, alive)
    view = view.settled
    lines.append(f"  submission {view.spec_number}, generation {view.generation}, restarts {view.restarts}")
    if view.watermark_us is not None:
        lines.append(f"  watermark {event_time_text(view.watermark_us)}")
    for source in view.sources:
        lines.append(f"  source {source.uid}: {_source_text(source)}")
    for uid, counts in sorted(view.counters.items()):
        if counted := ", ".join(f"{n:,} {name}" for name, n in sorted(counts.items())):
            lines.append(f"  counters of {uid} {counters_period(uid, view)}: {counted}")
    newest = next((c for c in reversed(view.completed) if _is_restorable(c)), None)
    if newest is not None:
        lines.append(f"  latest snapshot: {newest.kind} {newest.checkpoint_id}, {newest.path}")
    if words := deletions_words(view):
        lines.append(f"  {words}")
    lines += [f"  {words}" for words in _verdict_lines(view)]
    if view.restored_from is not None:
        lines.append(f"  restored from: {view.restored_from}")
    if view.stop is not None:
        lines += [f"  stop: {words}" for words in stop_lines(view.stop)]
    elif _is_stopping(view):
        lines.append("  stop: its savepoint is complete; the job ends when the output before it is committed")
    if view.failure is not None:
        lines += [f"  {line}" for line in failure_lines(view.failure, view.status)]
    return lines


def _head_lines(view: JobView, alive: bool | None) -> list[str]:
    """Return the lines about the driver, the status, and a start that was refused."""
    settled, refusal = view.settled, refusal_text(view)
    lines = [f"{view.job_id}: {status_text(settled)}"]
    if alive is False and view.status is JobStatus.CREATED:
        lines = [f"{view.job_id}: the driver has never started; start the job again", f"  status: {status_text(view)}"]
    elif alive is False:
        gone = "no sign of life; `tidegate restore` resumes the job, `tidegate cancel` ends it"
        lines = [f"{view.job_id}: the driver is dead: {gone}", f"  last recorded status: {status_text(view)}"]
    return [*lines, f"  last start: {refusal}"] if refusal else lines


def _is_restorable(snapshot: CheckpointView) -> bool:
    return snapshot.verdict != "rejected" and not snapshot.taken_back and not snapshot.deleted


def _verdict_lines(view: JobView) -> list[str]:
    """Return lines about checkpoints that wait for a verdict, are approved, or are in quarantine (S7.8)."""
    lines = []
    if view.waiting:
        pause = "; sources pause until then" if view.sources_paused else ""
        lines.append(f"waiting for approval or rejection: {_ids(view.waiting)}{pause}")
    if approved := [c.checkpoint_id for c in view.checkpoints if c.verdict == "approved" and not c.committed]:
        lines.append(f"approved, not committed yet: {_ids(approved)}")
    if gone := [c.checkpoint_id for c in view.checkpoints if c.verdict == "quarantined"]:
        lines.append(f"in quarantine: {_ids(gone)}")
    if view.status is JobStatus.FINISHED_COMMIT_PENDING:
        lines.append(f"next: {STOP_OUTCOMES[COMMITS_PENDING].next_action}")
    return lines


def _ids(checkpoint_ids: Sequence[int]) -> str:
    more = len(checkpoint_ids) - MAX_IDS
    return (f"{more} older, " if more > 0 else "") + ", ".join(map(str, checkpoint_ids[-MAX_IDS:]))


def status_text(view: JobView) -> str:
    """Return the status and its explanation, on one line."""
    if words := waiting_text(view):
        return f"{view.status} ({words})"
    if view.stop is not None and view.status is JobStatus.STOPPED:
        mode, outcome, path = (view.stop.get(name) for name in ("mode", "outcome", "path"))
        return f"{view.status} ({mode}, {outcome}) with savepoint {path}"
    return f"{view.status}: {view.reason}" if view.reason else str(view.status)


def _is_stopping(view: JobView) -> bool:
    newest = view.completed[-1] if view.completed else None
    own = newest is not None and newest.kind == "stop-savepoint" and newest.spec == view.spec_number
    return own and not view.is_terminal


def stop_lines(stop: Mapping[str, Any]) -> list[str]:
    """Return lines on how a stop ended and on the next action; empty if the stop needs no action."""
    outcome = str(stop.get("outcome", ""))
    known = STOP_OUTCOMES.get(outcome)
    if outcome == COMMITTED or known is None:
        return [words] if (words := stop_warning(stop)) else []
    return [f"{outcome}: {known.meaning}", f"next: {known.next_action}"]


def progress_text(view: JobView) -> str:
    """Return a job on one line, for the progress line."""
    parts = [f"{view.job_id} {status_text(view)}"]
    if view.status is JobStatus.RUNNING:
        if (records := records_read(view)) is not None:
            parts.append(records_text(records))
        parts.append(f"{len(view.completed)} snapshots")
        if view.watermark_us is not None:
            parts.append(f"watermark {event_time_text(view.watermark_us)}")
    if view.restarts:
        parts.append(f"{view.restarts} restarts")
    return ", ".join(parts)


def checkpoint_lines(checkpoints: tuple[CheckpointView, ...], *, deleted: bool = False) -> list[str]:
    """Return all snapshots as a table, oldest first (S2.5).

    Args:
        checkpoints: with `deleted` set for those that do not exist any more.
        deleted: the job has ended and has deleted its checkpoints (`retention=delete`).
    """
    limited = any(c.readable_until and not c.deleted for c in checkpoints)
    until = ("restorable until",) if limited else ()
    headings = ("id", "kind", "status", "triggered", "duration", "size", "alignment", "committed", *until, "path")
    rows = [
        (
            str(c.checkpoint_id),
            c.kind,
            "deleted" if c.deleted else c.status,
            c.triggered_at,
            "-" if c.duration_ms is None else f"{c.duration_ms:,} ms",
            size_text(c.metrics.get("bytes")),
            _milliseconds(c.metrics.get("alignment_ms")),
            "rewound" if c.taken_back else "yes" if c.committed else (c.verdict or "-"),
            *([(not c.deleted and c.readable_until) or "-"] if limited else []),
            _path_words(c, deleted),
        )
        for c in checkpoints
    ]
    return table(headings, rows, right=frozenset({"id", "duration", "size", "alignment"}))


def _path_words(checkpoint: CheckpointView, deleted: bool) -> str:
    if checkpoint.status == "aborted":
        return checkpoint.reason or "aborted"
    if deleted and checkpoint.deleted and "savepoint" not in checkpoint.kind:
        return "deleted when the job ended (retention=delete)"
    return str(checkpoint.path)


def statistics_lines(statistics: CheckpointStatistics) -> list[str]:
    """Return the counts and figures that `tidegate checkpoints` prints below the table (S2.5)."""
    parts = [f"{statistics.completed} completed ({statistics.savepoints} savepoints)"]
    parts.append(_by_code(sum(statistics.aborted.values()), "aborted", statistics.aborted))
    parts += [f"{statistics.in_progress} in progress", f"{statistics.restored} restored"]
    lines = ["", f"{statistics.triggered} triggered: {', '.join(parts)}"]
    if statistics.refused:
        lines.append(_by_code(sum(statistics.refused.values()), "requests refused", statistics.refused))
    figures = (
        ("duration", statistics.duration_ms, _milliseconds),
        ("size", statistics.size_bytes, size_text),
        ("alignment", statistics.alignment_ms, _milliseconds),
    )
    headings = ("", "min", "avg", "max", "p50", "p90", "p99")
    rows = [
        (name, *(show(figure) for figure in (of.min, of.avg, of.max, of.p50, of.p90, of.p99)))
        for name, of, show in figures
        if of is not None
    ]
    return lines + (table(headings, rows, right=frozenset(headings[1:])) if rows else [])


def _by_code(count: int, what: str, by_code: Mapping[str, int]) -> str:
    codes = ", ".join(f"{n} {code}" for code, n in by_code.items())
    return f"{count} {what}{f' ({codes})' if codes else ''}"


def failure_lines(failure: FailureView, status: JobStatus) -> list[str]:
    """Return a failure with its operator, subtask, message, and the traceback of the user's code."""
    place = failure.operator or ""
    if failure.subtask is not None:
        place += f"{', ' if place else ''}subtask {failure.subtask}"
    lines = [f"{failure_text(failure, status)}{f' [{place}]' if place else ''}: {failure.message}"]
    if failure.traceback and not failure.recovered:
        lines += [f"  {line}" for line in failure.traceback.rstrip().splitlines()]
    return lines


def size_text(size_bytes: object) -> str:
    """Format bytes with one decimal: "1.5 MiB". Returns "-" for a value that is not a number."""
    if not isinstance(size_bytes, int | float) or isinstance(size_bytes, bool):
        return "-"
    number, unit = float(size_bytes), 0
    while number >= 1024 and unit < len(_SIZE_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.0f} {_SIZE_UNITS[unit]}" if unit == 0 else f"{number:.1f} {_SIZE_UNITS[unit]}"


def _milliseconds(value: object) -> str:
    return f"{value:,.0f} ms" if isinstance(value, int | float) and not isinstance(value, bool) else "-"


def _optional(checkpoint: CheckpointView | None) -> Mapping[str, Any] | None:
    return None if checkpoint is None else checkpoint_document(checkpoint)


def _source_document(source: SourceView) -> dict[str, Any]:
    return {
        "uid": source.uid,
        "boundedness": source.boundedness,
        "records": source.records,
        "end_of_data": source.end_of_data,
        "played_all": source.played_all,
        "watermark": event_time_text(source.watermark_us),
        "watermark_us": source.watermark_us,
        "details": dict(source.details),
    }


def _source_text(source: SourceView) -> str:
    parts = [source.boundedness]
    if source.records is not None:
        parts.append(records_text(source.records))
    parts += details_texts({name: fact for name, fact in source.details.items() if name != OUTAGE})
    if source.end_of_data:
        parts.append("ended")
    elif source.played_all:
        parts.append("played all")
    outage = source.details.get(OUTAGE)
    if isinstance(outage, Mapping):
        until = f" until {outage['until']}" if outage.get("until") else ""
        parts.append(f"waits since {outage.get('since')}{until}: {outage.get('cause')}")
    return ", ".join(parts)


def details_texts(details: Mapping[str, Any]) -> list[str]:
    """Return what a source reports about itself, such as "lag 5.1 KiB" and "copying", for one line.

    `rows` is left out: it is the number of records over all runs, which would be taken for the records of this run.
    """
    found: list[str] = []
    for name, value in details.items():
        words = name.removesuffix("_bytes").replace("_", " ")
        if value is False or value is None or name == "rows":
            continue
        if value is True:
            found.append(words)
        elif name.endswith("_bytes"):
            found.append(f"{words} {size_text(value)}")
        else:
            found.append(f"{words} {value:,}" if isinstance(value, int | float) else f"{words} {value}")
    return found


def one_line(text: str, limit: int = MAX_LIST_CHARACTERS) -> str:
    """Return the first line of a text, shortened to `limit` characters; "..." marks what is left out."""
    line = " ".join(text.split("\n", 1)[0].split())
    if len(line) > limit:
        return f"{line[: limit - 3].rstrip()}..."
    return line if "\n" not in text.strip() else f"{line} ..."


def _failure_document(failure: FailureView | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "message": failure.message,
        "operator": failure.operator,
        "subtask": failure.subtask,
        "traceback": failure.traceback,
        "at": failure.at,
        "recovered": failure.recovered,
    }
