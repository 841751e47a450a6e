"""Taking file sinks back to a snapshot: crashes, zombies, readers who took files (S9.3)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from published_rows import rows_in

from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.files.sink.text_sinks import Csv, JsonLines
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.transactions import Committable
from tidegate.errors import TidegateError
from tidegate.testing.one_sink_job import TestWriter, numbers


def staged(writer: SinkWriter, checkpoint_id: int, first: int, rows: int) -> Sequence[Committable]:
    writer.write(numbers(first, rows))
    return list(writer.prepare_commit(checkpoint_id)())


def published(writer: SinkWriter, *checkpoints: int) -> None:
    """Two rows for each checkpoint: 10 * id and the next."""
    for checkpoint_id in checkpoints:
        writer.commit(staged(writer, checkpoint_id, 10 * checkpoint_id, 2))


def everybody(generation: int = 2) -> Any:
    identity = TestWriter()
    identity.generation = generation
    return identity.context(0, parallelism=1)


def test_files_that_readers_took_cannot_be_taken_back_and_nothing_is_changed(tmp_path: Path) -> None:
    """S9.3: never "already done"."""
    sink = Parquet(tmp_path, target_file_rows=1)
    writer = sink.create_writer(TestWriter().context())
    writer.write(numbers(0, 1))
    writer.commit(staged(writer, 1, 1, 1))
    published(writer, 2, 3)
    next(tmp_path.glob("part-*--1--0.parquet")).unlink()
    next(tmp_path.glob("part-*--3--0.parquet")).rename(tmp_path / "taken.parquet")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        TidegateError,
        match=r"checkpoint 1.*1 files that were published after this checkpoint were moved.*--3--0\.parquet",
    ):
        sink.rewind_to(everybody(), 1)
    assert sorted(tmp_path.rglob("*")) == before
    sink.rewind_to(everybody(), 3)()
    (tmp_path / "taken.parquet").rename(tmp_path / "part-job-1--lineage-1--out--0--3--0.parquet")
    sink.rewind_to(everybody(), 1)()
    assert sorted(f.name for f in tmp_path.glob("*.parquet")) == ["part-job-1--lineage-1--out--0--1--1.parquet"]


class Crash(Exception):
    """The process dies here."""


def test_a_rewind_that_crashes_at_any_step_is_completed_by_the_next(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.3: what the first had begun is no reason for the second to find files missing."""
    owner = MemoryFileSystem if url.startswith("memory") else LocalFileSystem
    crashes = 0
    for at in range(1, 12):
        sink = Parquet(f"{url}/{at}", target_file_rows=1)
        writer = sink.create_writer(TestWriter().context())
        published(writer, 1, 2, 3)
        staged(writer, 4, 40, 2)
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
            try:
                sink.rewind_to(everybody(), 1)()
            except Crash:
                pass
        sink.rewind_to(everybody(3), 1)()
        assert rows_in(f"{url}/{at}") == [10, 11], f"crash at step {at}"
        filesystem, root = fsspec.core.url_to_fs(f"{url}/{at}")
        assert filesystem.glob(f"{root}/_tidegate/staging/**/*.staged") == []
        assert len(filesystem.glob(f"{root}/_tidegate/commits/*")) == 1
    assert crashes == 10, "before and after each of two markers, two files and a staged one"


