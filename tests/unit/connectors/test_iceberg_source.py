"""The Iceberg source: conformance, snapshots, deletes, filters, and tables that grow (S4.2, S4.3)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import TABLE, compact, delete_positions, opened, sqlite_catalog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tidegate.connectors.iceberg import table_enumerator
from tidegate.connectors.iceberg.iceberg_source import IcebergTable
from tidegate.connectors.interface import Source, SourceContext, Split
from tidegate.errors import OptionError, OutageError, PipelineError
from tidegate.testing.source_conformance import DiscoveringSourceConformance, SourceConformance, splits_of

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("name", pa.string())])


def rows(first: int, number: int) -> pa.Table:
    numbers = range(first, first + number)
    return pa.table([pa.array(numbers, pa.int64()), pa.array([f"row {n}" for n in numbers])], schema=SCHEMA)


class Growing:
    """A table of several data files, and the properties of its catalog."""

    def __init__(self, folder: Path) -> None:
        self.properties = sqlite_catalog(folder)
        self.catalog: Catalog = opened(self.properties)
        self.catalog.create_table(TABLE, SCHEMA)
        self._next = 0

    @property
    def table(self) -> Table:
        return self.catalog.load_table(TABLE)

    def append(self, number: int = 100) -> int:
        """Append one data file. Return the snapshot's id."""
        self.table.append(rows(self._next, number))
        self._next += number
        head = self.table.current_snapshot()
        assert head is not None
        return head.snapshot_id

    def compact(self) -> None:
        compact(self.table)

    def expire(self, *snapshot_ids: int) -> None:
        self.table.maintenance.expire_snapshots().by_ids(list(snapshot_ids)).commit()

    def source(self, **options: Any) -> IcebergTable:
        return IcebergTable(TABLE, catalog=self.properties, **options)


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    return Growing(tmp_path)


def read(source: Source, splits: list[Split] | None = None) -> list[dict[str, Any]]:
    """All rows of splits, or of a source as it is now."""
    reader = source.create_reader(SourceContext("source", 0, 1))
    reader.add_splits(splits_of(source) if splits is None else splits)
    reader.no_more_splits()
    found: list[dict[str, Any]] = []
    for _ in range(10_000):
        polled = reader.poll(0)
        if polled.batch is None:
            break
        found += polled.batch.to_pylist()
    reader.close()
    return found


def numbers(source: Source, splits: list[Split] | None = None) -> list[int]:
    return sorted(row["n"] for row in read(source, splits))


class TestBoundedTable(SourceConformance):
    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path) -> None:
        self.growing = Growing(tmp_path)
        for number in (150, 1, 250):
            self.growing.append(number)

    def make_source(self) -> Source:
        return self.growing.source()


class TestFilteredTable(TestBoundedTable):
    """Positions count the rows for which the filter holds."""

    def make_source(self) -> Source:
        return self.growing.source(filter="n > 20 and n < 390")


class TestFollowedTable(DiscoveringSourceConformance):
    enough_rows = 100

    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table_enumerator, "SPLITS_PER_SEARCH", 2)
        self.growing = Growing(tmp_path)
        for _ in range(5):
            self.growing.append(100)

    def make_source(self) -> Source:
        return self.growing.source(follow="1 s")

    def add_input(self) -> None:
        self.growing.append(100)


class TestFollowedFromAnEmptyTable(TestFollowedTable):
    """Each snapshot adds some files; none of them is in a first snapshot."""

    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table_enumerator, "SNAPSHOTS_PER_SEARCH", 1)
        self.growing = Growing(tmp_path)
        self.start = self.growing.append(3)
        for _ in range(3):
            self.growing.append(100)

    def make_source(self) -> Source:
        return self.growing.source(follow="1 s", snapshot_id=self.start)


def test_a_table_without_rows_has_no_splits_and_a_schema(growing: Growing) -> None:
    assert growing.source().discover(2) == []
    assert growing.source().schema().equals(SCHEMA)


def test_a_snapshot_is_chosen_by_its_id_by_time_or_by_a_tag(growing: Growing) -> None:
    first = growing.append(2)
    growing.append(3)
    growing.table.manage_snapshots().create_tag(first, "monthly").commit()
    moment = datetime.fromtimestamp(growing.table.history()[0].timestamp_ms / 1000, UTC)
    for options in ({"snapshot_id": first}, {"as_of": moment}, {"as_of": moment.isoformat()}, {"ref": "monthly"}):
        assert numbers(growing.source(**options)) == [0, 1], options
    assert numbers(growing.source()) == [0, 1, 2, 3, 4]


