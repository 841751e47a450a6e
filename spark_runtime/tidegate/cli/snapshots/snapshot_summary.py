"""`tidegate snapshot inspect`: the contents of a snapshot, as a JSON document or as text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.job_output import size_text
from tidegate.cli.output import table
from tidegate.cli.snapshots.snapshot_path import current_splits, reader_of
from tidegate.jobs.status_text import event_time_text
from tidegate.snapshot.metadata import OperatorState
from tidegate.snapshot.reader import SnapshotReader, StateSummary

PROGRESS = "progress"
"""Name of the state in which event-time operators store their progress."""
MAX_SPLITS_SHOWN = 20
"""The most splits of one source that the text shows. The document has all."""


def run(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Print the summary."""
    document = summary_document(reader_of(args, around))
    for line in summary_lines(document):
        around.output.print(line)
    around.output.document(document)
    return 0


def summary_document(reader: SnapshotReader) -> dict[str, Any]:
    """Return the summary of a snapshot as a document. Reads all state files."""
    metadata = reader.metadata
    kinds = {operator["uid"]: operator["kind"] for operator in metadata.graph.get("operators", ())}
    operators = [_operator_document(reader, operator, kinds.get(operator.uid)) for operator in metadata.operators]
    marks = [operator["watermark_us"] for operator in operators if operator["watermark_us"] is not None]
    return {
        "path": reader.path,
        "checkpoint_id": metadata.checkpoint_id,
        "kind": metadata.kind,
        "stop_mode": metadata.stop_mode,
        "job_id": metadata.job_id,
        "lineage": metadata.lineage,
        "parent": metadata.parent,
        "generation": metadata.generation,
        "run_id": metadata.run_id,
        "created_at": metadata.created_at,
        "parallelism": metadata.parallelism,
        "max_parallelism": metadata.max_parallelism,
        "size_bytes": metadata.size_bytes,
        "readable_until_ms": metadata.readable_until_ms,
        "watermark": event_time_text(min(marks, default=None)),
        "watermark_us": min(marks, default=None),
        "drained_operators": list(metadata.drained_operators),
        "operators": operators,
    }


def _operator_document(reader: SnapshotReader, operator: OperatorState, kind: str | None) -> dict[str, Any]:
    states = reader.states(operator.uid) if any(s.handle is not None for s in operator.subtasks) else ()
    watermark_us = _watermark_us(reader, operator.uid, states)
    return {
        "uid": operator.uid,
        "kind": kind,
        "status": operator.status,
        "drained": operator.uid in reader.metadata.drained_operators,
        "subtasks": len(operator.subtasks),
        "size_bytes": sum(s.handle.full_bytes for s in operator.subtasks if s.handle is not None),
        "watermark": event_time_text(watermark_us),
        "watermark_us": watermark_us,
        "states": [_state_document(shape) for shape in states],
        "splits": current_splits(reader, operator.uid),
    }


def _state_document(shape: StateSummary) -> dict[str, Any]:
    return {
        "name": shape.name,
        "kind": shape.kind,
        "format": shape.format,
        "columns": [{"name": name, "type": type_} for name, type_ in shape.columns],
        "rows": shape.rows,
        "size_bytes": shape.size_bytes,
        "subtasks": shape.subtasks,
    }


def _watermark_us(reader: SnapshotReader, uid: str, states: tuple[StateSummary, ...]) -> int | None:
    """Return the lowest watermark of the operator's subtasks; None: it stores none, or has received none."""
    progress = next((s for s in states if s.name == PROGRESS and "watermark_us" in dict(s.columns)), None)
    if progress is None:
        return None
    lows = [pc.min(found.column("watermark_us")).as_py() for found in reader.tables(uid, PROGRESS)]
    low = min((low for low in lows if low is not None), default=None)
    return None if low == MIN_WATERMARK else low


def summary_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the document as lines of text."""
    kind = f"{document['kind']}{' by ' + document['stop_mode'] if document['stop_mode'] else ''}"
    lines = [
        f"{kind} {document['checkpoint_id']} of job {document['job_id']}, {document['created_at']}",
        f"  {document['path']}",
        f"  lineage {document['lineage']}, previous snapshot {document['parent'] or 'none'}",
        f"  generation {document['generation']}, run {document['run_id']}",
        f"  parallelism {document['parallelism']} of at most {document['max_parallelism']}, state "
        f"{size_text(document['size_bytes'])}",
        f"  watermark {document['watermark'] or '-'}",
        *_readable_lines(document["readable_until_ms"]),
    ]
    for operator in document["operators"]:
        lines += ["", *_operator_lines(operator)]
    return lines


def _readable_lines(until_ms: int | None) -> list[str]:
    if until_ms is None:
        return []
    return [f"  sources can continue from it until {event_time_text(until_ms * 1000)}"]


def _operator_lines(operator: Mapping[str, Any]) -> list[str]:
    facts = [operator["status"].replace("_", " "), *(["drained"] if operator["drained"] else [])]
    if operator["watermark"] is not None:
        facts.append(f"watermark {operator['watermark']}")
    lines = [f"{operator['uid']} ({operator['kind'] or 'unknown'}): {', '.join(facts)}"]
    rows = [
        (
            f"  {state['name']}",
            state["kind"],
            "-" if state["rows"] is None else f"{state['rows']:,}",
            size_text(state["size_bytes"]) if state["format"] == "rows" else state["format"],
            ", ".join(f"{column['name']} {column['type']}" for column in state["columns"]),
        )
        for state in operator["states"]
    ]
    if rows:
        lines += table(("  state", "kind", "rows", "size", "columns"), rows, right=frozenset({"rows", "size"}))
    splits = operator["splits"] or ()
    for split in splits[:MAX_SPLITS_SHOWN]:
        reached = "at its start" if split["position"] is None else f"position {json.dumps(split['position'])}"
        lines.append(f"  split {split['split_id']}: {'read to its end' if split['finished'] else reached}")
    if len(splits) > MAX_SPLITS_SHOWN:
        lines.append(f"  and {len(splits) - MAX_SPLITS_SHOWN:,} more splits")
    return lines
