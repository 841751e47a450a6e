"""The Iceberg sink: what readers see; crashes, rivals and lost answers inside a commit (S7.4)."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from iceberg_tables import TABLE, compact, expire_all_but_the_newest, opened, rows_of, sqlite_catalog
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

from tidegate.connectors.iceberg import iceberg_writer
from tidegate.connectors.iceberg.iceberg_sink import Iceberg
from tidegate.connectors.iceberg.iceberg_writer import IcebergWriter
from tidegate.connectors.leftovers import NeededTransactions
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable
from tidegate.errors import OutageError, SinkConflictError, TidegateError
from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.stores.store_registry import open_store
from tidegate.testing.one_sink_job import TestWriter, numbers

PROPERTY = "tidegate.committed.job-1,lineage-1,out"


class Warehouse:
    """A table and its sink."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.properties = sqlite_catalog(folder)
        self.catalog: Catalog = opened(self.properties)

    @property
    def table(self) -> Table:
        return self.catalog.load_table(TABLE)

    def sink(self, **options: Any) -> Iceberg:
        return Iceberg(TABLE, catalog=self.properties, **{"create": True, **options})

    def writer(self, identity: TestWriter, subtask: int = 0, parallelism: int = 1, **options: Any) -> IcebergWriter:
        made = self.sink(**options).create_writer(identity.context(subtask, parallelism))
        assert isinstance(made, IcebergWriter)
        made._wait = lambda _: None  # no test waits
        return made

    def rows(self) -> list[int]:
        """The rows that readers see, after a check that no file is in the table twice or missing."""
        files = [task.file.file_path for task in self.table.scan().plan_files()]
        assert len(files) == len(set(files)), "a file is in the table twice"
        return rows_of(self.catalog)

    def transactions(self) -> list[str]:
        """Ids of the transactions in the table's snapshots, as often as they are there."""
        found = [snapshot.summary for snapshot in self.table.snapshots()]
        return sorted(t for s in found if s and s["tidegate.transactions"] for t in s["tidegate.transactions"].split())

    def left_staged(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*.staged"))


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    made = Warehouse(tmp_path)
    yield made
    made.catalog.close()


def staged(writer: IcebergWriter, checkpoint_id: int, first: int, rows: int) -> list[Committable]:
    writer.write(numbers(first, rows))
    made = writer.prepare_commit(checkpoint_id)()
    return [Committable(c.transaction_id, json.loads(json.dumps(dict(c.data)))) for c in made]


def append_by_others(warehouse: Warehouse, *values: int) -> None:
    import pyarrow as pa

    warehouse.table.append(pa.table({"n": pa.array(values, pa.int64())}))


def test_a_snapshot_names_the_transaction_and_the_table_remembers_it(warehouse: Warehouse) -> None:
    writer = warehouse.writer(TestWriter())
    (handle,) = staged(writer, 7, 0, 2)
    assert warehouse.table.current_snapshot() is None
    writer.commit([handle])
    head = warehouse.table.current_snapshot()
    assert head is not None and head.summary is not None
    found = {key: value for key, value in head.summary.additional_properties.items() if key.startswith("tidegate")}
    assert found == {
        "tidegate.job": "job-1",
        "tidegate.lineage": "lineage-1",
        "tidegate.uid": "out",
        "tidegate.checkpoint": "7",
        "tidegate.transactions": handle.transaction_id,
    }
    assert warehouse.table.properties[PROPERTY] == '{"0": 7}'
    (task,) = warehouse.table.scan().plan_files()
    assert task.file.file_path.endswith("/data/part-job-1--lineage-1--out--0--7--0.parquet")
    assert task.file.file_size_in_bytes == Path(task.file.file_path.removeprefix("file://")).stat().st_size


def test_all_files_of_a_transaction_appear_in_one_snapshot(warehouse: Warehouse) -> None:
    writer = warehouse.writer(TestWriter(), partition_by="bucket(4, n)")
    writer.commit(staged(writer, 1, 0, 40))
    assert len(warehouse.table.snapshots()) == 1
    assert len(list(warehouse.table.scan().plan_files())) == 4
    assert warehouse.rows() == list(range(40))


# ------------------------------------------------------------ one snapshot for a checkpoint


def test_subtasks_that_commit_at_once_make_one_snapshot(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is first: the others wait for the one with the lowest index."""
    identity = TestWriter()
    writers = [warehouse.writer(identity, subtask, parallelism=4) for subtask in range(4)]
    led = threading.Event()

    def wait(_: float) -> None:
        led.wait(10)

    for checkpoint_id in (1, 2):
        handles = [staged(writer, checkpoint_id, 10 * n, 2) for n, writer in enumerate(writers)]
        led.clear()
        for writer in writers:
            writer._wait = wait  # type: ignore[assignment]
        with ThreadPoolExecutor(4) as threads:
            pending = [threads.submit(writer.commit, handles[n]) for n, writer in enumerate(writers) if n]
            writers[0].commit(handles[0])
            led.set()
            for one in pending:
                one.result()
        assert len(warehouse.table.snapshots()) == checkpoint_id
    assert sorted({t.split(",")[3] for t in warehouse.transactions()}) == ["0", "1", "2", "3"]
    assert len(warehouse.rows()) == 16
    assert warehouse.left_staged() == []
    assert json.loads(warehouse.table.properties[PROPERTY]) == {"0": 2, "1": 2, "2": 2, "3": 2}


def test_a_subtask_commits_itself_if_the_leader_is_late(warehouse: Warehouse) -> None:
    """It then commits for the leader, too, which finds its transaction committed."""
    identity = TestWriter()
    leader, other = warehouse.writer(identity, 0, 2), warehouse.writer(identity, 1, 2)
    first, second = staged(leader, 1, 0, 2), staged(other, 1, 2, 2)
    waits: list[float] = []
    other._wait = waits.append  # type: ignore[assignment]
    other.commit(second)
    assert waits == list(iceberg_writer.LEADER_WAITS_S)
    assert warehouse.rows() == [0, 1, 2, 3]
    leader.commit(first)
    assert len(warehouse.table.snapshots()) == 1
    assert warehouse.rows() == [0, 1, 2, 3]


def test_transactions_of_other_runs_and_checkpoints_are_not_committed_together(warehouse: Warehouse) -> None:
    """Only the permit for a checkpoint of a run covers what that run staged for it (S7.8)."""
    identity = TestWriter()
    old = warehouse.writer(identity, 1, 2)
    staged(old, 2, 50, 2)
    identity.run = 2
    mine, other = warehouse.writer(identity, 0, 2), warehouse.writer(identity, 1, 2)
    staged(other, 1, 60, 2)
    staged(other, 3, 70, 2)
    mine.commit(staged(mine, 2, 0, 2))
    assert warehouse.rows() == [0, 1]


def test_without_the_record_of_a_subtask_it_commits_itself(warehouse: Warehouse) -> None:
    identity = TestWriter()
    leader, other = warehouse.writer(identity, 0, 2), warehouse.writer(identity, 1, 2)
    first, second = staged(leader, 1, 0, 2), staged(other, 1, 2, 2)
    for record in warehouse.folder.rglob("*.handle.json.staged"):
        record.write_text("{")
    leader.commit(first)
    assert warehouse.rows() == [0, 1]
    other.commit(second)
    assert warehouse.rows() == [0, 1, 2, 3]


def test_a_record_that_contradicts_its_name_is_not_used(warehouse: Warehouse) -> None:
    identity = TestWriter()
    leader, other = warehouse.writer(identity, 0, 2), warehouse.writer(identity, 1, 2)
    first, second = staged(leader, 1, 0, 2), staged(other, 1, 2, 2)
    (record,) = warehouse.folder.rglob("staging/*/*/*/1/*.handle.json.staged")
    record.write_text(record.read_text().replace("job-1,lineage-1,", "job-1,lineage-2,"))
    leader.commit(first)
    assert warehouse.rows() == [0, 1]
    other.commit(second)
    assert warehouse.rows() == [0, 1, 2, 3]


def test_the_loss_of_another_subtasks_files_is_reported_by_that_subtask(warehouse: Warehouse) -> None:
    identity = TestWriter()
    leader, other = warehouse.writer(identity, 0, 2), warehouse.writer(identity, 1, 2)
    first, second = staged(leader, 1, 0, 2), staged(other, 1, 2, 2)
    (lost,) = warehouse.folder.rglob("staging/*/*/*/1/*.parquet.staged")
    lost.unlink()
    leader.commit(first)
    assert warehouse.rows() == [0, 1]
    with pytest.raises(TidegateError, match="is lost"):
        other.commit(second)


# ------------------------------------------------------------ crashes and rivals


class Crash(Exception):
    """The process dies here."""


def on_every_step(monkeypatch: pytest.MonkeyPatch, around: Callable[..., Any]) -> None:
    """Call `around(effect)` in place of each effect of a commit on files and catalog."""
    targets = (
        (LocalFileSystem, "exists"),
        (LocalFileSystem, "rm_file"),
        (os, "replace"),
        (SqlCatalog, "load_table"),
        (SqlCatalog, "commit_table"),
    )
    for owner, name in targets:
        monkeypatch.setattr(owner, name, _wrapped(getattr(owner, name), around))


def _wrapped(effect: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: around(partial(effect, *args, **kwargs))


def test_a_commit_that_crashes_at_any_step_is_completed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: before and after each effect, with and without an expiry of snapshots before the restore."""
    crashes = 0
    for at in range(1, 80):
        (tmp_path / str(at)).mkdir()
        warehouse = Warehouse(tmp_path / str(at))
        identity = TestWriter()
        writer = warehouse.writer(identity)
        handles = staged(writer, 1, 0, 3) + staged(writer, 2, 3, 1)
        steps = 0

        def dying(effect: Callable[[], Any]) -> Any:
            nonlocal steps, crashes
            for is_before in (True, False):
                steps += 1
                if steps == at:  # noqa: B023
                    crashes += 1
                    raise Crash
                if is_before:
                    made = effect()
            return made

        with monkeypatch.context() as patched:
            on_every_step(patched, dying)
            try:
                writer.commit(handles)
                crashed = False
            except (Crash, TidegateError):
                crashed = True
        if at % 2 and warehouse.table.snapshots():
            append_by_others(warehouse, 100)
            expire_all_but_the_newest(warehouse.table)
        identity.run = 2
        again = warehouse.writer(identity)
        again.commit(handles)
        again.recover(2)
        assert [n for n in warehouse.rows() if n < 100] == [0, 1, 2, 3], f"crash at step {at}"
        assert warehouse.left_staged() == []
        warehouse.catalog.close()
        if not crashed and steps < at:
            break
    assert crashes > 30


def test_processes_that_commit_the_same_transaction_at_once_append_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.2: a rival commits all of it between any two steps."""
    for at in range(1, 80):
        (tmp_path / str(at)).mkdir()
        warehouse = Warehouse(tmp_path / str(at))
        identity = TestWriter()
        writer = warehouse.writer(identity)
        handles = staged(writer, 1, 0, 2) + staged(writer, 2, 2, 1)
        identity.run = 2
        rival = warehouse.writer(identity)
        steps = 0
        busy = False

        def stepping(effect: Callable[[], Any]) -> Any:
            nonlocal steps, busy
            if not busy:
                steps += 1
                if steps == at:  # noqa: B023
                    busy = True
                    rival.commit(handles)  # noqa: B023
                    busy = False
            return effect()

        with monkeypatch.context() as patched:
            on_every_step(patched, stepping)
            writer.commit(handles)
        assert warehouse.rows() == [0, 1, 2]
        assert len(warehouse.transactions()) == 2, f"rival at step {at}"
        warehouse.catalog.close()
        if steps < at:
            return
    raise AssertionError("the commit has more steps than were tried")


@pytest.mark.parametrize("succeeds", [False, True], ids=["not committed", "committed"])
@pytest.mark.parametrize(
    "answer",
    [CommitStateUnknownException("504"), OSError("connection reset"), CommitFailedException("sent twice by a proxy")],
    ids=["unknown", "reset", "refused"],
)
def test_an_unclear_answer_commits_once(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, succeeds: bool, answer: Exception
) -> None:
    """The commit may have succeeded although the catalog reported a conflict: its manifests must stay."""
    writer = warehouse.writer(TestWriter())
    handles = staged(writer, 1, 0, 3)
    commit_table = SqlCatalog.commit_table
    answers = [answer, answer]

    def unclear(*args: Any, **kwargs: Any) -> Any:
        if not answers:
            return commit_table(*args, **kwargs)
        if succeeds:
            commit_table(*args, **kwargs)
        raise answers.pop()

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", unclear)
        writer.commit(handles)
    assert answers == ([answer] if succeeds else [])
    assert warehouse.rows() == [0, 1, 2]
    assert len(warehouse.transactions()) == 1
    writer.commit(staged(writer, 2, 3, 1))
    assert warehouse.rows() == [0, 1, 2, 3]


def test_a_delayed_commit_cannot_follow_the_one_that_replaced_it(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request was reported as lost, and reaches the catalog after the second."""
    writer = warehouse.writer(TestWriter())
    handles = staged(writer, 1, 0, 3)
    commit_table = SqlCatalog.commit_table
    delayed: list[Callable[[], Any]] = []

    def losing(*args: Any, **kwargs: Any) -> Any:
        if not delayed:
            delayed.append(partial(commit_table, *args, **kwargs))
            raise CommitStateUnknownException("timeout")
        return commit_table(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", losing)
        writer.commit(handles)
    with pytest.raises(CommitFailedException):
        delayed[0]()
    assert warehouse.rows() == [0, 1, 2]


def test_a_catalog_that_never_accepts_fails_the_commit_and_names_the_cause(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = TestWriter()
    writer = warehouse.writer(identity)
    handles = staged(writer, 1, 0, 3)

    def refuse(*_: Any, **__: Any) -> Any:
        raise CommitFailedException("somebody else is always first")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", refuse)
        with pytest.raises(OutageError, match="somebody else is always first"):
            writer.commit(handles)
    manifests = list(warehouse.folder.rglob("*-m0.avro"))
    assert len(manifests) <= 1, "refused attempts leave no manifests, except the last"
    identity.run = 2
    warehouse.writer(identity).commit(handles)
    assert warehouse.rows() == [0, 1, 2]


def test_other_writers_may_append_compact_and_expire(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the load of the table and the commit."""
    writer = warehouse.writer(TestWriter())
    writer.commit(staged(writer, 1, 0, 2))
    commit_table = SqlCatalog.commit_table
    changes = [
        lambda: append_by_others(warehouse, 100),
        lambda: compact(warehouse.table),
        lambda: expire_all_but_the_newest(warehouse.table),
    ]

    def disturbed(*args: Any, **kwargs: Any) -> Any:
        if changes:
            change = changes.pop(0)
            with monkeypatch.context() as inner:
                inner.setattr(SqlCatalog, "commit_table", commit_table)
                change()
        return commit_table(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", disturbed)
        for checkpoint_id in (2, 3, 4):
            writer.commit(staged(writer, checkpoint_id, 10 * checkpoint_id, 1))
    assert warehouse.rows() == [0, 1, 20, 30, 40, 100]


def test_expired_snapshots_do_not_hide_what_was_committed(warehouse: Warehouse) -> None:
    """S7.4: the last transaction of each writer is in a property, earlier ones have markers."""
    identity = TestWriter()
    writer = warehouse.writer(identity)
    handles = [staged(writer, n, 10 * n, 1) for n in (1, 2, 3)]
    for one in handles:
        writer.commit(one)
    for marker in warehouse.folder.rglob("_tidegate/commits/*,3.json"):
        marker.unlink()  # the process died before it wrote it
    append_by_others(warehouse, 100)
    expire_all_but_the_newest(warehouse.table)
    assert warehouse.transactions() == []
    identity.run = 2
    again = warehouse.writer(identity)
    again.commit([handle for one in handles for handle in one])
    assert warehouse.rows() == [10, 20, 30, 100]


def test_a_marker_that_was_never_written_is_written_before_its_record_is_replaced(warehouse: Warehouse) -> None:
    identity = TestWriter()
    writer = warehouse.writer(identity)
    first, second = staged(writer, 1, 0, 1), staged(writer, 2, 1, 1)
    writer.commit(first)
    for marker in warehouse.folder.rglob("_tidegate/commits/*.json"):
        marker.unlink()
    writer.commit(second)
    expire_all_but_the_newest(warehouse.table)
    writer.commit(first)
    assert warehouse.rows() == [0, 1]


def test_snapshots_show_what_was_committed_if_somebody_has_removed_the_other_records(warehouse: Warehouse) -> None:
    writer = warehouse.writer(TestWriter())
    handles = staged(writer, 1, 0, 2)
    writer.commit(handles)
    for marker in warehouse.folder.rglob("_tidegate/commits/*.json"):
        marker.unlink()
    with warehouse.table.transaction() as transaction:
        transaction.remove_properties(PROPERTY)
    append_by_others(warehouse, 100)
    writer.commit(handles)
    assert warehouse.rows() == [0, 1, 100]
    assert len(warehouse.transactions()) == 1


# ------------------------------------------------------------ files of the table


def test_nothing_that_cleans_up_deletes_a_file_of_the_table(warehouse: Warehouse, tmp_path: Path) -> None:
    """S2.3, S7.4: abort, recovery, collection, quarantine and close, with the handles of committed transactions, after
    a crash at which the files were in their places, and by a later generation."""
    identity = TestWriter()
    writer = warehouse.writer(identity, 0, 2, partition_by="bucket(2, n)")
    handles = staged(writer, 1, 0, 8)
    writer.commit(handles)
    files = [Path(task.file.file_path.removeprefix("file://")) for task in warehouse.table.scan().plan_files()]
    identity.generation = 2
    later = warehouse.writer(identity, 0, 2)
    into = Quarantine(open_store(str(tmp_path / "store")), "job/quarantine", WithheldRange(1, (1,), "anna", "wrong"))
    needed = NeededTransactions((), 2, datetime.max.replace(tzinfo=UTC))
    writer.abort(handles)
    later.abort(handles)
    later.recover(0)
    warehouse.sink().quarantine(identity.context(), handles, into)
    warehouse.sink().collect(identity.context(0, 1), needed)
    writer.close()
    later.close()
    assert all(file.exists() for file in files)
    assert warehouse.rows() == list(range(8))


def test_files_in_their_places_that_are_not_committed_yet_are_not_deleted(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit crashed between the move and the snapshot; another subtask cleans up before the commit is repeated."""
    identity = TestWriter()
    writer = warehouse.writer(identity)
    handles = staged(writer, 1, 0, 3)

    def die(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(iceberg_writer, "append_files", die)
        with pytest.raises(KeyboardInterrupt):
            writer.commit(handles)
    identity.run = 2
    again = warehouse.writer(identity)
    again.recover(0)
    warehouse.sink().collect(identity.context(0, 1), NeededTransactions((), 0, datetime.max.replace(tzinfo=UTC)))
    again.commit(handles)
    assert warehouse.rows() == [0, 1, 2]


def test_a_table_that_was_dropped_and_created_again_gets_no_old_transaction(warehouse: Warehouse) -> None:
    identity = TestWriter()
    writer = warehouse.writer(identity)
    handles = staged(writer, 1, 0, 3)
    warehouse.catalog.drop_table(TABLE)
    identity.run = 2
    again = warehouse.writer(identity)
    with pytest.raises(SinkConflictError, match="dropped and created again"):
        again.commit(handles)
    assert warehouse.rows() == []


def test_collecting_forgets_a_lineage_that_no_restore_needs(warehouse: Warehouse) -> None:
    identity = TestWriter()
    writer = warehouse.writer(identity)
    writer.commit(staged(writer, 4, 0, 1))
    for markers_from, kept in ((4, True), (5, False)):
        needed = NeededTransactions((), markers_from, datetime.max.replace(tzinfo=UTC))
        warehouse.sink().collect(identity.context(0, 1), replace(needed), dry_run=True)
        assert PROPERTY in warehouse.table.properties
        warehouse.sink().collect(identity.context(0, 1), needed)
        assert (PROPERTY in warehouse.table.properties) == kept
    writer.commit(staged(writer, 6, 1, 1))
    assert warehouse.rows() == [0, 1]


# ------------------------------------------------------------ rewinds


def committed(warehouse: Warehouse, writer: IcebergWriter, *checkpoints: int) -> Sequence[Committable]:
    handles: list[Committable] = []
    for n in checkpoints:
        handles += staged(writer, n, 10 * n, 1)
        writer.commit(handles[-1:])
    return handles


def test_a_rewind_removes_the_sinks_files_and_no_others(warehouse: Warehouse) -> None:
    """S9.3: in one snapshot, which names it; older snapshots stay readable."""
    identity = TestWriter()
    writer = warehouse.writer(identity)
    committed(warehouse, writer, 1, 2)
    append_by_others(warehouse, 100)
    committed(warehouse, writer, 3)
    before = warehouse.table.current_snapshot()
    identity.generation = 2
    warehouse.sink().rewind_to(identity.context(0, 1), 1)()
    assert warehouse.rows() == [10, 100]
    head = warehouse.table.current_snapshot()
    assert head is not None and head.summary is not None and before is not None
    assert head.summary["tidegate.rewound"] == "1 4"
    assert len(warehouse.table.scan(snapshot_id=before.snapshot_id).to_arrow()) == 4
    again = warehouse.writer(identity)
    committed(warehouse, again, 4)
    identity.generation = 3
    warehouse.sink().rewind_to(identity.context(0, 1), 1)()
    assert warehouse.rows() == [10, 100]


def test_a_zombie_cannot_commit_what_a_rewind_has_removed(warehouse: Warehouse) -> None:
    """S9.2: also if its files are in their places, and its marker is removed."""
    identity = TestWriter()
    zombie = warehouse.writer(identity)
    handles = committed(warehouse, zombie, 1, 2)
    identity.generation = 2
    warehouse.sink().rewind_to(identity.context(0, 1), 1)()
    with pytest.raises(SinkConflictError, match="rewind"):
        zombie.commit(handles[1:])
    assert warehouse.rows() == [10]


def test_a_rewind_whose_answer_is_lost_is_done_once(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = TestWriter()
    committed(warehouse, warehouse.writer(identity), 1, 2)
    identity.generation = 2
    take_back = warehouse.sink().rewind_to(identity.context(0, 1), 1)
    commit_table = SqlCatalog.commit_table

    def lost(*args: Any, **kwargs: Any) -> Any:
        commit_table(*args, **kwargs)
        raise CommitStateUnknownException("504")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lost)
        take_back()
    assert warehouse.rows() == [10]


@pytest.mark.parametrize(("change", "why"), [(compact, "rewritten or deleted"), (expire_all_but_the_newest, "expired")])
def test_a_rewind_is_refused_if_rows_of_the_sink_may_be_elsewhere(
    warehouse: Warehouse, change: Callable[[Table], None], why: str
) -> None:
    identity = TestWriter()
    committed(warehouse, warehouse.writer(identity), 2, 3)
    change(warehouse.table)
    identity.generation = 2
    with pytest.raises(SinkConflictError, match=why):
        warehouse.sink().rewind_to(identity.context(0, 1), 1)
    assert warehouse.rows() == [20, 30]


# ------------------------------------------------------------ branches


def test_a_branch_keeps_rows_from_readers_until_it_is_published(warehouse: Warehouse) -> None:
    """Write, audit, publish: S7.8 decides what is committed to the branch."""
    append_before = warehouse.writer(TestWriter("lineage-0"))
    append_before.commit(staged(append_before, 1, 100, 1))
    writer = warehouse.writer(TestWriter(), branch="audit")
    writer.commit(staged(writer, 1, 0, 2))
    assert warehouse.rows() == [100]
    assert rows_of(warehouse.catalog, branch="audit") == [0, 1, 100]
    head = warehouse.table.snapshot_by_name("audit")
    assert head is not None
    warehouse.table.manage_snapshots().set_current_snapshot(head.snapshot_id).commit()
    writer.commit(staged(writer, 2, 2, 1))
    assert warehouse.rows() == [0, 1, 100]


def test_files_are_synced_and_read_as_other_readers_do(warehouse: Warehouse) -> None:
    """Parquet with field ids, which do not depend on pyiceberg."""
    writer = warehouse.writer(TestWriter())
    writer.commit(staged(writer, 1, 0, 2))
    (task,) = warehouse.table.scan().plan_files()
    schema = pq.read_schema(task.file.file_path.removeprefix("file://"))
    assert schema.field("n").metadata == {b"PARQUET:field_id": b"1"}
