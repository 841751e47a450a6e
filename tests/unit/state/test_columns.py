"""Copy-on-write arrays: what is frozen stays, whoever writes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tidegate.state.copy_on_write import CHUNK_ENTRIES, Arrays, CopyOnWriteArrays, FrozenArrays

CHUNKS = 5
SIZE = CHUNKS * CHUNK_ENTRIES - 7


def cells() -> CopyOnWriteArrays:
    made = CopyOnWriteArrays(SIZE)
    made.add("n", np.int64)
    made.arrays["n"][:] = np.arange(SIZE)
    made.touch_all(SIZE)
    return made


def write(made: CopyOnWriteArrays, entries: list[int], value: int) -> None:
    numbers = np.array(entries, np.int32)
    made.touch(numbers)
    made.arrays["n"][numbers] = value


def test_a_frozen_version_is_read_as_it_was_whatever_is_written_later() -> None:
    made = cells()
    frozen = made.freeze(SIZE)
    write(made, [0, SIZE - 1], -1)
    write(made, [1, 2 * CHUNK_ENTRIES], -2)
    made.grow(3 * SIZE)
    write(made, [CHUNK_ENTRIES, 2 * SIZE], -3)
    found = np.concatenate([frozen.read(chunk)["n"] for chunk in range(frozen.chunks)])
    assert np.array_equal(found, np.arange(SIZE))
    assert made.arrays["n"][[0, 1, CHUNK_ENTRIES, 2 * SIZE, 5]].tolist() == [-1, -2, -3, -3, 5]


def test_a_frozen_version_is_read_by_a_thread_while_another_writes() -> None:
    made = cells()
    with ThreadPoolExecutor(1) as pool:
        for step in range(20):
            expected = made.arrays["n"].copy()
            frozen = made.freeze(SIZE)
            reading = pool.submit(lambda f=frozen: [f.read(chunk)["n"] for chunk in range(f.chunks)])
            for chunk in (step % CHUNKS, (3 * step + 1) % CHUNKS, CHUNKS - 1):
                write(made, [chunk * CHUNK_ENTRIES + step], -step)
            assert np.array_equal(np.concatenate(reading.result()), expected)


def test_a_chunk_counts_as_safe_only_once_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds it safe writes without waiting for the reader."""
    made = cells()
    frozen = made.freeze(SIZE)
    copy = FrozenArrays._copy
    safe: list[bool] = []

    def watched_copy(self: FrozenArrays, chunk: int) -> Arrays:
        safe.append(bool(self._safe[chunk]) or self.is_read)
        return copy(self, chunk)

    monkeypatch.setattr(FrozenArrays, "_copy", watched_copy)
    for chunk in range(CHUNKS - 1):
        frozen.read(chunk)
    write(made, [SIZE - 1], -1)
    assert safe == [False] * CHUNKS
    assert frozen.is_read


def test_stamps_tell_which_chunks_were_written_between_two_freezes() -> None:
    made = cells()
    first = made.freeze(SIZE)
    second = made.freeze(SIZE)
    write(made, [CHUNK_ENTRIES, CHUNK_ENTRIES + 1, 4 * CHUNK_ENTRIES], 0)
    third = made.freeze(SIZE)
    assert (first.stamps == second.stamps).all()
    assert np.flatnonzero(third.stamps != second.stamps).tolist() == [1, 4]


def test_versions_that_wait_each_keep_their_own() -> None:
    made = cells()
    versions = []
    for step in range(1, 4):
        versions.append(made.freeze(SIZE))
        write(made, [3], -step)
    assert [version.read(0)["n"][3] for version in versions] == [3, -1, -2]


def test_nothing_is_copied_for_a_version_that_nobody_holds() -> None:
    made = cells()
    made.freeze(SIZE)
    write(made, [3], -1)
    assert made._frozen == []


def test_versions_that_nobody_holds_are_forgotten_though_nothing_is_written() -> None:
    made = cells()
    held = made.freeze(SIZE)
    for _ in range(10):
        made.freeze(SIZE)
    assert len(made._frozen) == 2
    write(made, [3], -1)
    assert held.read(0)["n"][3] == 3


def test_reading_a_chunk_again_after_it_was_written_fails_instead_of_giving_something_else() -> None:
    made = cells()
    frozen = made.freeze(SIZE)
    assert frozen.read(1)["n"][0] == frozen.read(1)["n"][0] == CHUNK_ENTRIES
    write(made, [CHUNK_ENTRIES], -1)
    with pytest.raises(AssertionError, match="chunk 1"):
        frozen.read(1)
