"""Which rows of a batch repeat a row of their key that was kept before, within a time of it."""

from __future__ import annotations

from typing import Any

from tidegate.state.compiler import kernel

KEPT, REPEATED, LATE = 0, 1, 2


@kernel("void(i4[], i8[], i8, i8[], i8[]!, u1[]!, u1[]!)")
def judge_rows(keys: Any, times: Any, within: Any, passed: Any, kept: Any, known: Any, verdicts: Any) -> None:
    """Row after row, in order of arrival.

    Row i, of keys[i], repeats the kept one of its key where that is known and not `within` or more older. Where none is
    known any more and the row is behind passed[key], nobody can tell: it is late. Else it is kept: kept[key] and
    known[key] are of it from then on.
    """
    for i in range(len(keys)):
        key = keys[i]
        if known[key] and times[i] < kept[key] + within:
            verdicts[i] = REPEATED
        elif not known[key] and times[i] < passed[key]:
            verdicts[i] = LATE
        else:
            verdicts[i] = KEPT
            kept[key] = times[i]
            known[key] = 1
