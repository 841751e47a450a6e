"""The Delta source, one version: conformance, files of other writers, versions, columns, partitions (S4.2, S5.5)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders.delta_tables import SCHEMA, Growing, golden, read, rows
from deltalake import DeltaTable as Written
from deltalake import write_deltalake

from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.delta.log import log_files
from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.connectors.delta.log.table_state import state_of
from tidegate.connectors.delta.source import delta_source
from tidegate.connectors.delta.source.delta_source import DeltaTable
from tidegate.connectors.delta.source.table_enumerator import HOUR_MS
from tidegate.connectors.interface import Source, SourceContext
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import OptionError, OutageError, PipelineError
from tidegate.testing.source_conformance import SourceConformance

FEATURES = {"minReaderVersion": 3, "minWriterVersion": 7}


def made(folder: Path, *files: pa.Table, fields: list[dict[str, Any]], **metadata: Any) -> Path:
    """Write a table entry by entry, with the given files and columns, as other writers would."""
    protocol = metadata.pop("protocol", {"minReaderVersion": 1, "minWriterVersion": 2})
    partitions = metadata.pop("partitions", [{}] * len(files))
    (folder / "_delta_log").mkdir(parents=True)
    actions: list[dict[str, Any]] = [
        {"protocol": protocol},
        {
            "metaData": {
                "id": "made",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": {},
                **metadata,
            }
        },
    ]
    for number, (file, partition) in enumerate(zip(files, partitions, strict=True)):
        path = folder / f"{number}.parquet"
        pq.write_table(file, path, use_deprecated_int96_timestamps=metadata.get("name") == "int96")
        size = path.stat().st_size
        add = {"path": path.name, "partitionValues": partition, "size": size, "modificationTime": 1, "dataChange": True}
        actions.append({"add": add})
    entry = folder / "_delta_log" / f"{0:020}.json"
    entry.write_text("\n".join(json.dumps(action) for action in actions))
    return folder


def column(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits say until when their files stay. The hour must not end between two searches that are compared."""
    now_ms = int(time.time() * 1000)
    monkeypatch.setattr(delta_source, "steady_clock", lambda: lambda: now_ms)


class TestBoundedTable(SourceConformance):
    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path) -> None:
        self.growing = Growing(tmp_path / "table")
        for number in (150, 1, 250):
            self.growing.append(number)

    def make_source(self) -> Source:
        return DeltaTable(self.growing.folder)


class TestTableWithDeletionVectors(SourceConformance):
    """Positions count the rows of the file, also deleted ones."""

    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path) -> None:
        self.folder = golden("cdf-table-with-cdc-and-dvs", tmp_path)

    def make_source(self) -> Source:
        return DeltaTable(self.folder, version=14, commit_columns=True)


