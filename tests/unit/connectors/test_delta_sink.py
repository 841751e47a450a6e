"""The Delta sink: what readers see, crashes and rivals inside a commit (S7.4)."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction
from fsspec.implementations.local import LocalFileSystem

from tidegate.connectors.delta.delta_log import DeltaLog
from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.transactions import Committable
from tidegate.errors import TidegateError
from tidegate.testing.one_sink_job import TestWriter, numbers

APPLICATION = "tidegate:job-1,lineage-1,out,0"


def writer_of(folder: Path, identity: TestWriter, subtask: int = 0) -> SinkWriter:
    return Delta(folder, target_file_rows=2).create_writer(identity.context(subtask))


def staged(writer: SinkWriter, checkpoint_id: int, first: int, rows: int) -> list[Committable]:
    writer.write(numbers(first, rows))
    made = writer.prepare_commit(checkpoint_id)()
    return [Committable(c.transaction_id, json.loads(json.dumps(dict(c.data)))) for c in made]


def rows_of(folder: Path) -> list[int]:
    try:
        return sorted(DeltaTable(folder).to_pyarrow_table().column("n").to_pylist())
    except TableNotFoundError:
        return []


def entries(folder: Path, version: int) -> list[dict[str, Any]]:
    text = (folder / "_delta_log" / f"{version:020}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def appended(folder: Path) -> list[tuple[str, int]]:
    """Application and version of every entry. Rows alone would not show a repeated entry: it names the same files."""
    every = [entry for version in range(DeltaTable(folder).version() + 1) for entry in entries(folder, version)]
    return sorted((entry["txn"]["appId"], entry["txn"]["version"]) for entry in every if "txn" in entry)


def left_staged(folder: Path) -> list[Path]:
    return list(folder.rglob("*.staged"))


def test_nothing_of_the_table_is_there_before_the_first_commit(tmp_path: Path) -> None:
    sink = Delta(tmp_path / "table")
    sink.check(TestWriter.schema)
    assert not (tmp_path / "table").exists(), "a check changes nothing"
    writer = sink.create_writer(TestWriter().context())
    assert list(writer.prepare_commit(1)()) == []
    staged(writer, 2, 0, 3)
    writer.recover(0)
    with pytest.raises(TableNotFoundError):
        DeltaTable(tmp_path / "table")


def test_one_version_holds_a_transaction_and_names_it(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, TestWriter())
    (handle,) = staged(writer, 7, 0, 2)
    writer.commit([handle])
    assert DeltaTable(tmp_path).version() == 1
    found = {kind: body for entry in entries(tmp_path, 1) for kind, body in entry.items()}
    assert found["txn"] == {"appId": APPLICATION, "version": 7}
    assert found["add"]["path"] == "part-job-1--lineage-1--out--0--7--0.parquet"
    assert found["add"]["size"] == (tmp_path / found["add"]["path"]).stat().st_size
    assert found["commitInfo"]["tidegateTransaction"] == handle.transaction_id
    (marker,) = (tmp_path / "_tidegate" / "commits").iterdir()
    assert marker.name == "job-1,lineage-1,out,0,7.json"
    files = [{"path": found["add"]["path"], "rows": 2}]
    record = {"version": 1, "application": APPLICATION, "checkpoint_id": 7, "files": files}
    assert json.loads(marker.read_text()) == record


def test_all_files_of_a_transaction_appear_at_one_instant(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, TestWriter())
    for first in range(0, 10, 2):
        writer.write(numbers(first, 2))
    writer.commit(writer.prepare_commit(1)())
    assert [sum("add" in entry for entry in entries(tmp_path, version)) for version in (0, 1)] == [0, 5]
    assert rows_of(tmp_path) == list(range(10))


class Crash(Exception):
    """The process dies here."""


class OwnFileSystem(LocalFileSystem):
    cachable = False


def on_every_step(monkeypatch: pytest.MonkeyPatch, around: Callable[..., Any]) -> None:
    """Call `around(effect, *args)` in place of each effect of a commit on folder, log and marker."""
    for owner, name in ((OwnFileSystem, "exists"), (OwnFileSystem, "rm_file"), (os, "replace")):
        monkeypatch.setattr(owner, name, _wrapped(getattr(owner, name), around))
    for name in ("transaction_version", "create_write_transaction"):
        monkeypatch.setattr(DeltaTable, name, _wrapped(getattr(DeltaTable, name), around))
    monkeypatch.setattr(DeltaTable, "create", staticmethod(_wrapped(DeltaTable.create, around)))


def _wrapped(effect: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: around(partial(effect, *args, **kwargs))


@pytest.fixture(autouse=True)
def own_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.connectors.delta.delta_sink.open_filesystem", lambda url, _: (OwnFileSystem(), url))


def test_a_commit_that_crashes_at_any_step_is_completed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: before and after each effect, the append and the table's creation among them."""
    crashes = 0
    for at in range(1, 60):
        folder = tmp_path / str(at)
        identity = TestWriter()
        writer = writer_of(folder, identity)
        writer.write(numbers(0, 2))
        handles = staged(writer, 1, 2, 1) + staged(writer, 2, 3, 1)
        steps = 0

        def dying(effect: Callable[[], Any]) -> Any:
            nonlocal steps, crashes
            steps += 1
            if steps == at:  # noqa: B023
                crashes += 1
                raise Crash
            made = effect()
            steps += 1
            if steps == at:  # noqa: B023
                crashes += 1
                raise Crash
            return made

        with monkeypatch.context() as patched:
            on_every_step(patched, dying)
            try:
                writer.commit(handles)
            except Crash:
                pass
        identity.run = 2
        after = writer_of(folder, identity)
        after.commit(handles)
        after.recover(2)
        assert rows_of(folder) == [0, 1, 2, 3], f"crash at step {at}"
        assert appended(folder) == [(APPLICATION, 1), (APPLICATION, 2)], f"crash at step {at}"
        assert left_staged(folder) == []
    assert 20 <= crashes < 59, "the steps must cover the whole commit"


