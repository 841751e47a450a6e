"""Kernels of the timers. Timers have numbers; arrays are indexed by them.

`times` and `owners` are a timer's time and the entry number of its key, -1 if the timer does not exist. `slots` is an
open-addressing table of timer numbers by (owner, time). `heads`, by key, `following` and `former` chain the timers of a
key. `queue` is a heap with four children per node, ordered by time. It holds timer numbers; `queue_times` are their
times, `places` are the positions of timers in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.state.numba_kernels import inlined, kernel


@inlined
def _place(owner: Any, time: Any, mask: Any) -> Any:
    # Many timers differ only in the key, or in high bits of the time, so that all bits must take part in the place.
    mixed = (np.uint64(time) ^ (np.uint64(owner) << np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) + np.uint64(owner)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(mask))


@kernel("i8(i4[], i8[], i4[], i4[]!, i8[]!, i4[]!)")
def enter_timers(new_owners: Any, new_times: Any, numbers: Any, slots: Any, times: Any, owners: Any) -> Any:
    """Insert timers that do not exist yet: the first gets numbers[0] and so on. Returns how many were inserted."""
    mask = len(slots) - 1
    entered = 0
    for i in range(len(new_times)):
        owner, time = new_owners[i], new_times[i]
        at = _place(owner, time, mask)
        number = slots[at]
        while number >= 0 and not (times[number] == time and owners[number] == owner):
            at = (at + 1) & mask
            number = slots[at]
        if number < 0:
            number = numbers[entered]
            slots[at] = number
            times[number] = time
            owners[number] = owner
            entered += 1
    return entered


@kernel("i8(i4[], i8[], i4[], i8[], i4[], i4[]!)")
def find_timers(asked_owners: Any, asked_times: Any, slots: Any, times: Any, owners: Any, out: Any) -> Any:
    """Write the numbers of existing timers among the requested ones. Returns how many were found."""
    mask = len(slots) - 1
    found = 0
    for i in range(len(asked_times)):
        owner, time = asked_owners[i], asked_times[i]
        if owner >= 0:
            at = _place(owner, time, mask)
            number = slots[at]
            while number >= 0 and not (times[number] == time and owners[number] == owner):
                at = (at + 1) & mask
                number = slots[at]
            if number >= 0:
                out[found] = number
                found += 1
    return found


@kernel("void(i4[], i8[], i4[], i4[]!)")
def fill_slots(numbers: Any, times: Any, owners: Any, slots: Any) -> None:
    """Insert distinct timers into empty slots."""
    mask = len(slots) - 1
    for i in range(len(numbers)):
        at = _place(owners[numbers[i]], times[numbers[i]], mask)
        while slots[at] >= 0:
            at = (at + 1) & mask
        slots[at] = numbers[i]


@inlined
def _leave(number: Any, slots: Any, times: Any, owners: Any) -> None:
    """Remove a timer from the slots.

    Each following timer, up to the next free slot, moves into the gap unless its own place is after the gap.
    """
    mask = len(slots) - 1
    gap = _place(owners[number], times[number], mask)
    while slots[gap] != number:
        gap = (gap + 1) & mask
    at = (gap + 1) & mask
    while slots[at] >= 0:
        place = _place(owners[slots[at]], times[slots[at]], mask)
        if ((at - place) & mask) >= ((at - gap) & mask):
            slots[gap] = slots[at]
            gap = at
        at = (at + 1) & mask
    slots[gap] = np.int32(-1)


@kernel("void(i4[], i4[], i4[]!, i4[]!, i4[]!)")
def chain_timers(numbers: Any, owners: Any, heads: Any, following: Any, former: Any) -> None:
    """Put timers at the front of their keys' chains."""
    for i in range(len(numbers)):
        number = numbers[i]
        head = heads[owners[number]]
        following[number] = head
        former[number] = np.int32(-1)
        if head >= 0:
            former[head] = number
        heads[owners[number]] = number


