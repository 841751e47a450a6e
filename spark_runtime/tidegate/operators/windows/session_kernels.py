"""Compiled code that merges new rows with the open sessions of many keys. Sessions are linked lists by key."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.state.numba_kernels import kernel


@kernel("void(i4[], i8[], i8[], i8, i8, i4[]!, i4[]!, i8[]!, i8[]!, i4[]!, i8[]!, i4[]!, i4[]!)")
def join_sessions(
    keys: Any,
    lows: Any,
    highs: Any,
    closed: Any,
    gap: Any,
    heads: Any,
    nexts: Any,
    starts: Any,
    lasts: Any,
    parents: Any,
    cursor: Any,
    targets: Any,
    absorbed: Any,
) -> None:
    """Merge runs of rows with sessions at most `gap` away, and these sessions with one another.

    Run r belongs to keys[r] and lasts from lows[r] to highs[r]. Runs of one key are more than `gap` apart, as are its
    sessions. A run that joins no session creates a session with number cursor[0]. If its session would end before
    `closed`, it creates none, and its target is -1.

    Sessions of a key are linked from heads[key] by `nexts`. `absorbed` lists the cursor[1] sessions that were merged
    into others; `parents` has the session that each was merged into, -1 for all others.
    """
    size = cursor[0]
    gone = 0
    for r in range(len(keys)):
        low = lows[r]
        high = highs[r]
        target = np.int64(-1)
        former = -1
        session = heads[keys[r]]
        while session >= 0:
            following = nexts[session]
            # Compared with the run alone: sessions of a key are more than a gap apart, so that none is reached through
            # another.
            if starts[session] - gap <= highs[r] and lows[r] <= lasts[session] + gap:
                low = min(low, starts[session])
                high = max(high, lasts[session])
                if target < 0:
                    target = session
                    former = session
                else:
                    nexts[former] = following
                    parents[session] = target
                    absorbed[gone] = session
                    gone += 1
            else:
                former = session
            session = following
        if target < 0 and highs[r] + gap >= closed:
            target = np.int64(size)
            size += 1
            nexts[target] = heads[keys[r]]
            heads[keys[r]] = target
        if target >= 0:
            starts[target] = low
            lasts[target] = high
        targets[r] = target
    # A later run of the key may have merged the target of an earlier one into another session.
    for r in range(len(keys)):
        while targets[r] >= 0 and parents[targets[r]] >= 0:
            targets[r] = parents[targets[r]]
    cursor[0] = size
    cursor[1] = gone


@kernel("void(i4[], i4[], i4[]!, i4[]!)")
def unchain_sessions(sessions: Any, keys: Any, heads: Any, nexts: Any) -> None:
    """Remove sessions[i], of keys[i], from its list."""
    for i in range(len(sessions)):
        former = -1
        session = heads[keys[i]]
        while session != sessions[i]:
            former = session
            session = nexts[session]
        if former < 0:
            heads[keys[i]] = nexts[session]
        else:
            nexts[former] = nexts[session]


@kernel("void(i4[], i4[]!)")
def find_roots(sessions: Any, parents: Any) -> None:
    """Set the parents of absorbed sessions to the sessions that remain."""
    for i in range(len(sessions)):
        root = parents[sessions[i]]
        while parents[root] >= 0:
            root = parents[root]
        parents[sessions[i]] = root