def test_a_rival_that_commits_the_same_transaction_at_any_step_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: also between the look at the log and the append, where delta-rs's conflict check must tell."""
    refusals: list[str] = []
    append = DeltaLog.append

    def watched(*args: Any) -> str | None:
        problem = append(*args)
        refusals.extend([problem] if problem else [])
        return problem

    monkeypatch.setattr(DeltaLog, "append", watched)
    overtakings = 0
    for at in range(1, 40):
        folder = tmp_path / str(at)
        identity = TestWriter()
        slower = writer_of(folder, identity)
        handles = staged(slower, 1, 0, 3)
        identity.run = 2
        quicker = writer_of(folder, identity)
        steps = 0

        def overtaken(effect: Callable[[], Any]) -> Any:
            nonlocal steps, overtakings
            steps += 1
            if steps == at:  # noqa: B023
                overtakings += 1
                quicker.commit(handles)  # noqa: B023
            return effect()

        with monkeypatch.context() as patched:
            on_every_step(patched, overtaken)
            slower.commit(handles)
        assert rows_of(folder) == [0, 1, 2], f"overtaken at step {at}"
        assert appended(folder) == [(APPLICATION, 1)], f"overtaken at step {at}"
        assert left_staged(folder) == []
    assert 6 <= overtakings < 39, "the steps must cover the whole commit"
    assert refusals, "no rival came between look and append"
    assert all("Concurrent transaction" in problem for problem in refusals)


def test_a_run_that_was_overtaken_by_two_transactions_repeats_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4, S9.2: when it reads the log, the last entry is another than its own, and its marker has come meanwhile."""
    identity = TestWriter()
    slow = writer_of(tmp_path, identity)
    first, second = staged(slow, 1, 0, 1), staged(slow, 2, 1, 1)
    identity.generation = 2
    quick = writer_of(tmp_path, identity)
    look = DeltaLog.find_or_create
    rivals = iter([[*first, *second]])

    def overtaken(log: DeltaLog) -> Any:
        for handles in rivals:
            quick.commit(handles)
        return look(log)

    monkeypatch.setattr(DeltaLog, "find_or_create", overtaken)
    slow.commit(first)
    assert appended(tmp_path) == [(APPLICATION, 1), (APPLICATION, 2)]
    assert rows_of(tmp_path) == [0, 1]


def test_a_transaction_that_a_rival_appends_after_the_look_is_not_appended_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: looked for and appended with one reading of the log, so that delta-rs sees the rival's entry as a conflict.
    The rival died before it could mark the transaction."""
    identity = TestWriter()
    slow = writer_of(tmp_path, identity)
    handles = staged(slow, 1, 0, 1)
    quick = writer_of(tmp_path, identity)
    look = DeltaLog.find_or_create
    rivals = iter([handles])

    def overtaken(log: DeltaLog) -> Any:
        table = look(log)
        for rival in rivals:
            with pytest.raises(KeyboardInterrupt):
                quick.commit(rival)
        return table

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DeltaLog, "find_or_create", overtaken)
    monkeypatch.setattr(quick, "_mark", dies)
    slow.commit(handles)
    assert appended(tmp_path) == [(APPLICATION, 1)]
    assert rows_of(tmp_path) == [0]


