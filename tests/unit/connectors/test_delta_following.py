"""The Delta source, a table that grows: appends, compactions, rewrites, cleanup, and change rows (S4.2, S4.3)."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.delta_tables import SCHEMA, Growing, actions_of, found_by, golden, read, rows
from deltalake import DeltaTable as Written
from deltalake import write_deltalake

from tidegate.change_rows import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, change_kind_column, old_columns_of
from tidegate.connectors.delta.log import log_files
from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.connectors.delta.source import table_enumerator
from tidegate.connectors.delta.source.delta_source import DeltaTable
from tidegate.connectors.delta.source.table_enumerator import HOUR_MS, TableEnumerator
from tidegate.connectors.delta.source.table_selection import TableSelection
from tidegate.connectors.interface import Source, Split
from tidegate.errors import OutageError, PipelineError
from tidegate.subtask.failure_codes import failure_code
from tidegate.testing.source_conformance import DiscoveringSourceConformance

KINDS = {"insert": INSERT, "update_preimage": UPDATE_BEFORE, "update_postimage": UPDATE_AFTER, "delete": DELETE}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits say until when their files stay. The hour must not end between two searches that are compared."""
    now_ms = int(time.time() * 1000)
    monkeypatch.setattr(table_enumerator, "steady_clock", lambda: lambda: now_ms)


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path / "table")


def follow(growing: Growing, **options: Any) -> DeltaTable:
    return DeltaTable(growing.folder, follow="1 s", **options)


def numbers(source: Source, splits: list[Split]) -> list[int]:
    return [row["n"] for row in read(source, splits)]


class TestFollowedTable(DiscoveringSourceConformance):
    enough_rows = 100

    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table_enumerator, "SPLITS_PER_SEARCH", 2)
        self.growing = Growing(tmp_path / "table")
        for _ in range(5):
            self.growing.append(100)

    def make_source(self) -> Source:
        return follow(self.growing)

    def add_input(self) -> None:
        self.growing.append(100)


class TestFollowedFromAnEmptyTable(DiscoveringSourceConformance):
    """Each version adds several files; none of them is in the first version. Entries are too large to be kept."""

    enough_rows = 100

    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table_enumerator, "SPLITS_PER_SEARCH", 3)
        monkeypatch.setattr(log_files, "ENTRY_IN_MEMORY_BYTES", 1)
        self.folder = str(tmp_path / "table")
        write_deltalake(self.folder, self.rows().slice(0, 0), partition_by="p")
        for _ in range(2):
            self.add_input()

    def rows(self) -> pa.Table:
        return rows(0, 200).append_column("p", pa.array(["a", "b"] * 100))

    def make_source(self) -> Source:
        return DeltaTable(self.folder, version=0, follow="1 s")

    def add_input(self) -> None:
        write_deltalake(self.folder, self.rows(), mode="append")


class TestFollowedChanges(DiscoveringSourceConformance):
    enough_rows = 100

    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table_enumerator, "FILES_PER_CHANGE_SPLIT", 2)
        self.growing = Growing(tmp_path / "table", **{"delta.enableChangeDataFeed": "true"})
        for _ in range(5):
            self.growing.append(100)
        self.growing.written.update(updates={"name": "'new'"}, predicate="n % 3 = 0")
        self.growing.written.delete("n < 50")

    def make_source(self) -> Source:
        return follow(self.growing, version=3, changes=True, commit_columns=True)

    def add_input(self) -> None:
        self.growing.append(100)


# ------------------------------------------------------------ appended rows


