"""Rewind of upserts: a table gets the rows of an earlier checkpoint, or the rewind is refused by name (S9.3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders.delta_tables import actions_of
from deltalake import DeltaTable
from iceberg_tables import expire_all_but_the_newest
from upserted_tables import KINDS, ROWS, Change, Upserted, UpsertedDelta, UpsertedIceberg

from tidegate.connectors.delta.delta_log import DeltaLog
from tidegate.connectors.delta.delta_writer import DeltaWriter
from tidegate.connectors.files.sink.file_rewind import FileRewind
from tidegate.connectors.files.sink.file_writer import FileWriter
from tidegate.connectors.files.sink.marker_packs import MarkerPacks
from tidegate.connectors.iceberg import table_rewind
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.upserts.staged_groups import LEADER_TIMEOUT_S
from tidegate.errors import SinkConflictError, TidegateError
from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.stores.store_registry import open_store

Make = Callable[..., Upserted]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def made(folder: str = "", **options: Any) -> Upserted:
        (tmp_path / folder).mkdir(exist_ok=True)
        return KINDS[request.param](tmp_path / folder, **options)

    return made


def filled(table: Upserted, checkpoints: int = 3, **options: Any) -> list[list[Any]]:
    """Commit checkpoints that insert, replace and delete rows. Return the rows after each, beginning with none."""
    writer = table.writer(**options)
    shown: list[list[Any]] = [table.rows()]
    for n in range(1, checkpoints + 1):
        changes: list[Change] = [("insert", k, "a", f"{n}") for k in (n, n + 1, 10 * n)]
        changes.append(("delete", n - 1, None, None))
        table.commit(writer, n, *changes)
        shown.append(table.rows())
    return shown


@pytest.mark.parametrize("to", [0, 1, 2, 3])
def test_replaced_and_deleted_rows_are_back(make: Make, to: int) -> None:
    table = make(partition_by="shop")
    shown = filled(table)
    versions = table.versions()
    table.rewind(to)()
    assert table.rows() == shown[to]
    assert table.versions() == versions + (to < 3), "one version more, if something was committed since"
    table.rewind(to)()
    assert table.versions() == versions + (to < 3)


def test_rows_from_before_the_job_are_back(make: Make) -> None:
    table = make()
    table.others((1, "theirs", "x"), (2, "theirs", "x"))
    before = table.rows()
    filled(table)
    table.rewind(0)()
    assert table.rows() == before


def test_a_job_continues_after_a_rewind_and_can_be_rewound_again(make: Make) -> None:
    table = make()
    shown = filled(table)
    table.rewind(1)()
    writer = table.writer()
    table.commit(writer, 4, ("insert", 2, "b", "4"), ("delete", 10, None, None))
    after_4 = table.rows()
    assert (2, "b", "4") in after_4 and (3, "a", "2") not in after_4
    table.commit(writer, 5, ("delete", 2, None, None))
    table.rewind(4)()
    assert table.rows() == after_4
    table.rewind(1)()
    assert table.rows() == shown[1]
    table.rewind(0)()
    assert table.rows() == []


def test_a_rewind_covers_all_subtasks_and_refuses_their_zombies(make: Make) -> None:
    table = make()
    writers = [table.writer(subtask, 2) for subtask in (0, 1)]
    for n in (1, 2):
        handles = [table.staged(w, n, ("insert", s, "a", f"{n}")) for s, w in enumerate(writers)]
        for writer, mine in zip(writers, handles, strict=True):
            writer.commit(mine)
    late = table.staged(writers[1], 3, ("insert", 1, "a", "zombie"))
    again = table.staged(writers[0], 3, ("insert", 0, "a", "zombie"))
    table.rewind(1)()
    assert [row[2] for row in table.rows()] == ["1", "1"]
    for writer, mine in ((writers[1], late), (writers[0], again), (writers[1], handles[1])):
        with pytest.raises(TidegateError):
            writer.commit(mine)
    assert [row[2] for row in table.rows()] == ["1", "1"]


@pytest.mark.parametrize("older", [0, 1])
def test_checkpoints_are_committed_in_their_order_so_that_each_can_be_kept(make: Make, older: int) -> None:
    """S7.8, S9.3: one approval covers 2 and 3, and the subtask with rows of 3 begins first."""
    table = make()
    writers = [table.writer(subtask, 2) for subtask in (0, 1)]
    table.commit(writers[0], 1, ("insert", 0, "a", "1"))
    old = table.staged(writers[older], 2, ("insert", 10, "a", "2"))
    new = table.staged(writers[1 - older], 3, ("insert", 20, "a", "3"))
    waits: list[float] = []

    def wait(pause: float) -> None:
        waits.append(pause)
        if len(waits) == 3:
            writers[older].commit(old)

    writers[1 - older]._wait = wait  # type: ignore[attr-defined]
    writers[1 - older].commit(new)
    assert len(waits) == 3 and table.left_staged() == []
    assert [row[2] for row in table.rows()] == ["1", "2", "3"]
    table.rewind(2)()
    assert [row[2] for row in table.rows()] == ["1", "2"]


def test_a_subtask_that_never_commits_its_older_rows_delays_others_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows are not committed by others, because their checkpoint may be rejected (S7.8)."""
    table = make()
    writers = [table.writer(subtask, 2) for subtask in (0, 1)]
    table.commit(writers[0], 1, ("insert", 0, "a", "1"))
    old, new = (table.staged(w, n, ("insert", 10 * n, "a", f"{n}")) for w, n in zip(writers, (2, 3), strict=True))
    waits: list[float] = []
    writers[1]._wait = waits.append  # type: ignore[attr-defined]
    writers[1].commit(new)
    assert LEADER_TIMEOUT_S <= sum(waits) < LEADER_TIMEOUT_S + 1
    assert [row[2] for row in table.rows()] == ["1", "3"] and "to checkpoints from 2 to 2 may be refused" in caplog.text
    writers[0].commit(old)
    with pytest.raises(SinkConflictError, match="was committed in between"):
        table.rewind(2)
    table.rewind(1)()
    assert [row[2] for row in table.rows()] == ["1"]


