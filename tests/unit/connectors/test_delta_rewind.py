"""Rewind of the Delta sink: only its own rows leave the table, whatever crashes, whoever writes meanwhile (S9.3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.delta_tables import actions_of
from deltalake import DeltaTable, write_deltalake

from tidegate.connectors.delta.delta_log import DeltaLog
from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.delta.delta_writer import DeltaWriter
from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.connectors.files.sink.file_writer import FileWriter
from tidegate.connectors.files.sink.marker_packs import MarkerPacks
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.leftovers import NeededTransactions
from tidegate.connectors.transactions import Committable
from tidegate.errors import OutageError, SinkConflictError, TidegateError
from tidegate.testing.one_sink_job import TestWriter, numbers


class Table:
    """A table that two subtasks of a sink, and others, write to."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.sink = Delta(folder, target_file_rows=2, **options)
        self.identity = TestWriter()
        self.writers = [self.writer(0), self.writer(1)]

    def writer(self, subtask: int) -> SinkWriter:
        return self.sink.create_writer(self.identity.context(subtask))

    def staged(self, subtask: int, checkpoint_id: int, rows: int = 3) -> list[Committable]:
        first = 100 * checkpoint_id + 10 * subtask
        self.writers[subtask].write(numbers(first, rows))
        return list(self.writers[subtask].prepare_commit(checkpoint_id)())

    def commit(self, subtask: int, checkpoint_id: int) -> None:
        self.writers[subtask].commit(self.staged(subtask, checkpoint_id))

    def append(self, *values: int) -> None:
        """As another program."""
        write_deltalake(str(self.folder), pa.table({"n": pa.array(values, pa.int64())}), mode="append")

    def rewind(self, to: int, before: int | None = None) -> Callable[[], None]:
        self.identity.generation += 1
        everybody = self.identity.context(0, parallelism=1)
        return self.sink.rewind_to(everybody, to, **({} if before is None else {"before": before}))

    @property
    def written(self) -> DeltaTable:
        return DeltaTable(str(self.folder))

    @property
    def rows(self) -> list[int]:
        return sorted(self.written.to_pyarrow_table()["n"].to_pylist())

    @property
    def markers(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "_tidegate" / "commits").iterdir())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def test_one_version_removes_the_files_of_all_subtasks_and_nothing_of_others(table: Table) -> None:
    table.commit(0, 1)
    table.append(-1)
    table.commit(0, 2)
    table.commit(1, 2)
    table.append(-2, -3)
    version = table.written.version()
    table.rewind(1)()
    assert table.rows == [-3, -2, -1, 100, 101, 102]
    assert table.written.version() == version + 1
    actions = actions_of(table.folder / "_delta_log" / f"{version + 1:020}.json")
    removed = [action["remove"] for action in actions if "remove" in action]
    assert len(removed) == 2 and all(one["dataChange"] and one["size"] for one in removed)
    assert next(action["commitInfo"]["tidegateRewound"] for action in actions if "commitInfo" in action).endswith(
        ",1 2"
    )
    assert table.markers == ["job-1,lineage-1,out,0,1.json"]
    write = DeltaTable(str(table.folder), version=version)
    assert write.to_pyarrow_table().num_rows == 12, "earlier versions can be read until VACUUM"


def test_a_job_goes_on_after_a_rewind_and_can_be_rewound_again(table: Table) -> None:
    for checkpoint_id in (1, 2, 3):
        table.commit(0, checkpoint_id)
    table.rewind(1)()
    table.writers = [table.writer(0), table.writer(1)]
    table.commit(0, 4)
    table.commit(1, 5)
    assert table.rows == [100, 101, 102, 400, 401, 402, 510, 511, 512]
    table.rewind(4)()
    assert table.rows == [100, 101, 102, 400, 401, 402]
    table.rewind(0)()
    assert table.rows == [] and table.markers == []


def test_rows_in_partitions_with_odd_names_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = TestWriter.schema.append(pa.field("p", pa.string()))
    monkeypatch.setattr(TestWriter, "schema", schema)
    table = Table(tmp_path, partition_by="p")
    for checkpoint_id in (1, 2):
        batch = pa.record_batch([[1, 2, 3], ["b ü/=%", None, "x" * 200]], schema=schema)
        table.writers[0].write(batch)
        table.writers[0].commit(table.writers[0].prepare_commit(checkpoint_id)())
    table.rewind(1)()
    assert table.rows == [1, 2, 3]