def test_the_snapshot_of_the_start_is_read_whatever_happens_meanwhile(growing: Growing) -> None:
    """S4.2: the splits name the files of one snapshot."""
    growing.append(2)
    splits = splits_of(growing.source())
    growing.append(3)
    growing.table.delete("n = 0")
    assert numbers(growing.source(), splits) == [0, 1]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"snapshot_id": 7}, "no snapshot 7"),
        ({"as_of": "2001-01-01T00:00:00Z"}, "as of 2001"),
        ({"ref": "audit"}, "branch or tag 'audit'"),
        ({"columns": ["m"]}, "no column 'm'"),
        ({"filter": "m > 1"}, "filter 'm > 1' does not fit"),
    ],
)
def test_what_the_table_lacks_is_an_error_when_the_pipeline_is_built(
    growing: Growing, options: dict[str, Any], what: str
) -> None:
    growing.append(1)
    with pytest.raises(PipelineError, match=what):
        growing.source(**options).schema()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"follow": "0 s"}, "longer than 0"),
        ({"as_of": "2026-11-21T12:00:00"}, "time zone"),
        ({"as_of": "yesterday"}, "time zone"),
        ({"as_of": "2026-11-21T12:00:00Z", "snapshot_id": 1}, "chosen twice"),
        ({"start": "latest"}, "start='latest'"),
        ({"on_overwrite": "skip"}, "on_overwrite='skip'"),
    ],
)
def test_a_wrong_option_is_an_error_at_once(options: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        IcebergTable(TABLE, catalog={"type": "sql"}, **options)


def test_a_filter_that_is_no_condition_is_an_error(growing: Growing) -> None:
    with pytest.raises(OptionError, match="cannot be parsed"):
        growing.source(filter="n >").schema()


def test_a_missing_table_is_an_error(growing: Growing) -> None:
    with pytest.raises(PipelineError, match="does not exist"):
        IcebergTable("shop.other", catalog=growing.properties).schema()


def test_only_the_columns_that_the_job_uses_are_read(growing: Growing) -> None:
    growing.append(2)
    source = growing.source().reading_only(["name"])
    assert read(source, splits_of(growing.source())) == [{"name": "row 0"}, {"name": "row 1"}]


def test_a_filter_may_use_columns_that_are_not_read(growing: Growing) -> None:
    growing.append(5)
    source = growing.source(columns=["name"], filter="n >= 3")
    assert source.schema().names == ["name"]
    assert read(source) == [{"name": "row 3"}, {"name": "row 4"}]


def test_rows_removed_by_position_are_not_read(growing: Growing, tmp_path: Path) -> None:
    """The delete file is one that other engines write: merge-on-read."""
    growing.append(6)
    (task,) = growing.table.scan().plan_files()
    path = delete_positions(growing.table, "deletes", task.file.file_path, [1, 4])
    (split,) = splits_of(growing.source())
    assert split.data["deletes"] == [[path, "PARQUET"]]
    assert numbers(growing.source()) == [0, 2, 3, 5]
    assert numbers(growing.source(filter="n > 2")) == [3, 5]
    Path(path.removeprefix("file://")).unlink()
    assert "deletes.parquet is missing" in growing.source().unavailable_splits([split])[0][1]


LINES = pa.list_(pa.struct([("x", pa.int32())]))
PRICES = pa.map_(pa.string(), pa.struct([("x", pa.int32())]))


def test_null_and_empty_lists_and_maps_of_structures_differ(tmp_path: Path) -> None:
    """pyiceberg's reader and writer turn null into an empty value, so the file is one of another writer."""
    properties = sqlite_catalog(tmp_path)
    nested = {
        "lines": pa.array([None, [], [{"x": 1}, None]], LINES),
        "deep": pa.array([[None, [], [{"x": 1}]], [], None], pa.list_(LINES)),
        "prices": pa.array([[("a", {"x": 1})], None, []], PRICES),
        "lists": pa.array([None, [("a", None), ("b", [])], []], pa.map_(pa.string(), LINES)),
        "inner": pa.array([{"l": None}, None, {"l": []}], pa.struct([("l", LINES)])),
    }
    rows = pa.table(nested)
    made = opened(properties).create_table(TABLE, rows.schema)
    pq.write_table(rows, tmp_path / "theirs.parquet")
    made.add_files([f"file://{tmp_path}/theirs.parquet"])
    assert read(IcebergTable(TABLE, catalog=properties)) == rows.to_pylist()


def test_nested_columns_are_found_by_field_id(tmp_path: Path) -> None:
    """Fields in lists are renamed, moved, widened and added after the files were written."""
    from pyiceberg.types import LongType, StringType

    properties = sqlite_catalog(tmp_path)
    line = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    rows = pa.table({"n": [1, 2, 3], "lines": pa.array([[{"x": 1, "y": 2}], None, []], pa.list_(line))})
    made = opened(properties).create_table(TABLE, rows.schema)
    pq.write_table(rows, tmp_path / "theirs.parquet")
    made.add_files([f"file://{tmp_path}/theirs.parquet"])
    with made.update_schema() as update:
        update.rename_column("lines.element.x", "first")
        update.update_column("lines.element.y", field_type=LongType())
        update.move_first("lines.element.y")
        update.add_column(("lines", "element", "more"), StringType())
    wanted = [[{"y": 2, "first": 1, "more": None}], None, []]
    assert [row["lines"] for row in read(IcebergTable(TABLE, catalog=properties))] == wanted


def test_rows_removed_by_equality_are_refused(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.table import ManifestGroupPlanner

    growing.append(2)

    def planned(*_: Any, **__: Any) -> Any:
        raise ValueError("PyIceberg does not yet support equality deletes")

    monkeypatch.setattr(ManifestGroupPlanner, "plan_files", planned)
    with pytest.raises(PipelineError, match="equality deletes"):
        growing.source().discover(2)


def test_a_column_that_the_table_gets_later_is_not_read(growing: Growing) -> None:
    """S5.5: the schema belongs to the job."""
    growing.append(2)
    found = growing.source().found_schema()
    assert found is not None
    with growing.table.update_schema() as update:
        from pyiceberg.types import StringType

        update.add_column("later", StringType())
    source = growing.source().with_found_schema(found)
    assert source.schema().names == ["n", "name"]
    assert read(source)[0] == {"n": 0, "name": "row 0"}
    assert growing.source().schema().names == ["n", "name", "later"]
    assert read(growing.source())[0] == {"n": 0, "name": "row 0", "later": None}


# ------------------------------------------------------------ following


def found_by(source: Source, state: Any = None) -> tuple[list[Split], Any]:
    enumerator = source.create_enumerator(state)
    search = enumerator.discover()
    splits = list(search.splits)
    while search.more:
        search = enumerator.discover()
        splits += search.splits
    enumerator.close()
    return splits, search.state


def test_appends_are_read_in_order_of_their_snapshots(growing: Growing) -> None:
    source = growing.source(follow="1 s")
    splits, state = found_by(source)
    assert splits == []
    ids = [growing.append(2) for _ in range(4)]
    splits, state = found_by(source, state)
    assert [split.data["snapshot_id"] for split in splits] == ids
    assert [row["n"] for row in read(source, splits)] == list(range(8))
    assert found_by(source, state)[0] == []


def test_new_rows_only_are_read_if_the_source_starts_so(growing: Growing) -> None:
    growing.append(2)
    source = growing.source(follow="1 s", start="new")
    splits, state = found_by(source)
    assert splits == []
    growing.append(2)
    assert numbers(source, found_by(source, state)[0]) == [2, 3]


def test_a_compaction_is_skipped_because_its_rows_were_read(growing: Growing) -> None:
    growing.append(2)
    growing.append(2)
    source = growing.source(follow="1 s")
    _, state = found_by(source)
    growing.compact()
    growing.append(1)
    splits, _ = found_by(source, state)
    assert numbers(source, splits) == [4]


def test_rows_that_are_removed_fail_the_job_or_are_ignored(growing: Growing, caplog: pytest.LogCaptureFixture) -> None:
    growing.append(3)
    source = growing.source(follow="1 s")
    _, state = found_by(source)
    growing.append(1)
    growing.table.delete("n = 1")
    growing.append(1)
    enumerator = source.create_enumerator(state)
    first = enumerator.discover()
    assert first.more and numbers(source, list(first.splits)) == [3], "the splits before the error are returned"
    with pytest.raises(PipelineError, match="removes or replaces rows"):
        enumerator.discover()
    enumerator.close()
    ignoring = growing.source(follow="1 s", on_overwrite="ignore")
    with caplog.at_level(logging.WARNING, "tidegate.connectors"):
        assert numbers(ignoring, found_by(ignoring, state)[0]) == [3, 4]
    assert "is ignored" in caplog.text


def test_snapshots_that_expired_unread_are_an_error(growing: Growing) -> None:
    source = growing.source(follow="1 s")
    ids = [growing.append(1)]
    _, state = found_by(source)
    ids += [growing.append(1) for _ in range(3)]
    growing.expire(ids[0])
    assert numbers(source, found_by(source, state)[0]) == [1, 2, 3], "only the last read one is expired"
    assert source.unavailable_state(state) is None
    growing.expire(ids[1])
    with pytest.raises(PipelineError, match="expired"):
        found_by(source, state)
    assert "is expired" in str(source.unavailable_state(state)), "the preflight reports it, too (S9.3)"


def test_the_preflight_reports_a_snapshot_that_expired_before_all_its_files_were_returned(growing: Growing) -> None:
    """S9.3: its files are not among the splits of the checkpoint."""
    source = growing.source(follow="1 s")
    ids = [growing.append(1) for _ in range(2)]
    _, state = found_by(source)
    half = {**state, "snapshot": ids[0], "files": 0}
    assert source.unavailable_state(half) is None and source.unavailable_state(state) is None
    growing.expire(ids[0])
    assert "not all read before it expired" in str(source.unavailable_state(half))
    assert source.unavailable_state(state) is None


def test_a_table_that_was_rolled_back_is_an_error(growing: Growing) -> None:
    source = growing.source(follow="1 s")
    first = growing.append(1)
    growing.append(1)
    _, state = found_by(source)
    growing.table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(PipelineError, match="set to another snapshot"):
        found_by(source, state)
    assert "set to another snapshot" in str(source.unavailable_state(state))


def test_an_outage_loses_no_file(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.3: whichever call fails, the searches together find each file once."""
    from tidegate.connectors.iceberg.table_reading import TableSelection

    for _ in range(3):
        growing.append(1)
    for failing in range(8):
        calls = count()
        source = growing.source(follow="1 s")
        enumerator = source.create_enumerator(None)
        with monkeypatch.context() as patched:
            for name in ("splits", "added_splits", "start"):
                original = getattr(TableSelection, name)

                def called(*args: Any, original: Any = original) -> Any:
                    if next(calls) == failing:  # noqa: B023
                        raise OutageError("the catalog is away")
                    return original(*args)

                patched.setattr(TableSelection, name, called)
            found: list[str] = []
            for step in range(6):
                if step == 2:
                    growing.append(1)
                try:
                    found += [split.split_id for split in enumerator.discover().splits]
                except OutageError:
                    continue
        enumerator.close()
        assert sorted(found) == sorted(split.split_id for split in splits_of(source)) or len(found) == len(set(found))
        assert len(found) == growing.table.scan().to_arrow().num_rows


def test_the_preflight_names_files_that_are_missing(growing: Growing) -> None:
    growing.append(1)
    (split,) = splits_of(growing.source())
    assert growing.source().unavailable_splits([split]) == []
    Path(split.data["path"].removeprefix("file://")).unlink()
    ((name, why),) = growing.source().unavailable_splits([split])
    assert name == split.split_id and "expired" in why
    with pytest.raises(PipelineError, match="missing"):
        read(growing.source(), [split])


def test_a_source_describes_itself_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hush-hush")
    catalog = {"type": "rest", "uri": "https://user@catalog/v1", "token": "secret:env/TOKEN"}
    source = IcebergTable(TABLE, catalog=catalog, follow=timedelta(seconds=30), filter="n > 1")
    assert source.describe() == "IcebergTable(https://catalog/v1, shop.numbers, filter='n > 1', followed every 30 s)"
    with pytest.raises(OptionError, match="plain text"):
        IcebergTable(TABLE, catalog={**catalog, "token": "hush-hush"})
    with pytest.raises(OptionError, match="plain text"):
        IcebergTable(TABLE, catalog={"uri": "postgresql+psycopg://u:pw@db/x"})