def test_appends_are_read_in_order_of_their_versions(growing: Growing) -> None:
    splits, state = found_by(follow(growing))
    assert splits == []
    versions = [growing.append(2) for _ in range(4)]
    splits, state = found_by(follow(growing, commit_columns=True), state)
    assert [file["version"] for split in splits for file in split.data["files"]] == versions
    found = read(follow(growing, commit_columns=True), splits)
    assert [(row["n"], row["commit_version"]) for row in found] == [(n, 1 + n // 2) for n in range(8)]
    assert found_by(follow(growing), state)[0] == []


def test_new_rows_only_are_read_if_the_source_starts_so(growing: Growing) -> None:
    growing.append(2)
    growing.append(2)
    for source, expected in ((follow(growing, start="new"), []), (follow(growing, start="new", version=1), [2, 3])):
        splits, state = found_by(source)
        assert numbers(source, splits) == expected
    growing.append(2)
    assert numbers(source, found_by(source, state)[0]) == [4, 5]


def test_a_compaction_is_skipped_because_its_rows_were_read(growing: Growing) -> None:
    growing.append(2)
    growing.append(2)
    _, state = found_by(follow(growing))
    growing.written.optimize.compact()
    growing.append(1)
    assert numbers(follow(growing), found_by(follow(growing), state)[0]) == [4]


def test_rows_that_are_removed_fail_the_job_or_are_ignored(growing: Growing, caplog: pytest.LogCaptureFixture) -> None:
    growing.append(3)
    _, state = found_by(follow(growing))
    growing.append(1)
    growing.written.delete("n = 1")
    growing.append(1)
    enumerator = follow(growing).create_enumerator(state)
    first = enumerator.discover()
    assert first.more and numbers(follow(growing), list(first.splits)) == [3], "the splits before the error"
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"version 3 of the Delta table \(DELETE\) removes or rewrites rows"):
            enumerator.discover()
    enumerator.close()
    ignoring = follow(growing, on_rewrite="ignore")
    with caplog.at_level(logging.WARNING, "tidegate.connectors"):
        splits, state = found_by(ignoring, state)
    assert numbers(ignoring, splits) == [3, 4]
    assert "version 3 of the Delta table (DELETE)" in caplog.text and "1 removed files" in caplog.text
    growing.written.restore(2)
    growing.append(1)
    assert numbers(ignoring, found_by(ignoring, state)[0]) == [5]


def test_files_that_a_restore_brings_back_are_new_splits(growing: Growing) -> None:
    """Their first splits may still be read."""
    growing.append(3)
    ignoring = follow(growing, on_rewrite="ignore")
    first, state = found_by(ignoring)
    growing.written.delete()
    growing.written.restore(1)
    again, _ = found_by(ignoring, state)
    assert numbers(ignoring, again) == [0, 1, 2]
    assert not {split.split_id for split in first} & {split.split_id for split in again}


def test_other_partitions_are_neither_read_nor_watched(tmp_path: Path) -> None:
    folder = str(tmp_path / "table")
    both = rows(0, 4).append_column("p", pa.array(["a", "b"] * 2))
    write_deltalake(folder, both, partition_by="p")
    source = DeltaTable(folder, follow="1 s", partitions={"p": "a"})
    splits, state = found_by(source)
    assert numbers(source, splits) == [0, 2]
    write_deltalake(folder, both, mode="append")
    Written(folder).delete("p = 'b'")
    splits, state = found_by(source, state)
    assert numbers(source, splits) == [0, 2]
    Written(folder).delete("p = 'a'")
    with pytest.raises(PipelineError, match="removes or rewrites"):
        found_by(source, state)


def test_added_columns_are_refused_or_ignored_and_other_changes_are_refused(growing: Growing) -> None:
    """S5.5."""
    growing.append(1)
    found = follow(growing).found_schema()
    assert found is not None
    _, state = found_by(follow(growing))
    folder = str(growing.folder)
    write_deltalake(folder, pa.table({"n": [7], "more": ["x"]}), mode="append", schema_mode="merge")
    with pytest.raises(PipelineError, match="columns were added: more.*on_new_columns"):
        found_by(follow(growing).with_found_schema(found), state)
    for options in ({"on_new_columns": "ignore"}, {"columns": ["n", "name"]}):
        source = follow(growing, **options).with_found_schema(found)
        splits, later = found_by(source, state)
        assert read(source, splits) == [{"n": 7, "name": None}]
    metadata = growing.metadata()
    fields = json.loads(metadata["schemaString"])
    fields["fields"][0]["type"] = "double"
    growing.add_entry({"metaData": {**metadata, "schemaString": json.dumps(fields)}})
    with pytest.raises(PipelineError, match="version 3.*'n' has the type double"):
        found_by(source, later)
    fields["fields"] = fields["fields"][1:]
    growing.add_entry({"metaData": {**metadata, "schemaString": json.dumps(fields)}})
    (growing.log / f"{3:020}.json").write_text("")
    with pytest.raises(PipelineError, match="'n' is removed or renamed"):
        found_by(source, later)


@pytest.mark.parametrize(
    "action",
    [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["catalogManaged"]}},
        {"metaData": {"configuration": {"delta.coordinatedCommits.commitCoordinator": "catalogManaged"}}},
    ],
)
def test_a_feature_that_the_table_gets_later_is_refused_by_name(growing: Growing, action: dict[str, Any]) -> None:
    _, state = found_by(follow(growing))
    if "metaData" in action:
        action = {"metaData": {**growing.metadata(), **action["metaData"]}}
    growing.add_entry(action)
    with pytest.raises(PipelineError, match="version 1.*catalogManaged|version 1.*coordinatedCommits"):
        found_by(follow(growing), state)