def test_a_transaction_whose_commit_was_cut_short_is_taken_back_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.3: its files are there and its marker is not."""
    sink = Parquet(url, target_file_rows=1)
    writer = sink.create_writer(TestWriter().context())
    published(writer, 1)
    writer.write(numbers(20, 1))
    handles = staged(writer, 2, 21, 1)
    with monkeypatch.context() as patched:
        patched.setattr("tidegate.connectors.files.sink.file_writer.FileWriter._write_marker", _die)
        with pytest.raises(Crash):
            writer.commit(handles)
    assert rows_in(url) == [10, 11, 20, 21]
    sink.rewind_to(everybody(), 1)()
    assert rows_in(url) == [10, 11]


def _die(*_: Any) -> None:
    raise Crash


def test_a_zombie_in_the_middle_of_its_commit_publishes_nothing_more(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.2, S9.3: it held its permit when the rewind came, between any two of its steps."""
    owner = MemoryFileSystem if url.startswith("memory") else LocalFileSystem
    overtakings = 0
    for at in range(1, 20):
        sink = Parquet(f"{url}/{at}", target_file_rows=1)
        writer = sink.create_writer(TestWriter().context())
        published(writer, 1)
        writer.write(numbers(20, 1))
        handles = staged(writer, 2, 21, 1)
        steps = 0

        def overtaken(effect: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal steps, overtakings
                steps += 1
                if steps == at:  # noqa: B023
                    overtakings += 1
                    sink.rewind_to(everybody(), 1)()  # noqa: B023
                return effect(*args, **kwargs)

            return wrapped

        with monkeypatch.context() as patched:
            for holder, name in ((owner, "exists"), (owner, "cp_file"), (os, "replace")):
                patched.setattr(holder, name, overtaken(getattr(holder, name)))
            try:
                writer.commit(handles)
            except TidegateError as e:
                assert "lost" in str(e)
        if steps >= at:
            assert rows_in(f"{url}/{at}") == [10, 11], f"overtaken at step {at}"
    assert overtakings >= 4


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    """S9.3: of other sinks, jobs and lineages, and of nobody."""
    sink = Parquet(tmp_path)
    others = [
        {"job_id": "job-2"},
        {"lineage": "lineage-2"},
        {"uid": "other"},
        {"uid": "out--0"},
    ]
    for place, other in enumerate(others):
        writer = sink.create_writer(replace(TestWriter().context(), **other))
        writer.commit(staged(writer, 9, place, 1))
    (tmp_path / "part-job-1--lineage-1--out--mine.parquet").write_bytes(b"x")
    before = {f for f in tmp_path.rglob("*") if f.is_file()}
    published(sink.create_writer(TestWriter().context()), 1, 2)
    sink.rewind_to(everybody(), 0)()
    (note,) = {f for f in tmp_path.rglob("*") if f.is_file()} - before
    assert note == tmp_path / "_tidegate/committed/job-1/lineage-1/out/rewound-0-3.json"
    assert all(path.is_file() for path in before)


def test_what_another_format_or_partitioning_of_the_sink_wrote_is_found(tmp_path: Path) -> None:
    """S9.3: the pipeline may have been changed between submissions."""
    schema = TestWriter.schema.append(pa.field("p", pa.string()))
    for checkpoint_id, sink in enumerate((Csv(tmp_path, compression="gzip"), JsonLines(tmp_path, partition_by="p")), 2):
        writer = sink.create_writer(replace(TestWriter().context(), schema=schema))
        writer.write(pa.record_batch({"n": [1], "p": ["x/y"]}, schema=schema))
        writer.commit(writer.prepare_commit(checkpoint_id)())
    assert len(list(tmp_path.rglob("part-*"))) == 2
    Parquet(tmp_path).rewind_to(everybody(), 1)()
    assert list(tmp_path.rglob("part-*")) == []


def test_a_handle_is_published_with_the_suffix_it_was_written_with(tmp_path: Path) -> None:
    """S7.4: the restored job may compress, or write another format."""
    identity = TestWriter()
    handles = staged(Csv(tmp_path).create_writer(identity.context()), 1, 0, 2)
    identity.generation = 2
    JsonLines(tmp_path, compression="zstd").create_writer(identity.context()).commit(handles)
    assert [f.name for f in tmp_path.glob("part-*")] == ["part-job-1--lineage-1--out--0--1--0.csv"]


def test_there_may_be_nothing_to_take_back(url: str) -> None:
    Parquet(f"{url}/none").rewind_to(everybody(), 0)()
