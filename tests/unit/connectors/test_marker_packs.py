"""Commit markers that are packed: committed stays committed, however many files tell it (S2.3, S7.4, S9.3)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from published_rows import rows_in

from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.files.sink.marker_packs import PACK_SCHEMA, MarkerPacks
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.interface import CollectsLeftovers, Sink, SinkWriter
from tidegate.connectors.leftovers import ALL_CHECKPOINTS, LeftoverReport, NeededTransactions
from tidegate.connectors.transactions import Committable
from tidegate.errors import TidegateError
from tidegate.testing.one_sink_job import TestWriter, numbers

EVER = datetime.max.replace(tzinfo=UTC)
EVERYBODY = TestWriter().context(0, parallelism=1)
GOLDEN_PACK = Path(__file__).parent / "golden" / "pack-1-4-0123456789abcdef.parquet.b64"
GOLDEN_ROWS = [(0, 1, 1), (1, 1, 2), (0, 2, 1), (0, 4, 1)]


def staged(writer: SinkWriter, checkpoint_id: int) -> list[Committable]:
    """Two rows: 10 * id and the next."""
    writer.write(numbers(10 * checkpoint_id, 2))
    return list(writer.prepare_commit(checkpoint_id)())


def published(sink: Sink, *checkpoints: int, subtask: int = 0) -> dict[int, list[Committable]]:
    writer = sink.create_writer(TestWriter().context(subtask))
    handles = {n: staged(writer, n) for n in checkpoints}
    for made in handles.values():
        writer.commit(made)
    return handles


def packed(sink: Sink, markers_from: int = 0, before: datetime = EVER) -> LeftoverReport:
    return sink.collect(EVERYBODY, NeededTransactions(None, markers_from, before))


def below(url: str, folder: str) -> list[str]:
    filesystem, root = fsspec.core.url_to_fs(url)
    found = filesystem.find(f"{root}/_tidegate/{folder}")
    return sorted(path.rsplit("/", 1)[-1] for path in found)


def test_markers_go_into_one_file_and_nothing_is_published_again(url: str) -> None:
    """S2.3, S7.4: nor taken for lost, also when readers have moved the files since."""
    sink = Parquet(url)
    handles = published(sink, 1, 2, 3)
    done = packed(sink)
    assert [(one.why, one.files) for one in done.found] == [("markers", 3)] and done.found[0].size_bytes > 0
    assert below(url, "commits") == [] and len(below(url, "committed")) == 1
    published(sink, 4)
    packed(sink)
    (pack,) = below(url, "committed")
    assert pack.startswith("pack-1-4-")
    filesystem, root = fsspec.core.url_to_fs(url)
    for path in filesystem.glob(f"{root}/*.parquet"):
        filesystem.rm_file(path)
    for made in handles.values():
        sink.create_writer(TestWriter().context()).commit(made)
    assert rows_in(url) == [] and below(url, "commits") == []
    assert packed(sink) == LeftoverReport() and below(url, "committed") == [pack]


def test_what_is_not_committed_is_not_taken_for_it(url: str) -> None:
    """S7.4: another subtask, another checkpoint, another sink: lost stays loud."""
    sink = Parquet(url)
    writer = sink.create_writer(TestWriter().context())
    lost = staged(writer, 2)
    writer.recover(1)
    sink.create_writer(replace(TestWriter().context(), run_id="run-2")).recover(1)
    published(sink, 1, 3)
    published(sink, 2, subtask=1)
    published_elsewhere = sink.create_writer(replace(TestWriter().context(), uid="other"))
    published_elsewhere.commit(staged(published_elsewhere, 2))
    packed(sink)
    with pytest.raises(TidegateError, match=r"lost.*no commit marker"):
        writer.commit(lost)
    assert below(url, "commits") != [], "the other sink's"


def test_young_markers_stay(tmp_path: Path) -> None:
    sink = Parquet(tmp_path)
    published(sink, 1, 2)
    assert packed(sink, before=datetime.now(UTC) - timedelta(hours=1)) == LeftoverReport()
    assert len(below(str(tmp_path), "commits")) == 2


def test_what_nobody_can_ask_for_is_forgotten(url: str) -> None:
    """S2.3: so that a job that runs for years keeps no more than its snapshots can ask for."""
    sink = Parquet(url)
    published(sink, 1, 2, 3)
    packed(sink)
    published(sink, 4, 5)
    packed(sink, markers_from=3)
    assert below(url, "committed")[0].startswith("pack-3-5-") and len(below(url, "committed")) == 1
    published(sink, 6)
    packed(sink, markers_from=ALL_CHECKPOINTS)
    assert below(url, "committed") == below(url, "commits") == []


def test_a_rewind_behind_packed_markers_takes_back_the_same(url: str) -> None:
    """S9.3: and refuses when readers took files of them."""
    sink = Parquet(url, target_file_rows=1)
    writer = sink.create_writer(TestWriter().context())
    for n in (1, 2, 3):
        for k in (0, 1):
            writer.write(numbers(10 * n + k, 1))
        writer.commit(list(writer.prepare_commit(n)()))
    packed(sink)
    filesystem, root = fsspec.core.url_to_fs(url)
    taken = next(path for path in filesystem.glob(f"{root}/*--3--1.parquet"))
    content = filesystem.cat_file(taken)
    filesystem.rm_file(taken)
    with pytest.raises(
        TidegateError,
        match=r"checkpoint 1.*1 files that were published after this checkpoint were moved.*subtask 0, checkpoint 3",
    ):
        sink.rewind_to(EVERYBODY, 1)
    sink.rewind_to(EVERYBODY, 3)()
    filesystem.pipe_file(taken, content)
    sink.rewind_to(EVERYBODY, 1)()
    sink.rewind_to(EVERYBODY, 1)()
    assert rows_in(url) == [10, 11]
    published(sink, 4)
    packed(sink)
    sink.rewind_to(EVERYBODY, 1)()
    assert rows_in(url) == [10, 11]
    published(sink, 5)
    packed(sink)
    found = MarkerPacks(filesystem, FileLayout(root, EVERYBODY).committed).between(0, 99)
    assert sorted(found["checkpoint_id"].to_pylist()) == [1, 5]


def test_a_collection_beside_a_rewind_brings_nothing_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.3: it had read the markers that the rewind removes, and writes its pack afterwards."""
    sink = Parquet(url)
    published(sink, 1, 2)
    add = MarkerPacks.add

    def rewound_before(packs: MarkerPacks, markers: pa.Table) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(MarkerPacks, "add", add)
            sink.rewind_to(EVERYBODY, 1)()
        add(packs, markers)

    with monkeypatch.context() as patched:
        patched.setattr(MarkerPacks, "add", rewound_before)
        packed(sink)
    sink.rewind_to(EVERYBODY, 0)()
    assert rows_in(url) == []