def test_names_in_the_files_may_change_with_a_version(growing: Growing) -> None:
    """Column mapping is switched on later: old files keep the names of the table."""
    growing.append(1)
    source = follow(growing)
    found = source.found_schema()
    splits, state = found_by(source)
    assert found is not None and "names" not in splits[0].data
    metadata = growing.metadata()
    fields = json.loads(metadata["schemaString"])
    for field in fields["fields"]:
        field["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": f"x-{field['name']}"}
    properties = {"delta.columnMapping.mode": "name"}
    table = rows(5, 1).rename_columns(["x-n", "x-name"])
    import pyarrow.parquet as pq

    pq.write_table(table, growing.folder / "mapped.parquet")
    growing.add_entry(
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {"metaData": {**metadata, "schemaString": json.dumps(fields), "configuration": properties}},
        {"add": {"path": "mapped.parquet", "partitionValues": {}, "size": 1, "dataChange": True}},
    )
    later, state = found_by(source.with_found_schema(found), state)
    assert read(source, [*splits, *later]) == [{"n": 0, "name": "row 0"}, {"n": 5, "name": "row 5"}]
    assert found_by(source.with_found_schema(found), state)[0] == []


# ------------------------------------------------------------ the log


def test_entries_that_were_cleaned_up_unread_are_an_error(growing: Growing) -> None:
    growing.append(1)
    _, state = found_by(follow(growing))
    for _ in range(3):
        growing.append(1)
    growing.written.create_checkpoint()
    for version in (0, 1):
        (growing.log / f"{version:020}.json").unlink()
    splits, _ = found_by(follow(growing), state)
    assert numbers(follow(growing), splits) == [1, 2, 3], "only the last one that was read is cleaned up"
    assert follow(growing).unavailable_state(state) is None
    (growing.log / f"{2:020}.json").unlink()
    with pytest.raises(PipelineError, match=r"from version 1 .*the oldest is 3.*logRetention") as caught:
        found_by(follow(growing), state)
    assert failure_code(caught.value) == "pipeline", "a restart would not bring them back (S9.1)"
    reason = follow(growing).unavailable_state(state)
    assert reason is not None and "the oldest is 3" in reason, "the preflight reports it, too (S9.3)"


def test_a_quiet_table_whose_entries_are_all_cleaned_up_can_be_followed(growing: Growing) -> None:
    growing.append(1)
    _, state = found_by(follow(growing))
    growing.written.create_checkpoint()
    for entry in growing.log.glob("*.json"):
        entry.unlink()
    assert follow(growing).unavailable_state(state) is None
    splits, state = found_by(follow(growing), state)
    assert splits == []
    (file,) = growing.folder.glob("*.parquet")
    shutil.copy(file, growing.folder / "copy.parquet")
    add = {"path": "copy.parquet", "partitionValues": {}, "size": 1, "dataChange": True}
    (growing.log / f"{2:020}.json").write_text(json.dumps({"add": add}))
    assert numbers(follow(growing), found_by(follow(growing), state)[0]) == [0]


def test_a_version_of_which_some_files_were_returned_must_not_be_cleaned_up(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_enumerator, "SPLITS_PER_SEARCH", 1)
    for _ in range(2):
        growing.append(1)
    first = follow(growing).create_enumerator(None).discover()
    assert first.more
    growing.append(1)
    growing.written.create_checkpoint()
    for version in range(3):
        (growing.log / f"{version:020}.json").unlink()
    state = json.loads(json.dumps(first.state))
    with pytest.raises(PipelineError, match="version 2 .*cleaned up"):
        found_by(follow(growing), state)
    assert "version 2" in str(follow(growing).unavailable_state(state))


