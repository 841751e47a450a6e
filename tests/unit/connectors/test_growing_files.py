"""Small files that grow (ADR 0047): what readers see at every step, crashes, zombies, rewinds, leftovers."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.files.sink import growing_files
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.files.sink.parquet_encoding import extend_parquet
from tidegate.connectors.files.sink.text_sinks import Csv, JsonLines
from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.leftovers import NeededTransactions
from tidegate.connectors.transactions import Committable
from tidegate.errors import FencedError, OptionError, PipelineError, SinkConflictError, TidegateError
from tidegate.testing.one_sink_job import TestWriter, numbers

KINDS: dict[str, Callable[[Path], Sink]] = {
    "parquet": lambda path: Parquet(path, compact_below="1 MiB"),
    "jsonl": lambda path: JsonLines(path, compact_below="1 MiB"),
    "jsonl.gz": lambda path: JsonLines(path, compression="gzip", compact_below="1 MiB"),
    "jsonl.zst": lambda path: JsonLines(path, compression="zstd", compact_below="1 MiB"),
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Sink]:
    return lambda: KINDS[request.param](tmp_path / "out")


def staged(writer: SinkWriter, checkpoint_id: int, rows: int = 2) -> list[Committable]:
    """Rows 10 * id, and the next ones."""
    writer.write(numbers(10 * checkpoint_id, rows))
    made = list(writer.prepare_commit(checkpoint_id)())
    return [Committable(handle.transaction_id, json.loads(json.dumps(dict(handle.data)))) for handle in made]


def files(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("part-*"))


def shown(folder: Path) -> list[int]:
    return sorted(n for path in files(folder) for n in rows_of(path.name, path.read_bytes()))


def rows_of(name: str, content: bytes) -> list[int]:
    if name.endswith(".parquet"):
        return [int(n) for n in pq.read_table(pa.BufferReader(content))["n"].to_pylist()]
    if name.endswith(".zst"):
        content = pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
    elif name.endswith(".gz"):
        content = gzip.decompress(content)
    return [json.loads(line)["n"] for line in content.decode().splitlines()]


def two_of(*checkpoints: int) -> list[int]:
    return sorted(10 * n + i for n in checkpoints for i in (0, 1))


def everybody(generation: int = 2) -> Any:
    identity = TestWriter()
    identity.generation = generation
    return identity.context(0, parallelism=1)


def test_commits_extend_one_file_whose_old_bytes_stay(make: Callable[[], Sink], tmp_path: Path) -> None:
    """A reader with the old size reads the old rows."""
    writer = make().create_writer(TestWriter().context())
    contents = []
    for n in range(1, 6):
        writer.commit(staged(writer, n))
        (only,) = files(tmp_path)
        contents.append(only.read_bytes())
        assert shown(tmp_path) == two_of(*range(1, n + 1))
    for n, (old, new) in enumerate(zip(contents, contents[1:], strict=False), 1):
        assert new[: len(old)] == old
        assert sorted(rows_of(only.name, new[: len(old)])) == two_of(*range(1, n + 1))
    assert list((tmp_path / "out/_tidegate/staging").rglob("*.staged")) == []
    assert [path for path in (tmp_path / "out/_tidegate/growing").rglob("*") if path.is_file()] == []
    other = make().create_writer(TestWriter().context(1))
    other.commit(staged(other, 6))
    assert len(files(tmp_path)) == 2, "each subtask has files of its own"


def test_a_grown_parquet_file_is_read_by_others_and_keeps_its_types(tmp_path: Path) -> None:
    """By DuckDB, and by pyarrow with statistics of all row groups; nested columns, dictionaries and nulls."""
    import duckdb

    schema = pa.schema(
        [("n", pa.int64()), ("s", pa.dictionary(pa.int32(), pa.string())), ("l", pa.list_(pa.int32()))],
        {"mine": "kept"},
    )
    whole = []
    for part in range(3):
        rows = {"n": [part, None], "s": ["a", f"b{part}"], "l": [[part], None]}
        whole.append(pa.table(rows, schema=schema))
        pq.write_table(whole[-1], tmp_path / f"{part}.parquet")
    extend_parquet(str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet"), str(tmp_path / "a.parquet"))
    extend_parquet(str(tmp_path / "a.parquet"), str(tmp_path / "2.parquet"), str(tmp_path / "b.parquet"))
    found = pq.read_table(tmp_path / "b.parquet")
    assert found.schema.metadata == schema.metadata
    assert found.to_pylist() == [row for table in whole for row in table.to_pylist()]
    query = f"SELECT count(*), sum(n), count(DISTINCT s), sum(l[1]) FROM '{tmp_path / 'b.parquet'}' WHERE n >= 1"
    assert duckdb.connect().execute(query).fetchall() == [(2, 3, 1, 3)]
    assert pq.read_table(tmp_path / "b.parquet", filters=[("n", ">", 1)]).num_rows == 1


def test_files_of_enough_bytes_or_parts_grow_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_files, "MOST_PARTS", 3)
    sink = Parquet(tmp_path / "out", compact_below="1 MiB")
    writer = sink.create_writer(TestWriter().context())
    for n in range(1, 8):
        writer.commit(staged(writer, n))
    assert [len(rows_of(path.name, path.read_bytes())) for path in files(tmp_path)] == [6, 6, 2]
    small = Parquet(tmp_path / "small/out", compact_below=f"{files(tmp_path)[0].stat().st_size // 2} B")
    writer = small.create_writer(TestWriter().context())
    for n in range(1, 8):
        writer.commit(staged(writer, n))
    assert len(files(tmp_path / "small")) == 4 and shown(tmp_path / "small") == two_of(*range(1, 8))


def test_only_where_a_file_can_be_replaced_and_has_no_header(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="compact_below needs a file system that renames"):
        Parquet("memory://nowhere", compact_below="1 MiB").check(TestWriter.schema)
    with pytest.raises(OptionError, match="Csv has no compact_below"):
        Csv(tmp_path, compact_below="1 MiB")


class Crash(Exception):
    """The process dies here."""


def test_a_commit_that_crashes_at_any_step_is_completed_by_the_next_run(
    make: Callable[[], Sink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: readers see the old rows or all of them, at every step; also if the option was removed meanwhile."""
    crashes = 0
    steps = [(os, "replace"), (os, "fsync"), (os, "remove"), (growing_files, "sync_to_disk")]
    for at in range(60):
        identity = TestWriter(f"lineage-{at}")
        before = shown(tmp_path)
        writer = make().create_writer(identity.context())
        base = 10 * (at + 1)
        writer.commit(staged(writer, base))
        old = shown(tmp_path)
        after = sorted([*old, *two_of(base + 1)])
        handles = staged(writer, base + 1)
        left = at
        with monkeypatch.context() as patched:
            for owner, name in steps:
                effect = getattr(owner, name)

                def dying(
                    *args: Any, effect: Callable[..., Any] = effect, allowed: Any = (old, after), **more: Any
                ) -> Any:
                    nonlocal left
                    if left == 0:
                        raise Crash
                    left -= 1
                    made = effect(*args, **more)
                    assert shown(tmp_path) in allowed, "readers see a part of a transaction"
                    return made

                patched.setattr(owner, name, dying)
            try:
                writer.commit(handles)
            except Crash:
                crashes += 1
            else:
                break
        identity.run = 2
        sink = make() if at % 2 else type(make())(tmp_path / "out", **_options(make()))  # type: ignore[call-arg]
        second = sink.create_writer(identity.context())
        second.commit(handles)
        second.recover(base + 1)
        assert shown(tmp_path) == after == sorted([*before, *two_of(base, base + 1)]), f"crash at step {at}"
        second.commit(staged(second, base + 2))
        assert shown(tmp_path) == sorted([*after, *two_of(base + 2)])
        sink.rewind_to(_of(identity, 3), base)()  # type: ignore[attr-defined]
        assert shown(tmp_path) == old, f"rewind after a crash at step {at}"
    assert 10 <= crashes < 60, "the steps must cover the whole commit"