class TestPartitionedTable(SourceConformance):
    """Many row groups, of which a restored reader skips those that it has read."""

    @pytest.fixture(autouse=True)
    def table(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "table"
        part = pa.array(["a", "b", None] * 200)
        table = rows(0, 600).append_column("part", part)
        write_deltalake(str(self.folder), table, partition_by="part")
        for file in self.folder.rglob("*.parquet"):
            pq.write_table(pq.read_table(file, partitioning=None), file, row_group_size=7)

    def make_source(self) -> Source:
        return DeltaTable(self.folder, partitions={"part": ["a", None]})


# ------------------------------------------------------------ versions


def test_a_table_without_rows_has_no_splits_and_a_schema(tmp_path: Path) -> None:
    source = DeltaTable(Growing(tmp_path).folder)
    assert source.discover(2) == [] and source.schema().equals(SCHEMA) and source.boundedness == "bounded"


def test_a_version_is_chosen_by_its_number_or_by_time(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    for _ in range(3):
        growing.append(2)
    growing.age_log([0, 1], days=2)
    growing.age_log([2], days=3)  # a clock that was wrong: no version is older than the one before it
    yesterday = datetime.now(UTC) - timedelta(days=1)
    for options in ({"version": 2}, {"timestamp": yesterday}, {"timestamp": yesterday.isoformat()}):
        assert sorted(row["n"] for row in read(DeltaTable(tmp_path, **options))) == [0, 1, 2, 3], options
    assert len(read(DeltaTable(tmp_path))) == 6
    with pytest.raises(PipelineError, match="no version as of 2001"):
        DeltaTable(tmp_path, timestamp="2001-01-01T00:00:00Z").schema()


def test_the_time_of_a_commit_in_the_log_counts_more_than_the_files_time(tmp_path: Path) -> None:
    times = {"configuration": {"delta.enableInCommitTimestamps": "true"}}
    folder = made(tmp_path / "t", pa.table({"n": [0]}), fields=[column("n", "long")], **times)
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    for version in (1, 2, 3):
        at_ms = int((moment + timedelta(days=version)).timestamp() * 1000)
        entry = folder / "_delta_log" / f"{version:020}.json"
        entry.write_text(json.dumps({"commitInfo": {"inCommitTimestamp": at_ms, "operation": "WRITE"}}))
    os.utime(folder / "_delta_log" / f"{0:020}.json", (0, 0))
    source = DeltaTable(folder, timestamp=moment + timedelta(days=2, hours=1), commit_columns=True)
    assert read(source) == [{"n": 0, "commit_version": 2, "commit_time": moment + timedelta(days=2)}]


def test_the_version_of_the_start_is_read_whatever_happens_meanwhile(tmp_path: Path) -> None:
    """S4.2: the splits name the files of one version."""
    growing = Growing(tmp_path)
    growing.append(2)
    splits = DeltaTable(tmp_path).discover(1)
    growing.append(3)
    growing.written.delete("n = 0")
    assert [row["n"] for row in read(DeltaTable(tmp_path), splits)] == [0, 1]


def test_versions_that_are_cleaned_up_or_never_were_are_an_error(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    for _ in range(4):
        growing.append(1)
    for version in (7, 5):
        with pytest.raises(PipelineError, match=rf"version {version} .* its versions are 0 to 4"):
            DeltaTable(tmp_path, version=version).schema()
    growing.written.create_checkpoint()
    for version in range(3):
        (growing.log / f"{version:020}.json").unlink()
    assert len(read(DeltaTable(tmp_path))) == 4
    with pytest.raises(PipelineError, match=r"version 3 .* cleaned up.*its versions are 4 to 4"):
        DeltaTable(tmp_path, version=3).schema()
    (growing.log / f"{4:020}.checkpoint.parquet").unlink()
    with pytest.raises(PipelineError, match="no version of it is complete"):
        DeltaTable(tmp_path).schema()


def test_a_folder_without_a_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no Delta table"):
        DeltaTable(tmp_path / "nowhere").schema()


def test_every_version_with_checkpoints_between_has_the_files_that_delta_rs_finds(tmp_path: Path) -> None:
    """Files that are added, removed, compacted and restored; read from the first entry or from a checkpoint."""
    growing = Growing(tmp_path)
    for step in range(24):
        growing.append(3)
        if step % 5 == 4:
            growing.written.delete(f"n = {step}")
        if step % 7 == 6:
            growing.written.optimize.compact()
        if step == 15:
            growing.written.restore(9)
        if step % 6 == 5:
            growing.written.create_checkpoint()
    assert len(list(growing.log.glob("*.checkpoint.parquet"))) >= 4
    log = LogFiles(str(tmp_path), {})
    for version in range(growing.written.version() + 1):
        expected = Written(str(tmp_path), version=version)
        state = state_of(log, version)
        paths = [f"{tmp_path}/{file.path}" for file in state.data_files()]
        assert sorted(paths) == sorted(expected.file_uris()), f"version {version}"
        assert state.metadata.table_id == str(expected.metadata().id)
    assert len(read(DeltaTable(tmp_path))) == growing.written.count()


def test_checkpoints_of_version_2_and_in_several_parts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = golden("checkpoint-v2-table", tmp_path)
    assert len(read(DeltaTable(folder))) == 44
    for entry in (folder / "_delta_log").glob("*.json"):
        if entry.name < f"{8:020}" and "checkpoint" not in entry.name:
            entry.unlink()
    assert len(read(DeltaTable(folder))) == 44, "from the checkpoint alone"
    growing = Growing(tmp_path / "parts")
    for _ in range(5):
        growing.append(2)
    growing.written.create_checkpoint()
    whole = growing.log / f"{5:020}.checkpoint.parquet"
    table = pq.read_table(whole)
    for part in (1, 2):
        piece = table.slice(0, 3) if part == 1 else table.slice(3)
        pq.write_table(piece, growing.log / f"{5:020}.checkpoint.{part:010}.{2:010}.parquet")
    whole.unlink()
    for entry in growing.log.glob("*.json"):
        entry.unlink()
    monkeypatch.setattr(log_files, "CHECKPOINT_ROWS", 1)
    assert len(read(DeltaTable(growing.folder))) == 10
    (growing.log / f"{5:020}.checkpoint.{2:010}.{2:010}.parquet").unlink()
    with pytest.raises(PipelineError, match="there is no Delta table"):
        DeltaTable(growing.folder).schema()


def test_a_log_that_is_cleaned_up_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(tmp_path)
    for _ in range(3):
        growing.append(1)
    listed = LogFiles.listed

    def overtaken(log: LogFiles) -> Any:
        monkeypatch.setattr(LogFiles, "listed", listed)
        found = listed(log)
        growing.written.create_checkpoint()
        for version in range(3):
            (growing.log / f"{version:020}.json").unlink()
        return found

    monkeypatch.setattr(LogFiles, "listed", overtaken)
    assert len(read(DeltaTable(tmp_path))) == 3


def test_a_damaged_log_is_an_error(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.append(1)
    entry = growing.log / f"{1:020}.json"
    text = entry.read_text()
    entry.write_text(text.replace('"add"', '"add', 1))
    with pytest.raises(PipelineError, match="version 1 of the Delta table is damaged"):
        read(DeltaTable(tmp_path))
    entry.write_text(text)
    growing.written.create_checkpoint()
    (growing.log / f"{1:020}.checkpoint.parquet").write_bytes(b"PAR1")
    with pytest.raises(PipelineError, match="log of the Delta table is damaged"):
        read(DeltaTable(tmp_path))


def test_an_outage_of_the_storage_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = Growing(tmp_path)
    growing.append(1)
    source = DeltaTable(tmp_path)
    splits = source.discover(1)

    def away(*_: Any, **__: Any) -> Any:
        raise TimeoutError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr("fsspec.implementations.local.LocalFileSystem.ls", away)
        with pytest.raises(OutageError, match="no answer"):
            DeltaTable(tmp_path).schema()
        patched.setattr("pyarrow.parquet.ParquetFile.__init__", away)
        with pytest.raises(OutageError, match="no answer"):
            read(source, splits)
    assert len(read(source, splits)) == 1


# ------------------------------------------------------------ columns and values


def test_only_the_columns_that_the_job_uses_are_read(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.append(2)
    source = DeltaTable(tmp_path, columns=["name", "n"])
    assert source.schema().names == ["name", "n"]
    splits = source.discover(1)
    (file,) = tmp_path.glob("*.parquet")
    pq.write_table(pq.read_table(file, columns=["name"]), file)
    assert read(source.reading_only(["name"]), splits) == [{"name": "row 0"}, {"name": "row 1"}]
    assert len(read(DeltaTable(tmp_path).reading_only([]), splits)) == 2, "rows without columns are rows"


def test_a_column_that_the_table_gets_later_is_not_read_and_one_that_it_loses_is_an_error(tmp_path: Path) -> None:
    """S5.5: the schema belongs to the job."""
    growing = Growing(tmp_path)
    growing.append(2)
    found = DeltaTable(tmp_path).found_schema()
    assert found is not None
    write_deltalake(str(tmp_path), pa.table({"n": [7], "later": ["x"]}), mode="append", schema_mode="merge")
    source = DeltaTable(tmp_path).with_found_schema(found)
    assert source.schema().names == ["n", "name"]
    assert {row["n"]: row["name"] for row in read(source)} == {0: "row 0", 1: "row 1", 7: None}
    assert {row["n"]: row["later"] for row in read(DeltaTable(tmp_path))} == {0: None, 1: None, 7: "x"}
    write_deltalake(str(tmp_path), pa.table({"n": ["1"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(PipelineError, match="'n' has the type string, and had the type int64"):
        source.discover(1)


def test_values_of_partition_columns_have_the_types_of_the_table(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 21, 12, 30, 15, 250_000)
    kinds: Mapping[str, tuple[Any, str, Any]] = {
        "text": ("string", "a b/ü=%", "a b/ü=%"),
        "i": ("integer", "-7", -7),
        "l": ("long", str(2**60), 2**60),
        "s": ("short", "9", 9),
        "b": ("byte", "-1", -1),
        "f": ("float", "1.5", 1.5),
        "d": ("double", "1e3", 1000.0),
        "yes": ("boolean", "true", True),
        "on": ("date", "2026-11-21", date(2026, 11, 21)),
        "price": ("decimal(10,2)", "12.50", Decimal("12.50")),
        "local": ("timestamp_ntz", "2026-11-21 12:30:15.25", moment),
        "utc": ("timestamp", "2026-11-21 12:30:15.250000", moment.replace(tzinfo=UTC)),
        "iso": ("timestamp", "2026-11-21T14:30:15.250+02:00", moment.replace(tzinfo=UTC)),
        "none": ("long", None, None),
        "empty": ("string", "", None),
    }
    folder = made(
        tmp_path / "t",
        pa.table({"n": [1, 2]}),
        fields=[column("n", "long"), *(column(name, kind) for name, (kind, _, _) in kinds.items())],
        partitionColumns=list(kinds),
        partitions=[{name: text for name, (_, text, _) in kinds.items()}],
    )
    expected = {name: value for name, (_, _, value) in kinds.items()}
    assert read(DeltaTable(folder)) == [{"n": 1, **expected}, {"n": 2, **expected}]
    only = DeltaTable(folder).reading_only(["text"])
    assert read(only, DeltaTable(folder).discover(1)) == [{"text": "a b/ü=%"}] * 2, "no column of the file"
    for name, (_, text, value) in kinds.items():
        for wanted in (text, value):
            assert len(read(DeltaTable(folder, partitions={name: wanted}))) == 2, (name, wanted)
    assert read(DeltaTable(folder, partitions={"i": [1, 2], "on": date(2026, 11, 21)})) == []


def test_a_partition_value_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    for number, (kind, text, said) in enumerate(
        [("integer", "x", "'x' of column 'p'"), ("binary", "abc", "binary partition columns")]
    ):
        fields = [column("n", "long"), column("p", kind)]
        folder = made(
            tmp_path / str(number),
            pa.table({"n": [1]}),
            fields=fields,
            partitionColumns=["p"],
            partitions=[{"p": text}],
        )
        with pytest.raises(PipelineError, match=said):
            read(DeltaTable(folder))
        assert read(DeltaTable(folder, columns=["n"])) == [{"n": 1}]


def test_the_tables_of_the_sink_are_read_back(tmp_path: Path) -> None:
    """Names of folders are escaped on the disk, and their paths in the log once more."""
    schema = pa.schema([("n", pa.int64()), ("p", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    at = datetime(2026, 1, 1, tzinfo=UTC)
    writer = Delta(tmp_path, partition_by="p").create_writer(SinkContext("job", "l", "out", 0, 1, 1, "run", schema))
    writer.write(pa.record_batch([[1, 2, 3], ["b ü/=%", None, "x" * 300], [at, None, at]], schema=schema))
    writer.commit(writer.prepare_commit(1)())
    found = sorted(read(DeltaTable(tmp_path)), key=lambda row: row["n"])
    assert found == [
        {"n": 1, "p": "b ü/=%", "at": at},
        {"n": 2, "p": None, "at": None},
        {"n": 3, "p": "x" * 300, "at": at},
    ]


def test_files_with_narrower_types_missing_fields_and_old_timestamps_are_read(tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, 12)
    inner = {"type": "struct", "fields": [column("x", "long"), column("y", "string")]}
    fields = [
        column("n", "long"),
        column("f", "double"),
        column("at", "timestamp"),
        column("s", inner),
        column("many", {"type": "array", "elementType": inner, "containsNull": True}),
        column("by", {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True}),
    ]
    item = pa.struct([("y", pa.string()), ("x", pa.int32())])
    table = pa.table(
        {
            "n": pa.array([1, None, 3], pa.int16()),
            "f": pa.array([1.5, None, 2.5], pa.float32()),
            "at": pa.array([at, None, at], pa.timestamp("us")),
            "s": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}], item),
            "many": pa.array([[{"x": 1, "y": "a"}, None], None, []], pa.list_(item)),
            "by": pa.array([[("k", {"x": 1, "y": "a"})], None, [("l", None)]], pa.map_(pa.string(), item)),
        }
    )
    plain = made(tmp_path / "a", table, fields=fields, protocol={**FEATURES, "readerFeatures": ["typeWidening"]})
    old = made(tmp_path / "b", table.select(["n", "at"]), fields=fields, name="int96")
    utc = at.replace(tzinfo=UTC)
    expected = [
        {
            "n": 1,
            "f": 1.5,
            "at": utc,
            "s": {"x": 1, "y": "a"},
            "many": [{"x": 1, "y": "a"}, None],
            "by": [("k", {"x": 1, "y": "a"})],
        },
        dict.fromkeys(["n", "f", "at", "s", "many", "by"]),
        {"n": 3, "f": 2.5, "at": utc, "s": {"x": None, "y": "b"}, "many": [], "by": [("l", None)]},
    ]
    assert read(DeltaTable(plain)) == expected
    assert [(row["n"], row["at"], row["s"]) for row in read(DeltaTable(old))] == [
        (1, utc, None),
        (None,) * 3,
        (3, utc, None),
    ]


def test_a_value_or_a_column_that_does_not_fit_the_table_is_an_error(tmp_path: Path) -> None:
    wide = made(tmp_path / "a", pa.table({"n": [2**40]}), fields=[column("n", "integer")])
    with pytest.raises(PipelineError, match="0.parquet.*not in range"):
        read(DeltaTable(wide))
    required = {**column("m", "long"), "nullable": False}
    lacking = made(tmp_path / "b", pa.table({"n": [1]}), fields=[column("n", "long"), required])
    with pytest.raises(PipelineError, match="no column 'm', which must not be null"):
        read(DeltaTable(lacking))


def test_column_mapping_by_name_is_read_also_inside_nested_columns(tmp_path: Path) -> None:
    folder = golden("table_with_column_mapping", tmp_path)
    found = read(DeltaTable(folder))
    assert len(found) == 5 and {"Company Very Short": "BME", "Super Name": "Timothy Lamb"} in found
    assert len(read(DeltaTable(folder, partitions={"Company Very Short": "BMS"}, columns=["Super Name"]))) == 4

    def named(name: str, kind: Any) -> dict[str, Any]:
        return column(name, kind, **{"delta.columnMapping.physicalName": f"col-{name}", "delta.columnMapping.id": 1})

    inner = {"type": "struct", "fields": [named("x", "long")]}
    fields = [
        named("a.b", "long"),
        named("s", inner),
        named("many", {"type": "array", "elementType": inner, "containsNull": True}),
        named("by", {"type": "map", "keyType": inner, "valueType": inner, "valueContainsNull": True}),
        named("new", "string"),
    ]
    item = pa.struct([("col-x", pa.int64())])
    one = {"col-x": 1}
    table = pa.table(
        {
            "col-a.b": [1],
            "col-s": pa.array([one], item),
            "col-many": pa.array([[one]], pa.list_(item)),
            "col-by": pa.array([[(one, one)]], pa.map_(item, item)),
        }
    )
    mapped = made(tmp_path / "m", table, fields=fields, configuration={"delta.columnMapping.mode": "name"})
    x = {"x": 1}
    assert read(DeltaTable(mapped)) == [{"a.b": 1, "s": x, "many": [x], "by": [(x, x)], "new": None}]


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (
            {"protocol": {**FEATURES, "readerFeatures": ["variantType", "deletionVectors"]}},
            "not support.*: variantType",
        ),
        ({"protocol": {"minReaderVersion": 4, "minWriterVersion": 7}}, "reader version 4"),
        ({"configuration": {"delta.columnMapping.mode": "id"}}, "delta.columnMapping.mode=id"),
        ({"configuration": {"delta.coordinatedCommits.commitCoordinator-preview": "x"}}, "coordinatedCommits"),
    ],
)
def test_a_table_that_requires_more_of_its_readers_is_refused_by_name(
    tmp_path: Path, metadata: dict[str, Any], said: str
) -> None:
    folder = made(tmp_path / "t", pa.table({"n": [1]}), fields=[column("n", "long")], **metadata)
    for source in (DeltaTable(folder), DeltaTable(folder, follow="1 s")):
        with pytest.raises(PipelineError, match=said):
            source.schema()


def test_a_column_of_an_unknown_type_is_refused_unless_it_is_not_read(tmp_path: Path) -> None:
    fields = [column("n", "long"), column("v", "interval day")]
    folder = made(tmp_path / "t", pa.table({"n": [1]}), fields=fields)
    for source in (DeltaTable(folder), DeltaTable(folder, columns=["v"])):
        with pytest.raises(PipelineError, match="'v'.*interval day"):
            source.schema()
    assert read(DeltaTable(folder, columns=["n"])) == [{"n": 1}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": ["m"]}, "no column 'm'"),
        ({"partitions": {"n": 1}}, "no partition column 'n'"),
        ({"changes": True, "follow": "1 s"}, "does not record changes"),
    ],
)
def test_what_the_table_lacks_is_an_error_when_the_pipeline_is_built(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    Growing(tmp_path)
    with pytest.raises(PipelineError, match=said):
        DeltaTable(tmp_path, **options).schema()


def test_an_added_column_with_the_name_of_a_column_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "t", pa.table({"commit_time": [1]}), fields=[column("commit_time", "long")])
    with pytest.raises(PipelineError, match="adds a column 'commit_time'"):
        DeltaTable(folder, commit_columns=True).schema()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"follow": "0 s"}, "longer than 0"),
        ({"timestamp": "2026-11-21T12:00:00"}, "time zone"),
        ({"timestamp": "yesterday"}, "time zone"),
        ({"timestamp": "2026-11-21T12:00:00Z", "version": 1}, "chosen twice"),
        ({"start": "latest"}, "start='latest'"),
        ({"on_rewrite": "skip"}, "on_rewrite='skip'"),
        ({"on_new_columns": "add"}, "on_new_columns='add'"),
        ({"changes": True}, "needs follow="),
    ],
)
def test_a_wrong_option_is_an_error_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        DeltaTable("/table", **options)


# ------------------------------------------------------------ files that are missing


def test_the_preflight_names_files_that_were_vacuumed(tmp_path: Path) -> None:
    growing = Growing(tmp_path)
    growing.append(1)
    source = DeltaTable(tmp_path)
    (split,) = source.discover(1)
    assert source.unavailable_splits([split]) == []
    growing.written.delete()
    growing.written.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    ((name, why),) = source.unavailable_splits([split])
    assert name == split.split_id and "VACUUM" in why
    with pytest.raises(PipelineError, match=r"version 1, .*is missing|missing .*version 1, "):
        read(source, [split])


def test_a_reader_reports_how_long_its_files_certainly_stay(tmp_path: Path) -> None:
    """S4.2: from when the next version may have removed them."""
    growing = Growing(tmp_path, **{"delta.deletedFileRetentionDuration": "interval 2 days"})
    growing.append(1)
    day_ms = 86_400_000
    (newest,) = DeltaTable(tmp_path).discover(1)
    assert abs(newest.data["until_ms"] - time.time() * 1000 - 2 * day_ms) < HOUR_MS
    growing.append(1)
    growing.age_log([2], days=1)
    (older,) = DeltaTable(tmp_path, version=1).discover(1)
    assert abs(older.data["until_ms"] - time.time() * 1000 - day_ms) < HOUR_MS + 60_000
    source = DeltaTable(tmp_path)
    reader = source.create_reader(SourceContext("source", 0, 1))
    assert reader.readable_until_ms() is None
    reader.add_splits([newest, older])
    assert reader.readable_until_ms() == older.data["until_ms"]
    reader.close()


def test_a_source_describes_itself_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TEST_SECRET", "hush-hush")
    options = {"key": "me", "secret": "secret:env/TIDEGATE_TEST_SECRET"}
    source = DeltaTable("s3://lake/t", storage_options=options, follow=timedelta(seconds=30), partitions={"p": 1})
    assert source.describe() == "DeltaTable(s3://lake/t, partitions={'p': (1,)}, followed every 30 s)"
    assert "hush" not in repr(source._selection)
    monkeypatch.chdir(tmp_path)
    assert DeltaTable("t", version=3).describe() == f"DeltaTable({tmp_path}/t, version=3)"