def test_a_table_that_was_dropped_and_created_again_is_an_error(growing: Growing, tmp_path: Path) -> None:
    for _ in range(3):
        growing.append(1)
    source = follow(growing)
    table = source.found_schema()
    assert table is not None
    _, state = found_by(source)
    running = source.create_enumerator(state)
    running.discover()
    shutil.rmtree(growing.folder)
    again = Growing(growing.folder)
    with pytest.raises(PipelineError, match="not the one that was read up to version 3"):
        running.discover()
    for _ in range(5):
        again.append(1)
    for enumerator in (running, source.create_enumerator(state)):
        with pytest.raises(PipelineError, match="not the one that was read up to version 3"):
            enumerator.discover()
    shutil.rmtree(growing.folder)
    with pytest.raises(PipelineError, match="there is no Delta table"):
        source.create_enumerator(state).discover()


def test_the_source_reports_until_when_the_table_can_be_followed(growing: Growing) -> None:
    """S4.2: the shorter of both retentions, from now on, or from the last entry that was read."""
    day_ms = 24 * HOUR_MS
    properties = {"delta.logRetentionDuration": "interval 1 week", "delta.deletedFileRetentionDuration": "2 days"}
    growing.add_entry({"metaData": {**growing.metadata(), "configuration": properties}})
    growing.append(1)
    table = follow(growing).found_schema()
    assert table is not None
    now_ms = int(time.time() * 1000)
    enumerator = TableEnumerator(TableSelection(str(growing.folder)), table.schema, None, now_ms=lambda: now_ms)
    assert enumerator.discover().readable_until_ms == now_ms + 2 * day_ms
    growing.append(1)
    growing.written.delete()
    growing.age_log([3], days=1)
    found = enumerator.discover()
    assert found.more, "the deletion is reported by the next search"
    assert found.readable_until_ms is not None and abs(found.readable_until_ms - now_ms - day_ms) < 60_000
    (split,) = found.splits
    assert abs(split.data["until_ms"] - now_ms - day_ms) < 60_000
    unknown = Growing(growing.folder.parent / "other")
    unknown.add_entry({"metaData": {**unknown.metadata(), "configuration": {"delta.logRetentionDuration": "a while"}}})
    assert follow(unknown).create_enumerator(None).discover().readable_until_ms is None


class Outage:
    """One request of the enumerator fails: a listing, the search for an entry, or the middle of an entry."""

    def __init__(self, patched: pytest.MonkeyPatch, failing: int) -> None:
        self._calls, self._failing = count(), failing
        self.has_come = False
        for name in ("listed", "entry"):
            patched.setattr(LogFiles, name, self._wrapped(getattr(LogFiles, name)))
        actions = log_files.LogEntry.actions

        def failing_actions(entry: Any, kinds: Any) -> Any:
            for number, action in enumerate(actions(entry, kinds)):
                if number == 1:
                    self._request()
                yield action

        patched.setattr(log_files.LogEntry, "actions", failing_actions)

    def _wrapped(self, method: Any) -> Any:
        def called(*args: Any) -> Any:
            self._request()
            return method(*args)

        return called

    def _request(self) -> None:
        if next(self._calls) == self._failing:
            self.has_come = True
            raise TimeoutError("no answer")


