"""Sessions of many keys, chained by key: joining what comes with those that are open, without the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.state.compiler import kernel


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
    """Join runs of rows with sessions at most `gap` away, and those with one another.

    Run r is of keys[r], from lows[r] to highs[r]; runs of one key are more than `gap` apart, as are its sessions. One
    that joins no session opens one with number cursor[0], or where it ends before `closed` none: target -1.

    Sessions of a key are chained from heads[key] by `nexts`. `absorbed` lists the cursor[1] sessions that went into
    others; `parents` says into which, -1 for all others.
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
    for r in range(len(keys)):
        while targets[r] >= 0 and parents[targets[r]] >= 0:
            targets[r] = parents[targets[r]]
    cursor[0] = size
    cursor[1] = gone


@kernel("void(i4[], i4[], i4[]!, i4[]!)")
def unchain_sessions(sessions: Any, keys: Any, heads: Any, nexts: Any) -> None:
    """Take sessions[i], of keys[i], out of its chain."""
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
    """Let parents of absorbed sessions be those that are left."""
    for i in range(len(sessions)):
        root = parents[sessions[i]]
        while parents[root] >= 0:
            root = parents[root]
        parents[sessions[i]] = root