def test_packed_markers_count_as_markers(table: Table) -> None:
    from datetime import UTC, datetime

    for checkpoint_id in (1, 2, 3):
        table.commit(0, checkpoint_id)
    everybody = table.identity.context(0, parallelism=1)
    needed = NeededTransactions((), 1, datetime.max.replace(tzinfo=UTC))
    assert table.sink.collect(everybody, needed).found and table.markers == []
    table.rewind(1)()
    assert table.rows == [100, 101, 102]
    table.rewind(0)()
    assert table.rows == []


# ------------------------------------------------------------ what others did


def compact(table: Table) -> None:
    table.written.optimize.compact()


def delete_a_row(table: Table) -> None:
    table.written.delete("n = 200")


def delete_files(table: Table) -> None:
    table.written.delete()


@pytest.mark.parametrize("change", [compact, delete_a_row, delete_files])
@pytest.mark.parametrize("marked", ["marked", "packed", "in the log", "old markers"])
def test_files_that_another_program_has_rewritten_are_refused_before_anything_changes(
    table: Table, change: Callable[[Table], None], marked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import UTC, datetime

    table.commit(0, 1)
    with monkeypatch.context() as patched:
        if marked == "in the log":  # the subtask died before it wrote the marker
            patched.setattr(DeltaWriter, "_mark", lambda *_: None)
        if marked == "old markers":
            mark = DeltaWriter._mark
            patched.setattr(DeltaWriter, "_mark", lambda self, made, n, *_: mark(self, made, n))
        table.commit(0, 2)
    if marked == "packed":
        needed = NeededTransactions((), 1, datetime.max.replace(tzinfo=UTC))
        table.sink.collect(table.identity.context(0, parallelism=1), needed)
    change(table)
    version, markers = table.written.version(), table.markers
    with pytest.raises(SinkConflictError, match="cannot rewind to checkpoint 1.*checkpoint 2: another program"):
        table.rewind(1)
    assert (table.written.version(), table.markers) == (version, markers)
    table.rewind(2)()
    assert table.written.version() == version, "nothing was committed after checkpoint 2"


def test_files_from_before_the_snapshot_may_be_rewritten(table: Table) -> None:
    table.commit(0, 1)
    table.append(-1)
    table.written.optimize.compact()
    table.commit(0, 2)
    table.rewind(1)()
    assert table.rows == [-1, 100, 101, 102]


def test_a_transaction_whose_log_entry_is_cleaned_up_needs_its_marker(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit(0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaWriter, "_mark", lambda *_: None)
        table.commit(0, 2)
    table.append(-1)
    table.written.create_checkpoint()
    for version in range(table.written.version()):
        (table.folder / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(SinkConflictError, match="log entries of 1 transactions are cleaned up"):
        table.rewind(1)


def test_an_append_only_table_is_refused(table: Table) -> None:
    table.commit(0, 1)
    table.written.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(SinkConflictError, match="append-only"):
        table.rewind(0)
    table.rewind(1)()
    assert table.rows == [100, 101, 102]


def test_a_table_that_does_not_exist_has_nothing_to_rewind(table: Table) -> None:
    table.rewind(1)()
    assert not (table.folder / "_delta_log").exists()


def test_files_with_deletion_vectors_are_refused(table: Table) -> None:
    """As Spark deletes rows: the file stays, with a vector."""
    table.commit(0, 1)
    version = table.written.version()
    actions = actions_of(table.folder / "_delta_log" / f"{version:020}.json")
    add = next(action["add"] for action in actions if "add" in action)
    vector = {"storageType": "u", "pathOrInlineDv": "vBn[lx{q8@P<9BNH/isA", "offset": 1, "sizeInBytes": 36}
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    entry = [
        {"protocol": protocol},
        {"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 1, "partitionValues": {}}},
        {"add": {**add, "deletionVector": {**vector, "cardinality": 2}}},
    ]
    text = "\n".join(json.dumps(action) for action in entry)
    (table.folder / "_delta_log" / f"{version + 1:020}.json").write_text(text)
    with pytest.raises(SinkConflictError, match="deleted rows of 1 files"):
        table.rewind(0)


# ------------------------------------------------------------ crashes and zombies


class Crash(Exception):
    """The process dies here."""


EFFECTS = ((MarkerPacks, "rewind"), (DeltaLog, "change"), (FileWriter, "recover"), (LogFiles, "listed"))


def test_a_rewind_that_crashes_at_any_step_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.3: before and after each effect, also while markers are removed."""
    from tidegate.connectors.files.sink.file_rewind import FileRewind

    crashes = 0
    for at in range(1, 40):
        table = Table(tmp_path / str(at))
        for checkpoint_id in (1, 2, 3):
            table.commit(0, checkpoint_id)
            table.commit(1, checkpoint_id)
        table.append(-1)
        steps = 0

        def dying(effect: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == at:  # noqa: B023
                raise Crash
            made = effect(*args, **kwargs)
            steps += 1
            if steps == at:  # noqa: B023
                raise Crash
            return made

        with monkeypatch.context() as patched:
            for owner, name in (*EFFECTS, (FileRewind, "_remove")):
                effect = getattr(owner, name)
                patched.setattr(owner, name, lambda *a, effect=effect, **k: dying(partial(effect, *a, **k)))
            try:
                table.rewind(1)()
            except Crash:
                crashes += 1
        table.rewind(1)()
        assert table.rows == [-1, 100, 101, 102, 110, 111, 112], f"crash at step {at}"
        assert table.markers == ["job-1,lineage-1,out,0,1.json", "job-1,lineage-1,out,1,1.json"]
    assert 12 <= crashes < 39, "the steps must cover the whole rewind"


@pytest.mark.parametrize("at", ["before the log is read", "before the append", "before the marker"])
@pytest.mark.parametrize("has_committed", [True, False])
@pytest.mark.parametrize("removes", [True, False])
def test_a_zombie_that_commits_meanwhile_is_refused_or_rewound(
    table: Table, monkeypatch: pytest.MonkeyPatch, at: str, has_committed: bool, removes: bool
) -> None:
    """S9.2: its subtask may have committed nothing before, so that the table does not know its application. The rewind
    may have no file to remove, so that only the applications are in conflict.
    """
    table.commit(0, 1)
    if removes:
        table.commit(0, 3)
    if has_committed:
        table.commit(1, 1)
    late = table.staged(1, 3)
    zombie = table.writers[1]
    take_back = table.rewind(1)
    place = {"before the log is read": "find_or_create", "before the append": "append", "before the marker": "append"}
    effect = getattr(DeltaLog, place[at])

    def overtaken(log: DeltaLog, *args: Any) -> Any:
        monkeypatch.setattr(DeltaLog, place[at], effect)
        made = effect(log, *args) if at == "before the marker" else None
        take_back()
        return made if at == "before the marker" else effect(log, *args)

    monkeypatch.setattr(DeltaLog, place[at], overtaken)
    if at == "before the marker":
        zombie.commit(late)
    else:
        # Before the log is read, the staged file may be all that there is to remove.
        with pytest.raises(TidegateError, match="a rewind has removed|the staged file .* is lost"):
            zombie.commit(late)
    expected = [100, 101, 102, *([110, 111, 112] if has_committed else [])]
    assert table.rows == expected
    if removes:
        with pytest.raises(SinkConflictError, match="a rewind has removed"):
            table.writers[0].commit(table.staged(0, 2))
    table.rewind(1)()
    assert table.rows == expected


def test_other_programs_that_append_meanwhile_lose_nothing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.commit(0, 1)
    table.commit(0, 2)
    remove = DeltaLog.change
    appended = iter([-1, -2, -3])

    def overtaken(log: DeltaLog, *args: Any) -> Any:
        for value in appended:
            table.append(value)
        return remove(log, *args)

    monkeypatch.setattr(DeltaLog, "change", overtaken)
    table.rewind(1)()
    assert table.rows == [-3, -2, -1, 100, 101, 102]


def test_a_program_that_rewrites_the_files_meanwhile_makes_the_rewind_fail(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.commit(0, 1)
    table.commit(0, 2)
    remove = DeltaLog.change

    def overtaken(log: DeltaLog, *args: Any) -> Any:
        monkeypatch.setattr(DeltaLog, "change", remove)
        compact(table)
        return remove(log, *args)

    monkeypatch.setattr(DeltaLog, "change", overtaken)
    take_back = table.rewind(1)
    with pytest.raises(SinkConflictError, match="another program has rewritten"):
        take_back()
    assert table.rows == [100, 101, 102, 200, 201, 202]


def test_a_table_that_accepts_no_entry_is_an_outage(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.commit(0, 1)
    monkeypatch.setattr(DeltaLog, "change", lambda *_: "the store is away")
    with pytest.raises(OutageError, match="accepted no rewind in 20 attempts.*the store is away"):
        table.rewind(0)()