def test_nobody_waits_for_rows_in_quarantine(make: Make, tmp_path: Path) -> None:
    table = make()
    writers = [table.writer(subtask, 2) for subtask in (0, 1)]
    rejected, later = (table.staged(w, n, ("insert", n, "a", f"{n}")) for w, n in zip(writers, (2, 3), strict=True))
    into = Quarantine(open_store(str(tmp_path / "root")), "job/quarantine", WithheldRange(1, (2,), "anna", "wrong"))
    table.sink().quarantine(table.context(0, 2), rejected, into)
    waits: list[float] = []
    writers[1]._wait = waits.append  # type: ignore[attr-defined]
    writers[1].commit(later)
    assert waits == [] and [row[2] for row in table.rows()] == ["3"]


# ------------------------------------------------------------ what others did


def test_a_compaction_since_is_undone_and_loses_nothing(make: Make) -> None:
    table = make()
    shown = filled(table)
    table.compact()
    table.rewind(1)()
    assert table.rows() == shown[1]


@pytest.mark.parametrize("when", ["before the last commit", "after it"])
def test_rows_that_another_program_has_written_since_are_refused_before_anything_changes(make: Make, when: str) -> None:
    table = make()
    filled(table, 1)
    writer = table.writer()
    table.commit(writer, 2, ("insert", 1, "a", "2"))
    if when == "after it":
        table.others((50, "theirs", "x"))
    else:
        table.others((50, "theirs", "x"))
        table.commit(writer, 3, ("insert", 1, "a", "3"))
    shown, versions = table.rows(), table.versions()
    with pytest.raises(SinkConflictError, match="cannot rewind to checkpoint 1.*another program, has changed rows"):
        table.rewind(1)
    assert (table.rows(), table.versions()) == (shown, versions)
    table.rewind(3)()
    assert table.versions() == versions, "nothing was committed after checkpoint 3"


def test_rows_that_another_program_has_written_before_stay(make: Make) -> None:
    table = make()
    filled(table, 1)
    table.others((50, "theirs", "x"))
    shown = table.rows()
    writer = table.writer()
    table.commit(writer, 2, ("delete", 1, None, None), ("insert", 50, "a", "2"))
    table.rewind(1)()
    assert table.rows() == shown


