"""The same StatefulProcessor with the same input, batch by batch, gives the same rows here as on Spark's own
`transformWithState`."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import PATIENCE_S, RealJob
from pipelines.spark_types import RESULT_TABLE, TABLE, Giving, Keeping, result_schema
from pipelines.spark_types import SAMPLE as TYPES_SAMPLE
from pipelines.stateful import CASES, INITIAL, INPUT, Case, pipeline, row
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tidegate.coordinator.job_run import RunEnded
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

STATE_STORE = "spark.sql.streaming.stateStore"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    f"{STATE_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # The rest is for speed: a few rows are not worth compiling for, nor is their state worth an upload each batch.
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    f"{STATE_STORE}.maintenanceInterval": "1h",
    f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}
PIPELINE = Path(__file__).parent / "pipelines" / "stateful.py"
SAMPLE = ("sessions", "list and map", "initial state")
"""Of the cases, for `make test`."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """One for this file, in a JVM of its own: another test of this process may have one whose workers do not find the
    processors."""
    changed = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    context: Any = SparkContext
    others = context._gateway, context._jvm
    context._gateway = context._jvm = None
    session = SparkSession.builder.master("local[1]").config(map=SETTINGS).getOrCreate()
    yield session
    session.stop()
    context._gateway.shutdown()
    context._gateway.proc.stdin.close()
    context._gateway, context._jvm = others
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def on_spark(spark: SparkSession, case: Case, folder: Path, name: str) -> Counter[tuple[Any, ...]]:
    """What Spark's own operator gives, a file for each batch."""
    folder.mkdir()
    for number, rows in enumerate(case.batches):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(list(rows), schema=INPUT), path)
        os.utime(path, (1_700_000_000 + number,) * 2)
    schema = spark.read.parquet(str(folder)).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    if case.mode == "EventTime":
        rows = rows.withWatermark("t", "0 seconds")
    initial = None
    if case.initial is not None:
        table = pa.Table.from_pylist(list(case.initial), schema=INITIAL)
        initial = spark.createDataFrame(table).groupBy("owner")
    grouped = rows.groupBy("k")
    call = grouped.transformWithStateInPandas if case.pandas else grouped.transformWithState
    result = call(case.processor, case.output, case.output_mode, case.mode, initial)
    query = (
        result.writeStream.format("memory")
        .queryName(name)
        .outputMode(case.output_mode)
        .trigger(availableNow=True)
        .start()
    )
    if case.mode == "ProcessingTime":  # such a query never ends: a timer might still come
        deadline = time.monotonic() + PATIENCE_S
        while query.isActive and len(query.recentProgress) <= len(case.batches):
            assert time.monotonic() < deadline, query.lastProgress
            time.sleep(0.1)
        query.stop()
    assert query.awaitTermination(PATIENCE_S)
    return Counter(as_tuple(row.asDict(True)) for row in spark.table(name).collect())


def in_process(case: Case, name: str, **options: Any) -> Counter[tuple[Any, ...]]:
    """What tidegate gives, in this process."""
    job = InProcessJob(lambda: pipeline(case, CollectSink(name)), {"parallelism": 2, **options})
    assert isinstance(job.submit().to_end(), RunEnded)
    rows = Counter(as_tuple(row) for row in collected(name).table().to_pylist())
    clear_collected(name)
    return rows


def as_tuple(row: dict[str, Any]) -> tuple[Any, ...]:
    """Values that can be counted."""

    def plain(value: Any) -> Any:
        if isinstance(value, datetime):  # Spark's is naive, of this machine's zone
            return value.timestamp()
        if isinstance(value, dict):  # a struct, and on Spark a map
            return tuple((key, plain(one)) for key, one in value.items())
        if isinstance(value, list | tuple):
            return tuple(map(plain, value))
        return bytes(value) if isinstance(value, bytearray) else value

    return tuple(map(plain, row.values()))


