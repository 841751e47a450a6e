"""The Parquet sink: what readers see, crashes inside a commit, checks before the start (S7.4)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from tidegate.connectors.files.sink.file_writer import FileCut, FileWriter
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.files.sink.parquet_encoding import ParquetEncoding
from tidegate.connectors.files.sink.sink_layout import FileLayout, StagedName, parse_staged_name
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.transactions import Committable, SinkContext, file_name_token
from tidegate.errors import OptionError, PipelineError, SinkConflictError, TidegateError
from tidegate.testing.one_sink_job import TestWriter, numbers

SCHEMA = TestWriter.schema


def staged(writer: SinkWriter, checkpoint_id: int, first: int, rows: int) -> list[Committable]:
    writer.write(numbers(first, rows))
    return list(writer.prepare_commit(checkpoint_id)())


def writer_to(filesystem: AbstractFileSystem, root: str, ctx: SinkContext, target_file_rows: int) -> FileWriter:
    return FileWriter(filesystem, FileLayout(root, ctx), ctx, ParquetEncoding(), FileCut(target_file_rows, 2**20))


def numbers_in(folder: Path) -> list[int]:
    return sorted(n for file in folder.glob("*.parquet") for n in pq.read_table(file).column("n").to_pylist())


def counted(glob: str) -> int:
    """Rows as DuckDB sees them."""
    (row,) = duckdb.connect().execute("select count(*) from read_parquet(?)", [glob]).fetchall()
    return int(row[0])


def test_every_reader_sees_committed_rows_only(tmp_path: Path) -> None:
    writer = Parquet(tmp_path).create_writer(TestWriter().context())
    writer.commit(staged(writer, 1, 0, 10))
    staged(writer, 2, 10, 10)
    writer.write(numbers(20, 10))
    assert counted(f"{tmp_path}/*.parquet") == 10
    assert counted(f"{tmp_path}/**/*.parquet") == 10
    assert len(pd.read_parquet(tmp_path)) == 10
    assert pa_dataset.dataset(tmp_path, format="parquet").count_rows() == 10


def test_file_names_and_marker_name_the_transaction(tmp_path: Path) -> None:
    writer = Parquet(tmp_path).create_writer(TestWriter().context())
    (handle,) = staged(writer, 7, 0, 3)
    writer.commit([handle])
    assert [f.name for f in tmp_path.glob("*.parquet")] == ["part-job-1--lineage-1--out--0--7--0.parquet"]
    (marker,) = (tmp_path / "_tidegate" / "commits").iterdir()
    assert marker.name == f"{handle.transaction_id}.json"
    assert json.loads(marker.read_text()) == {
        "version": 1,
        "transaction_id": handle.transaction_id,
        "files": [{"path": "part-job-1--lineage-1--out--0--7--0.parquet", "rows": 3}],
    }


def test_a_long_transaction_is_cut_into_files_and_small_batches_into_one_row_group(tmp_path: Path) -> None:
    writer = Parquet(tmp_path, target_file_rows=100).create_writer(TestWriter().context())
    for start in range(0, 250, 10):
        writer.write(numbers(start, 10))
    (handle,) = writer.prepare_commit(1)()
    writer.commit([handle])
    files = sorted(tmp_path.glob("*.parquet"))
    assert [pq.read_metadata(f).num_rows for f in files] == [100, 100, 50]
    assert [pq.read_metadata(f).num_row_groups for f in files] == [1, 1, 1]
    assert numbers_in(tmp_path) == list(range(250))


def test_readers_may_move_committed_files_away_before_the_commit_is_repeated(tmp_path: Path) -> None:
    writer = Parquet(tmp_path).create_writer(TestWriter().context())
    handles = staged(writer, 1, 0, 3)
    writer.commit(handles)
    for file in tmp_path.glob("*.parquet"):
        file.unlink()
    writer.commit(handles)
    assert numbers_in(tmp_path) == []


def test_a_lost_transaction_is_named_with_its_paths(tmp_path: Path) -> None:
    writer = Parquet(tmp_path).create_writer(TestWriter().context())
    handles = staged(writer, 1, 0, 3)
    for file in tmp_path.rglob("*.staged"):
        file.unlink()
    with pytest.raises(TidegateError, match=r"lost.*'out'.*no commit marker"):
        writer.commit(handles)


def test_a_foreign_file_of_the_same_name_is_not_overwritten(tmp_path: Path) -> None:
    writer = Parquet(tmp_path).create_writer(TestWriter().context())
    handles = staged(writer, 1, 0, 3)
    foreign = tmp_path / "part-job-1--lineage-1--out--0--1--0.parquet"
    foreign.write_bytes(b"something else")
    with pytest.raises(SinkConflictError, match="another file with this name exists"):
        writer.commit(handles)
    assert foreign.read_bytes() == b"something else"
    foreign.unlink()
    writer.commit(handles)
    assert numbers_in(tmp_path) == [0, 1, 2]


class Crash(Exception):
    """The process dies here."""


class CrashPoint:
    """Crashes at the n-th step; steps are counted before and after each effect on storage."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash

    def around(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.step()
            made = effect(*args, **kwargs)
            self.step()
            return made

        return wrapped


class CrashingLocal(LocalFileSystem):
    cachable = False


class CrashingMemory(MemoryFileSystem):
    cachable = False


@pytest.mark.parametrize("store", ["local", "memory"])
def test_a_commit_that_crashes_at_any_step_is_completed_by_the_next_run(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = 0
    for at in range(1, 40):
        filesystem = CrashingLocal() if store == "local" else CrashingMemory()
        root = f"{tmp_path}/{at}" if store == "local" else f"/crash-{at}"
        identity = TestWriter()
        writer = writer_to(filesystem, root, identity.context(), 2)
        writer.write(numbers(0, 2))
        handles = staged(writer, 1, 2, 1) + staged(writer, 2, 3, 1)
        point = CrashPoint(at)
        with monkeypatch.context() as patched:
            for name in ("cp_file", "pipe_file", "rm_file"):
                patched.setattr(filesystem, name, point.around(getattr(filesystem, name)))
            patched.setattr(os, "replace", point.around(os.replace))
            try:
                writer.commit(handles)
            except Crash:
                crashes += 1
        identity.run = 2
        after = writer_to(filesystem, root, identity.context(), 2)
        after.commit(handles)
        after.recover(2)
        found = []
        for path in filesystem.glob(f"{root}/*.parquet"):
            with filesystem.open(path) as file:
                found += pq.read_table(file).column("n").to_pylist()
        assert sorted(found) == [0, 1, 2, 3], f"crash at step {at}"
        assert filesystem.glob(f"{root}/_tidegate/staging/**/*.staged") == []
    assert 10 <= crashes < 39, "the steps must cover the whole commit"


@pytest.mark.parametrize("store", ["local", "memory"])
def test_a_quicker_run_with_the_same_permit_does_not_disturb(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: it commits all at once in between any two steps of the slower one."""
    overtakings = 0
    for at in range(1, 40):
        filesystem = CrashingLocal() if store == "local" else CrashingMemory()
        root = f"{tmp_path}/{at}" if store == "local" else f"/overtaken-{at}"
        identity = TestWriter()
        slower = writer_to(filesystem, root, identity.context(), 2)
        handles = staged(slower, 1, 0, 3)
        identity.run = 2
        quicker = writer_to(filesystem, root, identity.context(), 2)
        steps = 0

        def overtaken(effect: Callable[..., Any], *args: Any) -> Any:
            nonlocal steps, overtakings
            steps += 1
            if steps == at:  # noqa: B023
                overtakings += 1
                quicker.commit(handles)  # noqa: B023
            return effect(*args)

        with monkeypatch.context() as patched:
            for name in ("exists", "cp_file", "pipe_file", "rm_file"):
                patched.setattr(filesystem, name, partial(overtaken, getattr(filesystem, name)))
            patched.setattr(os, "replace", partial(overtaken, os.replace))
            slower.commit(handles)
        found = []
        for path in filesystem.glob(f"{root}/*.parquet"):
            with filesystem.open(path) as file:
                found += pq.read_table(file).column("n").to_pylist()
        assert sorted(found) == [0, 1, 2], f"overtaken at step {at}"
    assert 4 <= overtakings < 39, "the steps must cover the whole commit"


def test_staged_data_is_uploaded_only_by_the_asynchronous_part(tmp_path: Path) -> None:
    filesystem = CrashingMemory()
    ctx = TestWriter().context()
    writer = writer_to(filesystem, "/uploads", ctx, 10)
    writer.write(numbers(0, 3))
    stage = writer.prepare_commit(1)
    assert filesystem.glob("/uploads/**/*.staged") == []
    stage()
    assert len(filesystem.glob("/uploads/**/*.staged")) == 1


def test_recovery_leaves_files_alone_that_it_does_not_know(tmp_path: Path) -> None:
    writer = Parquet(tmp_path).create_writer(TestWriter().context())
    (staging,) = (tmp_path / "_tidegate" / "staging").rglob("0")
    (staging / "README").write_text("mine")
    writer.recover(0)
    assert [f.name for f in staging.iterdir()] == ["README"]


def test_staged_names_can_be_read_back_and_tokens_never_collide() -> None:
    name = StagedName(3, "run-a_1", 12, 0, ".csv.gz")
    assert parse_staged_name(str(name)) == name
    assert parse_staged_name("x.parquet") is None
    texts = ["a-b", "a_b", "a--b", "a/b", "../a", "a b", ".a", "-a", "ä", ""]
    assert len({file_name_token(t) for t in texts}) == len(texts)
    assert all(
        "/" not in file_name_token(t) and "--" not in file_name_token(t) and not file_name_token(t).startswith(".")
        for t in texts
    )


def test_a_missing_folder_is_made_and_one_with_the_same_schema_is_used(tmp_path: Path) -> None:
    sink = Parquet(tmp_path / "not" / "there")
    sink.check(SCHEMA)
    assert not (tmp_path / "not").exists(), "a check changes nothing"
    writer = sink.create_writer(TestWriter().context())
    writer.commit(staged(writer, 1, 0, 1))
    sink.check(SCHEMA)


def test_times_that_parquet_stores_in_another_unit_are_no_foreign_schema(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("s", "UTC"))])
    pq.write_table(pa.table({"at": pa.array([1], pa.timestamp("s", "UTC"))}), tmp_path / "x.parquet")
    Parquet(tmp_path).check(schema)


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda f: (f / "out").write_text("x"), "is a file"),
        (
            lambda f: (f / "out").mkdir() or pq.write_table(pa.table({"m": [1]}), f / "out" / "x.parquet"),
            "another schema",
        ),
        (lambda f: (f / "out").mkdir() or (f / "out" / "x.parquet").write_text("x"), "not readable as Parquet"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_with_its_path(
    tmp_path: Path, prepare: Callable[[Path], Any], said: str
) -> None:
    prepare(tmp_path)
    with pytest.raises(PipelineError, match=said) as caught:
        Parquet(tmp_path / "out").check(SCHEMA)
    assert str(tmp_path / "out") in str(caught.value)


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PipelineError, match="the sink cannot use the folder"):
        Parquet(tmp_path / "file" / "out").check(SCHEMA)


def test_a_type_that_parquet_lacks_is_refused_by_column(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="'odd'"):
        Parquet(tmp_path).check(pa.schema([("n", pa.int64()), ("odd", pa.month_day_nano_interval())]))


def test_repeated_column_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="'n'"):
        Parquet(tmp_path).check(pa.schema([("n", pa.int64()), ("n", pa.int64())]))


def test_a_bad_option_or_protocol_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="target_file_rows"):
        Parquet(tmp_path, target_file_rows=0)
    with pytest.raises(PipelineError, match="nosuch://"):
        Parquet("nosuch://bucket/x").check(SCHEMA)


def test_a_secret_is_resolved_where_it_is_used_and_never_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TEST_KEY", "hidden")
    sink = Parquet("memory://secret", storage_options={"key": "secret:env/TIDEGATE_TEST_KEY"})
    sink.check(SCHEMA)
    assert "hidden" not in sink.describe()
    with pytest.raises(OptionError, match="NOT_THERE"):
        Parquet("memory://secret", storage_options={"key": "secret:env/NOT_THERE"}).check(SCHEMA)