@kernel("void(i4[], i4[]!, i8[], i4[]!, i4[]!, i4[]!, i4[]!)")
def forget_timers(numbers: Any, slots: Any, times: Any, owners: Any, heads: Any, following: Any, former: Any) -> None:
    """Remove distinct timers from slots and chains; they have no owner then."""
    for i in range(len(numbers)):
        number = numbers[i]
        _leave(number, slots, times, owners)
        before, after = former[number], following[number]
        if before >= 0:
            following[before] = after
        else:
            heads[owners[number]] = after
        if after >= 0:
            former[after] = before
        owners[number] = np.int32(-1)


@kernel("void(i4[], i4[], i8[]!)")
def count_chains(heads: Any, following: Any, counts: Any) -> None:
    """Count the timers of each chain; heads are -1 for keys without timers."""
    for i in range(len(heads)):
        number = heads[i]
        while number >= 0:
            counts[i] += 1
            number = following[number]


@kernel("void(i4[], i4[], i8[], i8[]!)")
def walk_chains(heads: Any, following: Any, times: Any, out: Any) -> None:
    """Write the times of each chain, one after the other."""
    at = 0
    for i in range(len(heads)):
        number = heads[i]
        while number >= 0:
            out[at] = times[number]
            at += 1
            number = following[number]


@inlined
def _rise(at: Any, queue: Any, queue_times: Any, places: Any) -> None:
    number, time = queue[at], queue_times[at]
    while at > 0 and queue_times[(at - 1) >> 2] > time:
        above = (at - 1) >> 2
        queue[at], queue_times[at] = queue[above], queue_times[above]
        places[queue[at]] = np.int32(at)
        at = above
    queue[at], queue_times[at] = number, time
    places[number] = np.int32(at)


@inlined
def _sink(at: Any, size: Any, queue: Any, queue_times: Any, places: Any) -> None:
    number, time = queue[at], queue_times[at]
    sinking = True
    while sinking:
        least, below = at, 4 * at + 1
        bound = time
        for child in range(below, min(below + 4, size)):
            if queue_times[child] < bound:
                least, bound = child, queue_times[child]
        sinking = least != at
        if sinking:
            queue[at], queue_times[at] = queue[least], queue_times[least]
            places[queue[at]] = np.int32(at)
            at = least
    queue[at], queue_times[at] = number, time
    places[number] = np.int32(at)


@kernel("void(i4[], i8[], i8, i4[]!, i8[]!, i4[]!)")
def queue_timers(numbers: Any, times: Any, size: Any, queue: Any, queue_times: Any, places: Any) -> None:
    """Put timers into a queue of `size`."""
    for i in range(len(numbers)):
        at = size + i
        queue[at] = numbers[i]
        queue_times[at] = times[numbers[i]]
        _rise(at, queue, queue_times, places)


@kernel("void(i4[], i8, i4[]!, i8[]!, i4[]!)")
def unqueue_timers(numbers: Any, size: Any, queue: Any, queue_times: Any, places: Any) -> None:
    """Remove distinct timers from a queue of `size`."""
    for i in range(len(numbers)):
        size -= 1
        at = np.int64(places[numbers[i]])
        if at < size:
            queue[at], queue_times[at] = queue[size], queue_times[size]
            # The timer that fills the gap comes from the end, perhaps of another branch. It may belong above the gap or
            # below it.
            if at > 0 and queue_times[at] < queue_times[(at - 1) >> 2]:
                _rise(at, queue, queue_times, places)
            else:
                _sink(at, size, queue, queue_times, places)


@kernel("i8(i8, i8, i4[]!, i8[]!, i4[]!, i4[]!)")
def pop_timers(until: Any, size: Any, queue: Any, queue_times: Any, places: Any, out: Any) -> Any:
    """Remove the earliest timers with time <= `until` from a queue of `size`, at most len(out). Returns how many."""
    popped = 0
    while popped < len(out) and size > 0 and queue_times[0] <= until:
        out[popped] = queue[0]
        popped += 1
        size -= 1
        if size > 0:
            queue[0], queue_times[0] = queue[size], queue_times[size]
            _sink(np.int64(0), size, queue, queue_times, places)
    return popped
