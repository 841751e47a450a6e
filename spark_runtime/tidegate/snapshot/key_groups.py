"""The assignment of key groups to subtasks (S5.1). Routing and restore both use this definition."""

from __future__ import annotations


def key_group_range(index: int, parallelism: int, max_parallelism: int) -> range:
    """Return the key groups of subtask `index`: contiguous, each group in exactly one range, no range empty.

    Group g belongs to subtask `g * parallelism // max_parallelism`.
    """
    assert 0 <= index < parallelism <= max_parallelism, f"no subtask {index} of {parallelism}, {max_parallelism} groups"
    return range(
        -(-index * max_parallelism // parallelism),
        -(-(index + 1) * max_parallelism // parallelism),
    )
