"""S5.2: rows in sorted runs are read as they were appended, by key, whatever was combined, deleted and reopened."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.state.rocksdb import database, sorted_runs
from tidegate.state.rocksdb.database import RocksDatabase
from tidegate.state.rocksdb.run_chunks import LAST_RANK, RunLayout
from tidegate.state.rocksdb.sorted_runs import SortedRuns

SCHEMA = pa.schema([("key:k", pa.int64()), ("value:text", pa.string())])
LAYOUT = RunLayout(SCHEMA, ("key:k",), 6)
GROUPS = range(1, 5)
"""Of six key groups; the keys of others belong to other subtasks."""


def ranks_of(keys: list[int]) -> list[int]:
    ranks: list[int] = LAYOUT.ranks(pa.record_batch([pa.array(keys, pa.int64())], ["key:k"])).tolist()
    return ranks


OWN = [key for key, rank in enumerate(ranks_of(list(range(200)))) if rank >> 48 in GROUPS]
STARTS = [-5, 0, 10]
Model = dict[int, dict[int, str]]


_numbers = itertools.count()


class Appended:
    """Rows of one start; see `NewRows`."""

    def __init__(self, start_us: int, keys: list[int], texts: list[str]) -> None:
        self.start_us = start_us
        self._rows = pa.record_batch([keys, texts], schema=SCHEMA)

    def keys(self) -> pa.RecordBatch:
        return self._rows.select([0])

    def rows(self, numbers: npt.NDArray[Any]) -> pa.RecordBatch:
        return self._rows.take(pa.array(numbers))


def joined(rows: pa.RecordBatch) -> pa.RecordBatch:
    """One row for each key, with the texts of its rows one after the other."""
    texts: dict[int, str] = defaultdict(str)
    for key, text in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        texts[key] += text
    return pa.record_batch([list(texts), list(texts.values())], schema=SCHEMA)


class Store:
    """Runs in a database of their own."""

    def __init__(self, folder: Path, combine: Any = joined) -> None:
        self.database = RocksDatabase(folder, 2**22)
        self.runs = SortedRuns(self.database.table("t"), LAYOUT, GROUPS, combine)

    def content(self, starts: list[int], groups: Any = None) -> Model:
        """The rows of some starts, after a check of the order in which they are read."""
        found: Model = {start: defaultdict(str) for start in starts}
        done, low = set(), 0
        for end, rows in self.runs.read(starts, groups):
            keys = [set(itertools.chain(*(batch.column(0).to_pylist() for batch in some))) for some in rows]
            assert all(low <= rank < end for rank in ranks_of(list(set().union(*keys)))) and end < LAST_RANK
            low = end
            for start, some, held in zip(starts, rows, keys, strict=True):
                assert not any((start, key) in done for key in held)
                done.update((start, key) for key in held)
                for batch in some:
                    for key, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        found[start][key] += text
        return found


@pytest.fixture(autouse=True)
def pieces_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "FIRST_SCAN_ROWS", 3)
    monkeypatch.setattr(database, "SCAN_ROWS", 3)
    limits = {"CHUNK_BYTES": 60, "SEGMENT_BYTES": 150, "PIECE_ROWS": 5, "MIN_COMBINED_ROWS": 40, "MAX_RUNS": 8}
    for name, value in limits.items():
        monkeypatch.setattr(sorted_runs, name, value)


KEYS = st.lists(st.sampled_from(OWN), max_size=60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(STARTS), KEYS),
        st.tuples(st.just("delete"), st.sampled_from(STARTS)),
        st.tuples(st.just("combine")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("read"), st.lists(st.sampled_from(STARTS), unique=True)),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, combines=st.booleans())
def test_rows_are_read_as_they_were_appended(tmp_path: Path, steps: Any, combines: bool) -> None:
    folder = tmp_path / f"database-{next(_numbers)}"
    store = Store(folder, joined if combines else None)
    model: Model = {start: defaultdict(str) for start in STARTS}
    numbers = itertools.count()
    for step in [*steps, ("reopen",), ("read", STARTS), ("combine",), ("read", STARTS)]:
        if step[0] == "append":
            texts = [f"{next(numbers)} " for _ in step[2]]
            # Rows of one key in one run have no order among themselves, because memory has one row for each key.
            rows = dict(zip(step[2], texts, strict=True))
            store.runs.append(Appended(step[1], list(rows), list(rows.values())))
            for key, text in rows.items():
                model[step[1]][key] += text
        elif step[0] == "delete":
            store.runs.delete(step[1])
            model[step[1]].clear()
        elif step[0] == "combine":
            store.runs.combine_all()
        elif step[0] == "reopen":
            store.database.close()
            store = Store(folder, joined if combines else None)
            store.runs.load()
        else:
            assert store.content(step[1]) == {start: model[start] for start in step[1]}
            assert set(store.runs.starts_us()) == {start for start in STARTS if model[start]}
    store.database.remove()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "database")
    yield store
    store.database.remove()


def test_many_small_runs_become_few(store: Store) -> None:
    for number in range(100):
        store.runs.append(Appended(0, [OWN[0]], [str(number % 10)]))
    assert store.content([0]) == {0: {OWN[0]: "0123456789" * 10}}
    assert len(store.database.table("t").skip_scan(b"", b"\xff", lambda key: key + b"\0")) <= 1 + sorted_runs.MAX_RUNS


def test_repeated_keys_are_combined_to_at_most_three_rows_each(store: Store) -> None:
    for _ in range(30):
        store.runs.append(Appended(0, OWN, ["x"] * len(OWN)))
    rows = sum(batch.num_rows for _, (batches,) in store.runs.read([0]) for batch in batches)
    assert len(OWN) <= rows <= 4 * len(OWN) + len(GROUPS) * sorted_runs.MIN_COMBINED_ROWS
    assert store.content([0]) == {0: dict.fromkeys(OWN, "x" * 30)}


def test_only_the_chosen_key_groups_are_read(store: Store) -> None:
    store.runs.append(Appended(0, OWN, ["x"] * len(OWN)))
    chosen = np.array([True, False, False, True])
    wanted = {key: "x" for key, rank in zip(OWN, ranks_of(OWN), strict=True) if chosen[(rank >> 48) - GROUPS.start]}
    assert store.content([0], chosen) == {0: wanted}


def test_rows_whose_write_failed_can_be_written_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a snapshot does: the writer's thread fails, and the loop writes them before it reads."""
    rows = Appended(0, OWN, ["x"] * len(OWN))
    written = itertools.count()
    write = type(store.runs._table).write

    def fails(table: Any, *args: Any) -> None:
        if next(written) == 3:
            raise OSError("no space left on device")
        write(table, *args)

    monkeypatch.setattr(type(store.runs._table), "write", fails)
    with pytest.raises(OSError, match="no space"):
        store.runs.append(rows)
    store.runs.append(rows)
    assert store.content([0]) == {0: dict.fromkeys(OWN, "x")}


def test_nothing_is_read_after_a_failure_that_left_rows_in_two_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in "xy":
        store.runs.append(Appended(0, OWN[:20], [text] * 20))

    def fails(rows: pa.RecordBatch) -> pa.RecordBatch:
        raise OSError("no space left on device")

    monkeypatch.setattr(store.runs, "_combine", fails)
    for attempt in (
        store.runs.combine_all,
        lambda: list(store.runs.read([0])),
        lambda: store.runs.append(Appended(0, [], [])),
    ):
        with pytest.raises(OSError, match="no space"):
            attempt()
