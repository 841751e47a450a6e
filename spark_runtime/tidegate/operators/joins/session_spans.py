"""Sessions of many keys, as spans of time that grow and merge; in compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.operators.joins.join_specs import SESSION_COLUMNS
from tidegate.operators.joins.matched_pairs import last_not_after
from tidegate.state.keyed_state import Elements, KeyNumbers, Mask
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.numba_kernels import kernel


@dataclass(frozen=True)
class SessionSpans:
    """The sessions of some keys. Sessions of one key are in order of time, and more than a gap apart.

    Attributes:
        owners: for each session the number of its key, ascending.
        firsts: time of its first row, microseconds.
        lasts: time of its last row.
        offsets: key k has sessions offsets[k]:offsets[k + 1].
    """

    owners: KeyNumbers
    firsts: Int64s
    lasts: Int64s
    offsets: Int64s

    @classmethod
    def kept_spans(cls, elements: Elements) -> SessionSpans:
        """Create from the elements of a list state."""
        sizes = np.diff(elements.offsets)
        owners = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        firsts, lasts = (column.to_numpy() for column in elements.columns.columns)
        return cls(owners, firsts, lasts, elements.offsets)

    def elements(self) -> Elements:
        """Return the elements for a list state."""
        return Elements(self.offsets, pa.record_batch([self.firsts, self.lasts], schema=SESSION_COLUMNS))

    def extend(self, owners: KeyNumbers, times: Int64s, gap_us: int) -> SessionSpans:
        """Add rows of these keys. A row joins the session that is at most a gap away, or starts a new one.

        Sessions that are at most a gap away from the row are merged.
        """
        every = np.concatenate([self.owners, owners])
        firsts, lasts = np.concatenate([self.firsts, times]), np.concatenate([self.lasts, times])
        order = np.lexsort((firsts, every))
        every, firsts, lasts = every[order], firsts[order], lasts[order]
        count = _merge(every, firsts, lasts, gap_us)
        every, firsts, lasts = every[:count], firsts[:count], lasts[:count]
        return SessionSpans(every, firsts, lasts, _offsets(every, len(self.offsets) - 1))

    def merged(self, gap_us: int) -> SessionSpans:
        """Merge sessions that are at most a gap apart; a snapshot of version 0.1 may hold them separately."""
        return self.extend(np.zeros(0, np.int32), np.zeros(0, np.int64), gap_us)

    def part(self, mask: Mask) -> SessionSpans:
        """Return the sessions where `mask` is true."""
        owners = self.owners[mask]
        return SessionSpans(owners, self.firsts[mask], self.lasts[mask], _offsets(owners, len(self.offsets) - 1))

    def of(self, owners: KeyNumbers, times: Int64s) -> Int64s:
        """Return for each row the number of the last session of its key that starts no later, or -1."""
        return last_not_after(owners, self.offsets, self.firsts, times)


def _offsets(owners: KeyNumbers, keys: int) -> Int64s:
    return np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=keys))]).astype(np.int64)


@kernel("i8(i4[]!, i8[]!, i8[]!, i8)")
def _merge(owners: Any, firsts: Any, lasts: Any, gap_us: Any) -> Any:
    """Merge spans, ordered by (owner, first), in place. Return how many remain."""
    count = 0
    for i in range(len(owners)):
        at = count - 1
        if count > 0 and owners[at] == owners[i] and firsts[i] - lasts[at] <= gap_us:
            lasts[at] = max(lasts[at], lasts[i])
        else:
            owners[count], firsts[count], lasts[count] = owners[i], firsts[i], lasts[i]
            count += 1
    return count