def test_a_program_that_writes_during_the_rewind_makes_it_fail(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make()
    filled(table)
    if isinstance(table, UpsertedDelta):
        owner: Any = DeltaLog
        name = "change"
    else:
        owner, name = table_rewind, "remove_files"
    do = getattr(owner, name)

    def overtaken(*given: Any) -> Any:
        table.others((50, "theirs", "x"))
        return do(*given)

    monkeypatch.setattr(owner, name, overtaken)
    take_back = table.rewind(1)
    with pytest.raises(SinkConflictError, match="another program, has changed rows"):
        take_back()
    assert (50, "theirs", "x") in table.rows()


def test_deleted_files_of_the_earlier_version_are_refused_by_name(tmp_path: Path) -> None:
    table = UpsertedDelta(tmp_path)
    filled(table)
    table.written.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(SinkConflictError, match=r"VACUUM has deleted \d files of the version"):
        table.rewind(1)


def test_log_entries_that_are_cleaned_up_are_refused_by_name(tmp_path: Path) -> None:
    table = UpsertedDelta(tmp_path)
    filled(table, 4)
    table.written.create_checkpoint()
    for version in range(table.versions()):
        (Path(table.path) / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(SinkConflictError, match="log entries of 2 transactions are cleaned up"):
        table.rewind(1)
    with pytest.raises(SinkConflictError, match="version 3 can no longer be read"):
        table.rewind(3)


def test_expired_snapshots_are_refused_by_name(tmp_path: Path) -> None:
    table = UpsertedIceberg(tmp_path)
    filled(table)
    expire_all_but_the_newest(table.catalog.load_table(table.name))
    with pytest.raises(SinkConflictError, match="expired"):
        table.rewind(1)


def test_a_transaction_whose_marker_is_missing_is_found_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its subtask died after the entry."""
    table = UpsertedDelta(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaWriter, "_mark", lambda *_: None)
        shown = filled(table, 2)
    table.rewind(1)()
    assert table.rows() == shown[1]


# ------------------------------------------------------------ the mode is changed


def test_appends_and_upserts_are_rewound_together_in_upsert_mode(tmp_path: Path) -> None:
    table = UpsertedDelta(tmp_path, ROWS)
    appender = table.writer(mode="append", key=())
    for n in (1, 2):
        table.commit(appender, n, (n, "a", "appended"))
    shown = table.rows()
    table.identity.run = 2
    table.commit(table.writer(), 3, (1, "a", "upserted"))
    table.rewind(2)()
    assert table.rows() == shown
    table.rewind(1)()
    assert table.rows() == [(1, "a", "appended")]


def test_upserts_are_not_rewound_in_append_mode(tmp_path: Path) -> None:
    """Only the files of the upsert would leave the table, and the replaced rows would be lost."""
    table = UpsertedDelta(tmp_path, ROWS)
    for n in (1, 2):
        table.commit(table.writer(), n, (1, "a", f"{n}"))
    with pytest.raises(SinkConflictError, match="has replaced rows.*Set mode='upsert'"):
        table.sink(mode="append", key=()).rewind_to(table.context(), 1)
    table.sink(mode="append", key=()).rewind_to(table.context(), 2)()
    assert table.rows() == [(1, "a", "2")]


# ------------------------------------------------------------ crashes


class Crash(Exception):
    """The process dies here."""


def test_a_rewind_that_crashes_at_any_step_is_completed_by_the_next_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.3: before and after each effect."""
    effects: list[tuple[Any, str]] = [(MarkerPacks, "rewind"), (FileWriter, "recover"), (FileRewind, "remove_markers")]
    effects += [(DeltaLog, "change"), (table_rewind, "remove_files"), (FileWriter, "_remove")]
    crashes = 0
    for at in range(1, 30):
        table = make(f"{at}")
        shown = filled(table)
        steps = 0

        def step(at: int = at) -> None:
            nonlocal steps
            steps += 1
            if steps == at:
                raise Crash

        with monkeypatch.context() as patched:
            for owner, name in effects:

                def around(whole: Any, *given: Any, step: Callable[[], None] = step) -> Any:
                    step()
                    made = whole(*given)
                    step()
                    return made

                whole = getattr(owner, name)
                if owner is table_rewind:
                    patched.setattr(owner, name, partial(around, whole))
                else:
                    patched.setattr(owner, name, lambda *given, whole=whole, around=around: around(whole, *given))
            try:
                table.rewind(1)()
            except Crash:
                crashes += 1
            else:
                break
        table.rewind(1)()
        assert table.rows() == shown[1], f"crash at step {at}"
        writer = table.writer()
        table.commit(writer, 4, ("insert", 1, "b", "4"))
        assert (1, "b", "4") in table.rows()
    assert crashes >= 5, "the rewind has fewer effects than expected"


def test_a_restored_delta_table_is_valid_for_readers_of_its_history(tmp_path: Path) -> None:
    table = UpsertedDelta(tmp_path)
    shown = filled(table)
    table.rewind(1)()
    for version in range(1, table.versions()):
        DeltaTable(table.path, version=version).to_pyarrow_table()
    assert table.rows() == shown[1]
    actions = actions_of(Path(table.path) / "_delta_log" / f"{table.versions():020}.json")
    stats = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]
    assert [(one["numRecords"], one["minValues"]["k"]) for one in stats] == [(3, 1)], "as the sink wrote it"