@pytest.mark.parametrize("name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_a_processor_gives_the_same_rows_as_on_spark(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """S8: `transformWithState`, unchanged."""
    case = CASES[name]
    theirs = on_spark(spark, case, tmp_path / "rows", name.replace(" ", "_"))
    # At the end of its input Spark leaves timers alone, and here they fire (S7.6): so does that of the last session.
    ours = Counter({row: n for row, n in in_process(case, f"both-{name}").items() if row[0] != "end"})
    assert sum(ours.values()) >= 4
    assert ours == theirs


def test_a_processor_runs_in_a_job_on_real_spark(local_job: RealJob) -> None:
    """The rows are those of the other two, through slots, snapshots and files."""
    local_job.start(rows=0, rate=0.0, function="sessions", pipeline=PIPELINE)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", local_job.logs()[-4000:]
    rows = ds.dataset(local_job.out, format="parquet").to_table().to_pylist()
    assert Counter(map(as_tuple, rows)) == in_process(CASES["sessions"], "both-job")


Table = Sequence[tuple[str, Any]]
LOST = {
    # Spark makes another number or text of it, and a processor here has to say what it means.
    *[("BYTE", number) for number in ("128", "300", "2147483648", "9223372036854775807")],
    *[("SHORT", number) for number in ("2147483648", "9223372036854775807")],
    *[("INT", number) for number in ("2147483648", "9223372036854775807")],
    *[("STRING", value) for value in ("b'x'", "datetime.date(2024, 1, 1)", "['a']", "{'a': 1}")],
    *[("ARRAY<INT>", value) for value in ("['x']", "[[1]]")],
    ("STRUCT<a: INT, b: STRING>", "Row(b='x', a=1)"),
}
TAKEN = {
    # Spark makes null of it, and of a missing struct one of nulls.
    *[(ddl, value) for ddl in ("FLOAT", "DOUBLE") for value in ("1", "np.int64(5)")],
    *[("STRUCT<a: INT, b: STRING>", value) for value in ("NaT", "<NA>")],
    ("ARRAY<DOUBLE>", "[1]"),
    ("STRING", "<NA>"),  # a text of the JVM's own
}


def differences(table: Table, ours: dict[int, str], theirs: dict[int, str]) -> list[str]:
    """Where the two states do not hold the same, and should. What Spark refuses may be refused, and what it makes null
    or something else of; each refusal names the state, the type and the value."""
    found: list[str] = []
    for number, (ddl, value) in enumerate(table):
        mine, its = ours[number], theirs[number]
        case = (ddl, repr(value))
        if mine.startswith("refused: "):
            named = all(part in mine for part in ("state 's", "column 'x' is", repr(value)))
            fine = named and (its == "None" or its.startswith("refused: ") or case in LOST)
        else:
            fine = mine == its or its.startswith("refused: ") or case in TAKEN
        if not fine:
            found.append(f"{ddl} {value!r}: {mine}, on Spark {its}")
    return found


def kept_on_spark(spark: SparkSession, table: Table, folder: Path, zone: str, pandas: bool) -> dict[int, str]:
    """What Spark's states hold; a query for each value that its JVM refuses, and one for the rest."""
    environment = spark.sparkContext.environment
    told: dict[int, str] = {}
    before = environment.get("TZ")
    environment["TZ"] = zone
    try:
        while len(told) < len(table):
            name = f"kept_{zone.replace('/', '_')}_{pandas}_{len(told)}"
            folder.mkdir(exist_ok=True)
            notes = folder / f"{name}.txt"
            case = Case(
                Keeping(table, len(told), notes, pandas), "k STRING", "None", [[row("a", "x", 1, 1)]], pandas=pandas
            )
            try:
                on_spark(spark, case, folder / name, name)
            except StreamingQueryException:
                assert notes.exists()
            known = len(told)
            told |= noted(notes)
            assert len(told) > known, "the query failed before it wrote a state"
    finally:
        environment.pop("TZ", None) if before is None else environment.__setitem__("TZ", before)
    return told


def kept_here(table: Table, folder: Path, zone: str, pandas: bool, monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """What states of tidegate hold."""
    notes = folder / f"here-{pandas}-{zone.replace('/', '-')}.txt"
    case = Case(Keeping(table, 0, notes, pandas), "k STRING", "None", [[row("a", "x", 1, 1)]], pandas=pandas)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        in_process(case, f"types-{zone}-{pandas}", parallelism=1)
    time.tzset()
    return noted(notes)


def noted(notes: Path) -> dict[int, str]:
    """Number of a case -> what was noted of it."""
    lines = (line.split(" ", 1) for line in notes.read_text(encoding="utf-8").splitlines())
    return {int(number): told for number, told in lines}


@pytest.mark.parametrize(
    ("table", "zone", "pandas"),
    [
        (TYPES_SAMPLE, "Europe/Berlin", False),
        pytest.param(TABLE, "UTC", False, marks=pytest.mark.slow),
        pytest.param(TABLE, "America/New_York", True, marks=pytest.mark.slow),
    ],
)
def test_a_state_of_every_type_holds_what_it_holds_on_spark(
    table: Table, zone: str, pandas: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5.1, S8: null, NaN, NaT, naive and aware times, scalars of numpy and pandas, value by value."""
    theirs = kept_on_spark(spark, table, tmp_path / "rows", zone, pandas)
    ours = kept_here(table, tmp_path, zone, pandas, monkeypatch)
    assert len(ours) == len(theirs) == len(table)
    assert differences(table, ours, theirs) == []


@pytest.mark.parametrize("pandas", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_result_of_every_type_is_what_it_is_on_spark(pandas: bool, spark: SparkSession, tmp_path: Path) -> None:
    """S8."""
    case = Case(
        Giving(RESULT_TABLE, pandas), result_schema(RESULT_TABLE), "None", [[row("a", "x", 1, 1)]], pandas=pandas
    )
    theirs = on_spark(spark, case, tmp_path / "rows", f"given_{pandas}")
    ours = in_process(case, f"given-{pandas}", parallelism=1)
    assert len(RESULT_TABLE) == sum(ours.values())
    assert sorted(map(repr, ours.elements())) == sorted(map(repr, theirs.elements()))