def test_two_runs_that_commit_the_same_transactions_at_once_publish_each_once(tmp_path: Path) -> None:
    """S7.4, S9.2: a zombie and its successor, both with the permit, and a subtask that shares the table."""
    identity = TestWriter()
    zombie = writer_of(tmp_path, identity)
    handles = [handle for n in range(1, 16) for handle in staged(zombie, n, n, 1)]
    identity.generation = 2
    successor, other = writer_of(tmp_path, identity), writer_of(tmp_path, identity, subtask=1)
    others = [handle for n in range(1, 16) for handle in staged(other, n, 100 + n, 1)]
    start = threading.Barrier(3)
    failures: list[BaseException] = []

    def commit(writer: SinkWriter, of: list[Committable]) -> None:
        start.wait()
        try:
            for handle in of:
                writer.commit([handle])
        except BaseException as e:
            failures.append(e)

    threads = [
        threading.Thread(target=commit, args=(writer, of))
        for writer, of in ((zombie, handles), (successor, handles), (other, others))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert rows_of(tmp_path) == [*range(1, 16), *range(101, 116)]
    assert len(appended(tmp_path)) == len(set(appended(tmp_path))) == 30
    assert DeltaTable(tmp_path).version() == 30, "the table was made more than once"


def test_delta_rs_refuses_a_rival_but_not_a_replay(tmp_path: Path) -> None:
    """What the writer's protocol rests on: it checks and appends with one handle because a fresh one would replay."""
    DeltaTable.create(tmp_path, schema=Schema.from_arrow(TestWriter.schema))

    def append(table: DeltaTable, name: str, version: int) -> None:
        table.create_write_transaction(
            [AddAction(name, 1, {}, 1, True, '{"numRecords": 1}')],
            mode="append",
            schema=table.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction("app", version)]),
        )

    stale = DeltaTable(tmp_path)
    append(DeltaTable(tmp_path), "a.parquet", 5)
    with pytest.raises(CommitFailedError, match="Concurrent transaction"):
        append(stale, "b.parquet", 5)
    append(DeltaTable(tmp_path), "c.parquet", 5)
    append(DeltaTable(tmp_path), "d.parquet", 3)
    assert DeltaTable(tmp_path).transaction_version("app") == 3


def test_what_was_committed_stays_known_after_its_files_were_compacted_and_vacuumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: though its writer died before the marker, and a later transaction's entry came before the replay."""
    identity = TestWriter()
    writer = writer_of(tmp_path, identity)
    early, late = staged(writer, 1, 0, 2), staged(writer, 2, 2, 2)
    with monkeypatch.context() as patched:
        patched.setattr(writer, "_mark", lambda *_: None)
        writer.commit(early)
    identity.run = 2
    second = writer_of(tmp_path, identity)
    second.commit(late)
    table = DeltaTable(tmp_path)
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert list(tmp_path.glob("part-job-1*")) == []
    second.commit([*early, *late])
    assert rows_of(tmp_path) == [0, 1, 2, 3]


def test_a_vacuum_of_all_unknown_files_spares_what_is_staged(tmp_path: Path) -> None:
    """S7.8: a verdict may take longer than any retention."""
    writer = writer_of(tmp_path, TestWriter())
    writer.commit(staged(writer, 1, 0, 2))
    waiting = staged(writer, 2, 2, 2)
    DeltaTable(tmp_path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    writer.commit(waiting)
    assert rows_of(tmp_path) == [0, 1, 2, 3]


def test_a_vacuum_between_move_and_append_spares_files_that_were_staged_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.8: a log entry that names a missing file would break every reader."""
    writer = writer_of(tmp_path, TestWriter())
    writer.commit(staged(writer, 1, 0, 2))
    waiting = staged(writer, 2, 2, 2)
    os.utime(left_staged(tmp_path)[0], (0, 0))
    append = DeltaLog.append

    def vacuumed(*args: Any) -> str | None:
        DeltaTable(tmp_path).vacuum(retention_hours=168, dry_run=False, full=True)
        return append(*args)

    monkeypatch.setattr(DeltaLog, "append", vacuumed)
    writer.commit(waiting)
    assert rows_of(tmp_path) == [0, 1, 2, 3]


def test_a_lost_transaction_is_named_and_leaves_no_version(tmp_path: Path) -> None:
    """S7.4: a log entry that names a missing file would break every reader."""
    writer = writer_of(tmp_path, TestWriter())
    writer.commit(staged(writer, 1, 0, 2))
    handles = staged(writer, 2, 2, 3)
    left_staged(tmp_path)[0].unlink()
    with pytest.raises(TidegateError, match=r"lost.*'out'.*no commit marker"):
        writer.commit(handles)
    assert DeltaTable(tmp_path).version() == 1
    assert rows_of(tmp_path) == [0, 1]


def test_an_append_that_is_refused_again_and_again_is_given_up_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(tmp_path, TestWriter())
    handles = staged(writer, 1, 0, 2)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaLog, "append", lambda *_: "the disk is on fire")
        with pytest.raises(TidegateError, match="10 attempts.*subtask 0.*on fire"):
            writer.commit(handles)
    writer.commit(handles)
    assert rows_of(tmp_path) == [0, 1]


def test_an_append_whose_answer_is_lost_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4: the entry is there, the answer was an error, as when a checkpoint of the log could not be written."""
    writer = writer_of(tmp_path, TestWriter())
    handles = staged(writer, 1, 0, 2)
    append = DeltaTable.create_write_transaction

    def unheard(*args: Any, **kwargs: Any) -> None:
        append(*args, **kwargs)
        raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", unheard)
    writer.commit(handles)
    assert rows_of(tmp_path) == [0, 1]
    assert DeltaTable(tmp_path).version() == 1


def test_files_hold_whole_row_groups_of_many_small_batches(tmp_path: Path) -> None:
    writer = Delta(tmp_path).create_writer(TestWriter().context())
    for first in range(0, 100, 10):
        writer.write(numbers(first, 10))
    writer.commit(writer.prepare_commit(1)())
    (file,) = tmp_path.glob("*.parquet")
    assert pq.read_metadata(file).num_row_groups == 1