def test_an_outage_loses_no_file(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.3: whichever request fails, the searches together find each file once."""
    monkeypatch.setattr(table_enumerator, "SPLITS_PER_SEARCH", 2)
    for _ in range(5):
        growing.append(1)
    files = len(growing.written.file_uris())
    outages = 0
    for failing in range(40):
        enumerator = follow(growing, version=2).create_enumerator(None)
        found: list[str] = []
        with monkeypatch.context() as patched:
            outage = Outage(patched, failing)
            for _ in range(8):
                try:
                    found += [split.split_id for split in enumerator.discover().splits]
                except OutageError:
                    continue
        outages += outage.has_come
        assert len(found) == len(set(found)) == files, f"request {failing} failed"
    assert 15 < outages < 40, "the requests must cover the whole search"


# ------------------------------------------------------------ change rows


def changes_by(folder: Path, version: int = 0) -> list[dict[str, Any]]:
    source = DeltaTable(folder, version=version, follow="1 s", changes=True, commit_columns=True)
    splits, _ = found_by(source)
    return read(source, splits)


def rows_of_delta_rs(folder: Path) -> Counter[str]:
    found = pa.table(Written(str(folder)).load_cdf(starting_version=0).read_all()).to_pylist()
    return Counter(repr(sorted(_plain(row).items())) for row in found)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: value for name, value in row.items() if not name.startswith("_")}
    return {**made, "change_kind": KINDS[row["_change_type"]], "commit_version": row["_commit_version"]}


@pytest.mark.parametrize("name", ["cdf-table-with-cdc-and-dvs", "cdc_ict_table"])
def test_change_rows_of_other_writers_are_those_that_delta_rs_finds(tmp_path: Path, name: str) -> None:
    """Change files, added and removed files, and rows that deletion vectors remove and bring back."""
    folder = golden(name, tmp_path)
    found = [{n: v for n, v in row.items() if n != "commit_time"} for row in changes_by(folder)]
    assert Counter(repr(sorted(row.items())) for row in found) == rows_of_delta_rs(folder)
    assert {row["change_kind"] for row in found} >= {INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER}
    versions = [row["commit_version"] for row in found]
    assert versions == sorted(versions)


def test_change_rows_replayed_in_order_give_the_table(tmp_path: Path) -> None:
    """The first version as inserts, then every later change; whichever version is the first."""
    growing = Growing(tmp_path, **{"delta.enableChangeDataFeed": "true"})
    for step in range(6):
        growing.append(20)
        growing.written.update(updates={"name": f"'step {step}'"}, predicate=f"n % 5 = {step % 5}")
        growing.written.delete(f"n % 7 = {step}")
    growing.written.optimize.compact()
    write_deltalake(str(tmp_path), rows(10, 5), mode="overwrite", predicate="n >= 10 and n < 15")
    expected = {row["n"]: row["name"] for row in growing.written.to_pyarrow_table().to_pylist()}
    for first in range(growing.written.version() + 1):
        now: dict[int, str] = {}
        for row in changes_by(tmp_path, first):
            if row["change_kind"] in (DELETE, UPDATE_BEFORE):
                assert now.pop(row["n"]) == row["name"], f"from version {first}"
            else:
                assert row["n"] not in now, f"from version {first}"
                now[row["n"]] = row["name"]
        assert now == expected, f"from version {first}"


def test_the_kind_of_change_is_declared_in_the_schema(tmp_path: Path) -> None:
    growing = Growing(tmp_path, **{"delta.enableChangeDataFeed": "true"})
    source = follow(growing, changes=True)
    assert old_columns_of(source.schema()) is None, "the table's changes hold whole rows"
    assert change_kind_column(source.schema()) == "change_kind"
    assert source.schema().names == [*SCHEMA.names, "change_kind"]
    found = source.found_schema()
    assert found is not None and found.schema.names == SCHEMA.names
    assert source.with_found_schema(found).schema().equals(source.schema(), check_metadata=True)
    growing.append(1)
    only = source.reading_only(["change_kind"])
    assert read(only, found_by(source)[0]) == [{"change_kind": "insert"}]


def test_changes_have_one_split_at_a_time(tmp_path: Path) -> None:
    """S4.3: so one reader emits them in order."""
    growing = Growing(tmp_path, **{"delta.enableChangeDataFeed": "true"})
    for _ in range(3):
        growing.append(1)
    source = follow(growing, changes=True, version=0)
    discovery = source.continuous_discovery()
    assert discovery is not None and discovery.after_finished
    enumerator = source.create_enumerator(None)
    sizes = [(len(search.splits), search.more) for search in (enumerator.discover() for _ in range(4))]
    assert sizes == [(1, True), (1, True), (1, True), (0, False)]


def test_changes_that_are_no_longer_recorded_are_an_error(tmp_path: Path) -> None:
    growing = Growing(tmp_path, **{"delta.enableChangeDataFeed": "true"})
    source = follow(growing, changes=True)
    source.schema()
    _, state = found_by(source)
    growing.add_entry({"metaData": {**growing.metadata(), "configuration": {}}})
    with pytest.raises(PipelineError, match="version 1.*enableChangeDataFeed"):
        found_by(source, state)


def test_a_removed_file_of_an_unknown_partition_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    table = rows(0, 2).append_column("p", pa.array(["a", "b"]))
    write_deltalake(str(folder), table, partition_by="p", configuration={"delta.enableChangeDataFeed": "true"})
    source = DeltaTable(folder, follow="1 s", changes=True)
    _, state = found_by(source)
    entry = folder / "_delta_log" / f"{0:020}.json"
    path = next(action["add"]["path"] for action in actions_of(entry) if "add" in action)
    remove = {"path": path, "dataChange": True, "deletionTimestamp": 1}
    (folder / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"remove": remove}))
    with pytest.raises(PipelineError, match="version 1 .*does not say to which partition"):
        found_by(source, state)
    os.remove(folder / "_delta_log" / f"{1:020}.json")
