"""Splits as documents: in deployments, in metadata and in the state of readers (S4.2, S4.3)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.connectors.interface import Split
from tidegate.snapshot.parts import StatePart

SPLITS = "splits"
"""Name of a reader's list state."""
SPLITS_SCHEMA = pa.schema([("split", pa.string())])
"""Schema of that state: one JSON document per split."""


def split_to_json(split: Split) -> dict[str, Any]:
    """Return the JSON form of a split."""
    return {
        "split_id": split.split_id,
        "data": dict(split.data),
        "position": split.position,
        "finished": split.finished,
        "weight": split.weight,
    }


def split_from_json(document: Mapping[str, Any]) -> Split:
    """Inverse of `split_to_json`."""
    return Split(document["split_id"], document["data"], document["position"], document["finished"], document["weight"])


def splits_part(splits: Sequence[Split], readable_until_ms: int | None = None) -> StatePart:
    """Return the state of a reader that has these splits. Args: readable_until_ms: see `SourceReader`."""
    rows = [json.dumps(split_to_json(split)) for split in splits]
    table = pa.table({"split": rows}, schema=SPLITS_SCHEMA)
    return StatePart(SPLITS, "list", table, readable_until_ms=readable_until_ms)


def split_documents(parts: Sequence[StatePart]) -> list[dict[str, Any]]:
    """Return the splits, as JSON, in a snapshot of a reader."""
    return [json.loads(row) for part in parts if part.name == SPLITS for row in part.table["split"].to_pylist()]


def splits_from_parts(parts: Sequence[StatePart]) -> list[Split]:
    """Return the splits in a snapshot of a reader."""
    return [split_from_json(document) for document in split_documents(parts)]


def assign_splits(
    splits: Mapping[str, Sequence[Mapping[str, Any]]], parallelism: int
) -> dict[str, dict[int, Sequence[Mapping[str, Any]]]]:
    """Assign splits to subtask indices: heaviest first to the least loaded, deterministic; each exactly once (S4.3).

    Args:
        splits: source uid -> its splits as JSON, in the order of discovery. Finished splits have no weight.

    Returns:
        Source uid -> subtask index -> its splits, in the order of `splits`.
    """
    out: dict[str, dict[int, Sequence[Mapping[str, Any]]]] = {}
    for uid, of_source in splits.items():
        chosen: list[list[tuple[int, Mapping[str, Any]]]] = [[] for _ in range(parallelism)]
        load = [0] * parallelism
        # Negated weights sort the heaviest splits first, and splits of equal weight in the order of discovery.
        for weight, place in sorted((-_weight(split), place) for place, split in enumerate(of_source)):
            least = load.index(min(load))
            chosen[least].append((place, of_source[place]))
            load[least] -= weight
        out[uid] = {i: [split for _, split in sorted(mine, key=_place)] for i, mine in enumerate(chosen)}
    return out


def _weight(split: Mapping[str, Any]) -> int:
    return 0 if split["finished"] else int(split["weight"])


def _place(placed: tuple[int, Mapping[str, Any]]) -> int:
    return placed[0]
