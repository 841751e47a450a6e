"""The inputs of a process, and the method that each of them calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.operators.user_functions.co_process import (
    BroadcastProcess,
    CoProcess,
    KeyedBroadcastProcess,
    KeyedCoProcess,
)
from tidegate.operators.user_functions.context import ProcessBase
from tidegate.operators.user_functions.keyed_process import KeyedProcess, KeyedProcessBase
from tidegate.operators.user_functions.process import Process, UnkeyedProcessBase

InputName = Literal["", "left", "right", "broadcast"]
INPUT_NAMES: dict[InputName | None, InputName] = {None: "", "right": "left", "broadcast": ""}
"""Name of the second input (None: there is none) -> name of the first input."""
_AT_END = ("on_timers", "on_watermark", "finish", "end_left", "end_right", "end_broadcast")
_BASES = (
    ProcessBase,
    KeyedProcessBase,
    UnkeyedProcessBase,
    Process,
    KeyedProcess,
    CoProcess,
    KeyedCoProcess,
    BroadcastProcess,
    KeyedBroadcastProcess,
)


@dataclass(frozen=True)
class ProcessInput:
    """One input of a process.

    Attributes:
        name: its rows go to the method `process`, or `process_<name>`.
        schema: of its records.
        keys: key columns, in the order of the first input's, of equal types; empty: its rows come without keys.
        time_column: event time, a timestamp or an integer; None: the rows have none.
        time_unit: of the time column.
    """

    name: InputName
    schema: pa.Schema
    keys: tuple[str, ...] = ()
    time_column: str | None = None
    time_unit: TimeUnit = "us"

    @property
    def method(self) -> str:
        """Return the method of the user's class that receives the rows."""
        return f"process_{self.name}" if self.name else "process"

    @property
    def end_method(self) -> str | None:
        """Return the method of the user's class for the real end of the input; None: there is no such method."""
        return f"end_{self.name}" if self.name else None


def overrides(process: ProcessBase, method: str) -> bool:
    """Return whether the user's class overrides a method of the base classes."""
    own: Any = getattr(type(process), method, None)
    return own is not None and all(own is not getattr(base, method, None) for base in _BASES)


def emits_at_end(process: ProcessBase) -> bool:
    """Return whether the process may emit results at the end of one of its inputs (S7.5)."""
    return any(overrides(process, method) for method in _AT_END)


def inputs_text(inputs: Sequence[ProcessInput]) -> str:
    """Return the keys for `describe`: "" or " by k" or " by left k, right id"."""
    keyed = [f"{given.name} {', '.join(given.keys)}".strip() for given in inputs if given.keys]
    return f" by {', '.join(keyed)}" if keyed else ""
