"""Elements of a script for `tidegate.testing.run`: rows and watermarks of sources, and actions between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.clock import parse_iso
from tidegate.errors import PipelineError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Fed: TypeAlias = pa.RecordBatch | pa.Table | Sequence["Element | Action"]
"""All elements of one source. Consecutive rows form one batch."""
Inputs: TypeAlias = Mapping[str, Fed] | Sequence["Mapping[str, Fed] | Action"]


@dataclass(frozen=True)
class Watermark:
    """A source's watermark: later rows with an earlier event time are late (S4.4).

    A source with a watermark in the script derives none itself: the first `with_watermark` downstream forwards these
    instead.

    Attributes:
        time: "2026-01-01 10:00", a datetime (without zone: UTC), or microseconds since the epoch.
    """

    time: str | datetime | int

    @property
    def time_us(self) -> int:
        """Return microseconds since the epoch. Raises PipelineError if `time` is not a time."""
        return moment_us(self.time, f"Watermark({self.time!r})")


@dataclass(frozen=True)
class End:
    """End of the source. Without it, the source ends with the script; a bounded broadcast side of a join ends with its
    last element."""


@dataclass(frozen=True)
class Checkpoint:
    """Take a checkpoint, and wait until it is complete and committed."""


@dataclass(frozen=True)
class Crash:
    """Ends every subtask at once; the job resumes from its last checkpoint, or from the start if there is none.

    Attributes:
        parallelism: of the next run; None: unchanged.
    """

    parallelism: int | None = None


@dataclass(frozen=True)
class Advance:
    """Advances the clock (processing time), and fires what is due. Nothing else advances it.

    Attributes:
        by: such as "10 s".
    """

    by: str | timedelta


Action: TypeAlias = Checkpoint | Crash | Advance
"""An action on the whole job."""
Element: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | pa.RecordBatch | pa.Table | Watermark | End
"""An element of one source: one row, rows, a watermark, or its end."""
Batched: TypeAlias = list[Mapping[str, Any]] | pa.RecordBatch | pa.Table | Watermark | End
"""An element in which single rows are combined."""


@dataclass(frozen=True)
class Step:
    """One step of the script: of the source `uid`, or of the job if it is "". Attributes: last: last step of that
    source."""

    uid: str
    what: Batched | Action
    last: bool = False


def steps_of(inputs: Inputs) -> list[Step]:
    """Return the steps in order: for each mapping the first element of every source, then the second, and so on.

    Raises:
        PipelineError: an object is not an element.
    """
    steps: list[Step] = []
    for part in [inputs] if isinstance(inputs, Mapping) else inputs:
        if isinstance(part, Action):
            steps.append(Step("", part))
        elif isinstance(part, Mapping):
            steps += _in_turn(part)
        else:
            raise _unknown(part, "inputs")
    seen: set[str] = set()
    for place in range(len(steps) - 1, -1, -1):
        step = steps[place]
        if step.uid and step.uid not in seen:
            seen.add(step.uid)
            steps[place] = Step(step.uid, step.what, last=True)
    return steps


def fed_uids(inputs: Inputs) -> list[str]:
    """Return the sources that the script names, also those without rows."""
    parts = [inputs] if isinstance(inputs, Mapping) else inputs
    return list(dict.fromkeys(uid for part in parts if isinstance(part, Mapping) for uid in part))


def _in_turn(sources: Mapping[str, Fed]) -> Iterator[Step]:
    columns = [[(uid, what) for what in _batched(fed, f"input {uid!r}")] for uid, fed in sources.items()]
    for turn in zip_longest(*columns):
        for found in turn:
            if found is not None:
                uid, what = found
                yield Step("", what) if isinstance(what, Action) else Step(uid, what)


def _batched(fed: Fed, where: str) -> Iterator[Batched | Action]:
    """Yield the elements of one source, with single rows combined."""
    if isinstance(fed, (pa.RecordBatch, pa.Table)):
        yield fed
        return
    if isinstance(fed, (str, bytes, Mapping)) or not isinstance(fed, Iterable):
        raise _unknown(fed, where)
    rows: list[Mapping[str, Any]] = []
    for element in fed:
        if isinstance(element, Mapping):
            rows.append(element)
            continue
        if rows:
            yield rows
            rows = []
        if isinstance(element, (pa.RecordBatch, pa.Table, Watermark, End, Action)):
            yield element
        elif isinstance(element, Sequence) and all(isinstance(row, Mapping) for row in element):
            yield list(element)
        else:
            raise _unknown(element, where)
    if rows:
        yield rows


def _unknown(found: object, where: str) -> PipelineError:
    return PipelineError(
        f"the element {found!r} of the inputs is of an unknown kind",
        where=where,
        remedy=(
            "Pass rows as dicts, lists of them, Arrow tables or batches; Watermark(...), End(); "
            "Checkpoint(), Crash(), Advance(...)"
        ),
    )


def moment_us(time: str | datetime | int, where: str) -> int:
    """Return microseconds since the epoch; without zone: UTC. Raises PipelineError if it is not a time."""
    if type(time) is int:
        return time
    try:
        moment = parse_iso(time) if isinstance(time, str) else time
        if not isinstance(moment, datetime):
            raise TypeError(f"the value is of type {type(time).__name__}")
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, TypeError) as error:
        raise PipelineError(
            f"the time {time!r} is invalid",
            where=where,
            cause=str(error),
            remedy='Write "2026-01-01 10:00", or pass a datetime',
        ) from error
