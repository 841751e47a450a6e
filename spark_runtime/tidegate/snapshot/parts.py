"""What an operator hands to a snapshot and gets back at restore: named, typed Arrow tables (S5.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

StateKind = Literal["keyed", "list", "union", "broadcast", "channel"]

KEY_GROUP_COLUMN = "__key_group"
"""Keyed parts carry this uint16 column: the key group of each row, so that a rescale can cut them (S5.5)."""
OWNER_COLUMN = "__owner"
"""List parts may carry this int32 column: at another parallelism p a row goes to subtask owner modulo p, and where it
is null to every subtask; without the column rows are split evenly (S5.5)."""


@dataclass(frozen=True)
class StatePart:
    """One state of one operator subtask.

    Attributes:
        name: state name, unique within the operator.
        kind: how it is redistributed on restore (S5.1); "channel" is the runtime's own (S3.7).
        table: the rows. Keyed parts hold `KEY_GROUP_COLUMN`.
        staged: `StagedData.to_json()` of the transactions in it, for the metadata; no part of the state (S7.8).
    """

    name: str
    kind: StateKind
    table: pa.Table
    staged: tuple[Mapping[str, Any], ...] = ()


AsyncSnapshot = Callable[[], Sequence[StatePart]]
"""The asynchronous phase: called once, on a snapshot writer thread, after the synchronous freeze. Must not touch live
state; may block; its exception declines the checkpoint (S3.6)."""