def _options(sink: Sink) -> dict[str, Any]:
    compression = getattr(sink._encoding, "compression", None)  # type: ignore[attr-defined]
    return {"compression": compression} if compression else {}


def _of(identity: TestWriter, generation: int) -> Any:
    identity.generation = generation
    return identity.context(0, parallelism=1)


def test_a_zombie_extends_nothing_when_its_successor_has_begun(
    make: Callable[[], Sink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.2: it stands before the rename, while the next run commits its transaction, and another one."""
    identity = TestWriter()
    zombie = make().create_writer(identity.context())
    zombie.commit(staged(zombie, 1))
    handles = staged(zombie, 2)
    identity.run = 2
    successor = make().create_writer(identity.context())
    replace, renames = os.replace, []

    def waiting(source: Any, target: Any) -> None:
        if "/growing/" in str(source) and str(target).endswith(files(tmp_path)[0].name) and not renames:
            renames.append(target)
            successor.commit(handles)
            successor.recover(2)
            successor.commit(staged(successor, 3))
        replace(source, target)

    monkeypatch.setattr(os, "replace", waiting)
    with pytest.raises(FencedError, match="newer run"):
        zombie.commit(handles)
    assert len(renames) == 1 and shown(tmp_path) == two_of(1, 2, 3)


def test_a_zombie_that_has_extended_a_file_has_committed(make: Callable[[], Sink], tmp_path: Path) -> None:
    """S7.4: its plan tells the next run that the rows are there, although the marker is missing."""
    identity = TestWriter()
    first = make().create_writer(identity.context())
    first.commit(staged(first, 1))
    handles = staged(first, 2)
    first._write_marker = _dying  # type: ignore[attr-defined]
    with pytest.raises(Crash):
        first.commit(handles)
    assert shown(tmp_path) == two_of(1, 2)
    identity.run = 2
    second = make().create_writer(identity.context())
    second.commit(handles)
    second.recover(2)
    assert shown(tmp_path) == two_of(1, 2)
    marker = json.loads(next((tmp_path / "out/_tidegate/commits").glob("*,2,*.json")).read_bytes())
    assert marker["version"] == 2 and marker["files"][0]["before"] < marker["files"][0]["after"]


def _dying(*_: Any) -> None:
    raise Crash


def test_a_file_that_a_reader_moved_or_changed_is_not_extended(make: Callable[[], Sink], tmp_path: Path) -> None:
    """And an interrupted commit whose file is gone is a loud failure: nobody knows which rows it held."""
    identity = TestWriter()
    writer = make().create_writer(identity.context())
    writer.commit(staged(writer, 1))
    files(tmp_path)[0].rename(tmp_path / "taken")
    writer.commit(staged(writer, 2))
    assert shown(tmp_path) == two_of(2)
    with open(files(tmp_path)[0], "ab") as file:
        file.write(b"\n")
    writer.commit(staged(writer, 3))
    assert len(files(tmp_path)) == 2
    handles = staged(writer, 4)
    writer._write_marker = _dying  # type: ignore[attr-defined]
    with pytest.raises(Crash):
        writer.commit(handles)
    files(tmp_path)[1].unlink()
    identity.run = 2
    with pytest.raises(SinkConflictError, match="another process has changed a file that it extends.*it is missing"):
        make().create_writer(identity.context()).commit(handles)


def test_a_staged_file_that_is_lost_is_named(make: Callable[[], Sink], tmp_path: Path) -> None:
    """S7.4: never "already done"."""
    writer = make().create_writer(TestWriter().context())
    writer.commit(staged(writer, 1))
    lost = staged(writer, 2)
    next((tmp_path / "out/_tidegate/staging").rglob("*.staged")).unlink()
    with pytest.raises(TidegateError, match="staged file of a pre-committed transaction is lost"):
        writer.commit(lost)
    assert shown(tmp_path) == two_of(1)
    writer.commit(staged(writer, 3))
    assert shown(tmp_path) == two_of(1, 3)


def test_a_rewind_cuts_files_off_and_removes_later_ones(make: Callable[[], Sink], tmp_path: Path) -> None:
    """S9.3: to a checkpoint in the middle of a file; idempotent. A file that is not as it was is named."""
    sink = make()
    writer = sink.create_writer(TestWriter().context())
    contents = {}
    for n in range(1, 6):
        writer.commit(staged(writer, n))
        contents[n] = files(tmp_path)[0].read_bytes()
    rewind = sink.rewind_to(everybody(2), 3)  # type: ignore[attr-defined]
    assert shown(tmp_path) == two_of(1, 2, 3, 4, 5)
    for _ in range(2):
        rewind()
        assert files(tmp_path)[0].read_bytes() == contents[3]
    sink.rewind_to(everybody(3), 2)()  # type: ignore[attr-defined]
    assert files(tmp_path)[0].read_bytes() == contents[2]
    files(tmp_path)[0].write_bytes(contents[1][:-1])
    with pytest.raises(TidegateError, match="1 files that were published after this checkpoint were moved or removed"):
        sink.rewind_to(everybody(4), 1)  # type: ignore[attr-defined]
    files(tmp_path)[0].write_bytes(contents[2])
    sink.rewind_to(everybody(4), 0)()  # type: ignore[attr-defined]
    assert files(tmp_path) == []


def test_a_rewind_that_crashes_at_any_step_is_completed_by_the_next(
    make: Callable[[], Sink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.3."""
    crashes = 0
    for at in range(40):
        identity = TestWriter(f"lineage-{at}")
        before = shown(tmp_path)
        writer = make().create_writer(identity.context())
        base = 10 * (at + 1)
        for n in range(4):
            writer.commit(staged(writer, base + n))
        rewind = make().rewind_to(_of(identity, 2), base + 1)  # type: ignore[attr-defined]
        left = at
        with monkeypatch.context() as patched:
            for name in ("replace", "rename", "remove", "unlink"):
                effect = getattr(os, name)

                def dying(*args: Any, effect: Callable[..., Any] = effect, **more: Any) -> Any:
                    nonlocal left
                    if left == 0:
                        raise Crash
                    left -= 1
                    return effect(*args, **more)

                patched.setattr(os, name, dying)
            try:
                rewind()
            except Crash:
                crashes += 1
                patched.undo()
                make().rewind_to(_of(identity, 3), base + 1)()  # type: ignore[attr-defined]
            else:
                at = -1
        assert shown(tmp_path) == sorted([*before, *two_of(base, base + 1)]), f"crash at step {at}"
        if at < 0:
            break
    assert 3 <= crashes < 40, "the steps must cover the whole rewind"


def test_markers_with_sizes_stay_as_long_as_a_rewind_may_need_them(tmp_path: Path) -> None:
    """S2.3: others are packed."""
    sink = Parquet(tmp_path / "out", compact_below="1 MiB")
    writer = sink.create_writer(TestWriter().context())
    for n in range(1, 5):
        writer.commit(staged(writer, n))
    now = datetime.max.replace(tzinfo=UTC)
    ctx = TestWriter().context(0, parallelism=1)
    sink.collect(ctx, NeededTransactions(None, 3, now))
    left = sorted(path.name.split(",")[4] for path in (tmp_path / "out/_tidegate/commits").glob("*.json"))
    assert left == ["3", "4"]
    sink.rewind_to(everybody(), 2)()
    assert shown(tmp_path) == two_of(1, 2)


def test_a_rewind_to_before_deleted_sizes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.3: the rows of later commits would stay in the file. Whole files are still removed."""
    monkeypatch.setattr(growing_files, "MOST_PARTS", 3)
    sink = Parquet(tmp_path / "out", compact_below="1 MiB")
    writer = sink.create_writer(TestWriter().context())
    ctx, now = TestWriter().context(0, parallelism=1), datetime.max.replace(tzinfo=UTC)
    for n in range(2, 10):  # the files begin with 2, 5 and 8
        writer.commit(staged(writer, n))
        sink.collect(ctx, NeededTransactions(None, n - 2, now))
    assert [len(rows_of(path.name, path.read_bytes())) for path in files(tmp_path)] == [6, 6, 4]
    for checkpoint_id in (2, 5):
        with pytest.raises(TidegateError, match=r"cannot rewind to checkpoint \d.*gc --sinks.*checkpoint 6 on"):
            sink.rewind_to(everybody(), checkpoint_id)
    assert shown(tmp_path) == two_of(*range(2, 10))
    sink.rewind_to(everybody(), 6)()
    assert shown(tmp_path) == two_of(*range(2, 7))
    sink.rewind_to(everybody(3), 1)()
    assert files(tmp_path) == []


def test_copies_of_ended_lineages_are_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.3."""
    sink = Parquet(tmp_path / "out", compact_below="1 MiB")
    writer = sink.create_writer(TestWriter().context())
    writer.commit(staged(writer, 1))
    handles = staged(writer, 2)
    monkeypatch.setattr(growing_files, "sync_to_disk", _dying)
    with pytest.raises(Crash):
        writer.commit(handles)
    ctx, now = TestWriter().context(0, parallelism=1), datetime.max.replace(tzinfo=UTC)
    report = sink.collect(ctx, NeededTransactions((), 1, now))
    assert sum("/growing/" in one.path for one in report.found) == 1
    assert [path for path in (tmp_path / "out/_tidegate/growing").rglob("*") if path.is_file()] == []


def test_partitions_grow_each_by_itself(tmp_path: Path) -> None:
    schema = pa.schema([("day", pa.string()), ("n", pa.int64())])
    identity = TestWriter()
    identity.schema = schema
    writer = Parquet(tmp_path, partition_by="day", compact_below="1 MiB").create_writer(identity.context())
    for n, days in enumerate((["a", "b"], ["b", "c"], ["a", "c"]), 1):
        writer.write(pa.record_batch({"day": days, "n": pa.array([n, n + 10])}, schema=schema))
        writer.commit(writer.prepare_commit(n)())
    assert sorted(path.parent.name for path in tmp_path.rglob("part-*")) == ["day=a", "day=b", "day=c"]
    assert sorted(pq.read_table(tmp_path)["n"].to_pylist()) == [1, 2, 3, 11, 12, 13]
