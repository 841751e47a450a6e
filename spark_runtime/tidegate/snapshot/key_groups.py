"""Which subtask owns which key groups (S5.1): the one definition that routing and restore share."""

from __future__ import annotations


def key_group_range(index: int, parallelism: int, max_parallelism: int) -> range:
    """Key groups of subtask `index`: contiguous, every group in exactly one range, and none empty.

    Group g belongs to subtask `g * parallelism // max_parallelism`.
    """
    assert 0 <= index < parallelism <= max_parallelism, f"no subtask {index} of {parallelism}, {max_parallelism} groups"
    return range(
        -(-index * max_parallelism // parallelism),
        -(-(index + 1) * max_parallelism // parallelism),
    )