class Crash(Exception):
    """The process dies here."""


def test_a_collection_that_crashes_at_any_step_forgets_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4: before and after every file that it writes or removes."""
    owner = MemoryFileSystem if url.startswith("memory") else LocalFileSystem
    crashes = 0
    for at in range(1, 40):
        place = f"{url}/{at}"
        sink = Parquet(place)
        handles = published(sink, 1, 2)
        packed(sink)
        handles |= published(sink, 3, 4)
        filesystem, root = fsspec.core.url_to_fs(place)
        for path in filesystem.glob(f"{root}/*.parquet"):
            filesystem.rm_file(path)
        steps = 0

        def dying(effect: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any) -> Any:
                nonlocal steps, crashes
                for half in (lambda: None, lambda: effect(*args)):
                    half()
                    steps += 1
                    if steps == at:  # noqa: B023
                        crashes += 1
                        raise Crash

            return wrapped

        with monkeypatch.context() as patched:
            patched.setattr(owner, "rm_file", dying(owner.rm_file))
            patched.setattr(MarkerPacks, "_put", dying(MarkerPacks._put))
            try:
                packed(sink)
            except Crash:
                pass
        for again in range(2):
            writer = sink.create_writer(TestWriter().context())
            for made in handles.values():
                writer.commit(made)
            assert rows_in(place) == [], f"crash at step {at}, look {again}"
            packed(sink)
        assert len(below(place, "committed")) == 1
    assert crashes >= 10, "two markers, a pack, the pack of both, two old packs"


def test_packs_that_a_rival_replaces_are_looked_for_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Parquet(url)
    handles = published(sink, 1, 2)
    packed(sink)
    published(sink, 3)
    listed = MarkerPacks.listed

    def overtaken(packs: MarkerPacks) -> Any:
        found = listed(packs)
        with monkeypatch.context() as patched:
            patched.setattr(MarkerPacks, "listed", listed)
            packed(sink)
        return found

    monkeypatch.setattr(MarkerPacks, "listed", overtaken)
    before = rows_in(url)
    sink.create_writer(TestWriter().context()).commit(handles[1])
    assert rows_in(url) == before


def test_what_a_sink_of_another_kind_had_staged_under_the_uid_is_none_of_its_files(tmp_path: Path) -> None:
    """S2.3: an old savepoint holds transactions of what stood there before."""
    sink = Parquet(tmp_path)
    (own,) = staged(sink.create_writer(TestWriter().context()), 1)
    (lost,) = staged(sink.create_writer(TestWriter().context(1)), 2)
    other = Committable(lost.transaction_id, {"rows": 2, "staging": "a_table"})
    found = sink.collect(EVERYBODY, NeededTransactions([own, other], 0, EVER)).found
    assert [one.path.rsplit("/", 1)[-1] for one in found] == [lost.data["files"][0]["staged"]]


def test_a_delta_table_takes_no_entry_twice_whose_marker_is_packed(tmp_path: Path) -> None:
    """S7.4: of all but the last one the table's log itself does not tell. From a savepoint that somebody kept."""
    sink = Delta(tmp_path)
    assert isinstance(sink, CollectsLeftovers)
    handles = published(sink, 1, 2, 3)
    packed(sink)
    assert below(str(tmp_path), "commits") == []
    version = DeltaTable(tmp_path).version()
    for made in handles.values():
        sink.create_writer(TestWriter().context()).commit(made)
    assert DeltaTable(tmp_path).version() == version
    published(sink, 4)
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["n"].to_pylist()) == [10, 11, 20, 21, 30, 31, 40, 41]


def test_a_pack_of_version_1_can_be_read(tmp_path: Path) -> None:
    """Made by the first version; a newer one is refused."""
    packs = MarkerPacks(LocalFileSystem(), f"{tmp_path}")
    (tmp_path / GOLDEN_PACK.stem).write_bytes(base64.b64decode(GOLDEN_PACK.read_text()))
    assert [(r["subtask"], r["checkpoint_id"], r["files"]) for r in packs.between(0, 9).to_pylist()] == GOLDEN_ROWS
    assert packs.holds(1, 1) and not packs.holds(1, 2) and not packs.holds(0, 3) and not packs.holds(0, 9)
    newer = PACK_SCHEMA.empty_table().replace_schema_metadata({"tidegate_markers": "2"})
    pq.write_table(newer, tmp_path / "pack-5-6-00.parquet")
    with pytest.raises(TidegateError, match="newer version"):
        packs.holds(0, 5)


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=60),
    st.lists(st.integers(1, 60), max_size=4),
    st.integers(0, 31),
    st.integers(0, 31),
)
def test_packs_say_what_the_markers_said(
    made: set[tuple[int, int]], cuts: list[int], after: int, needed_from: int
) -> None:
    """However they were cut and put together; with a rewind."""
    packs = MarkerPacks(MemoryFileSystem(), FileLayout("/packs", EVERYBODY).committed)
    MemoryFileSystem.store.clear()
    rows = sorted(made, key=lambda one: hash((one, 7)))
    ends = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    for first, last in zip(ends, ends[1:], strict=False):
        some = rows[first:last]
        columns = [[s for s, _ in some], [c for _, c in some], [s + 1 for s, _ in some]]
        packs.add(pa.Table.from_arrays([pa.array(column) for column in columns], PACK_SCHEMA.names).cast(PACK_SCHEMA))
    packs.rewind(after, 20)
    for _ in range(2):
        left = {(s, c) for s, c in made if not after < c < 20}
        found = {(r["subtask"], r["checkpoint_id"], r["files"]) for r in packs.between(needed_from - 1, 99).to_pylist()}
        assert found == {(s, c, s + 1) for s, c in left if c >= needed_from}
        every = ((s, c) for s in range(4) for c in range(needed_from, 32))
        assert all(packs.holds(s, c) == ((s, c) in left) for s, c in every)
        packs.compact(needed_from)
