"""Data sources of PySpark's Python data source API as sources of jobs (S4.1 to S4.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.data_sources import FewNumbers, Ledger, Numbers, OldNumbers
from builders.sinks import new_sink_name
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceReader

from tidegate import Pipeline, PySparkSource
from tidegate.connectors.interface import Source, SourceContext
from tidegate.connectors.pyspark.row_batches import arrow_schema, batches_of
from tidegate.connectors.pyspark.schema_text import parse_schema
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import OptionError, PipelineError
from tidegate.jobs.records import RestoreFrom
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing import DiscoveringSourceConformance, SourceConformance
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "numbers.json")
    made.end = 300
    return made


class _Numbers:
    source: type[DataSource] = Numbers
    options: dict[str, Any] = {}

    @pytest.fixture(autouse=True)
    def _input(self, tmp_path: Path) -> None:
        self.path = tmp_path / "numbers.json"
        self.ledger = Ledger(self.path)
        self.ledger.end = 300

    def make_source(self) -> Source:
        return PySparkSource(self.source, options={"path": str(self.path)}, **self.options)

    def add_input(self) -> None:
        self.ledger.end += 60


class TestBatch(_Numbers, SourceConformance):
    pass


class TestBatchOfPartitionsThatAreReadWhole(_Numbers, SourceConformance):
    options = {"repeatable": False}


class TestStream(_Numbers, DiscoveringSourceConformance):
    options = {"stream": True, "every": "10 ms"}


class TestSimpleStream(_Numbers, SourceConformance):
    source = FewNumbers
    options = {"stream": True, "every": "10 ms"}
    enough_rows = 300


class TestSimpleStreamThatIsReadWhole(_Numbers, SourceConformance):
    source = FewNumbers
    options = {"stream": True, "every": "10 ms", "repeatable": False}
    enough_rows = 300


class Job:
    """Reads numbers into memory. Readers read on threads, so tests wait for rows."""

    def __init__(self, tmp_path: Path, source: type[DataSource], **options: Any) -> None:
        self.ledger = Ledger(tmp_path / "numbers.json")
        self.ledger.end = 250
        self._options = {"path": str(tmp_path / "numbers.json")}
        self._source, self._stream = source, options.pop("stream", True)
        self.sink = new_sink_name()
        self.job = InProcessJob(self._build, {"parallelism": 2, **options})

    def _build(self) -> Pipeline:
        p = Pipeline()
        source = PySparkSource(self._source, options=self._options, stream=self._stream, every="10 ms")
        p.read(source, uid="numbers").write(CollectSink(self.sink), uid="out")
        return p

    def rows(self) -> list[int]:
        return sorted(row["n"] for row in collected(self.sink).table().to_pylist())


def until(run: Any, condition: Callable[[], bool]) -> None:
    """Let the run work until a condition holds."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end and run.outcome is None, run.outcome
        run.pump(5)
        run.tick(20)


def checkpoint(run: Any, name: str) -> None:
    answer = run.ask(ev.SnapshotRequest("checkpoint", request_id=name))
    assert answer is None or answer.ok


def test_a_batch_is_read_to_its_end(tmp_path: Path) -> None:
    job = Job(tmp_path, Numbers, stream=False)
    run = job.job.submit()
    end = time.monotonic() + 30
    while run.outcome is None and time.monotonic() < end:
        run.pump(5)
        run.tick(20)
    assert isinstance(run.outcome, RunEnded) and job.rows() == list(range(250))


@pytest.mark.parametrize("source", [Numbers, OldNumbers, FewNumbers])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_stream_is_read_once_over_a_crash_and_a_rescale(
    tmp_path: Path, source: type[DataSource], parallelism: int
) -> None:
    job = Job(tmp_path, source)
    run = job.job.submit()
    step = 0
    while len(job.rows()) < 250:
        step += 1
        until(run, lambda: True)
        checkpoint(run, f"c{step}")
        run.pump(5)
        if step == 3:
            run.crash()
            run = job.job.rerun()
        assert step < 500
    answer = run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    assert answer is None or answer.ok
    assert isinstance(run.outcome, RunEnded)
    job.ledger.end = 400
    job.job.options = {"parallelism": parallelism}
    run = job.job.submit(RestoreFrom(kind="latest"))
    while len(job.rows()) < 400:
        step += 1
        until(run, lambda: True)
        checkpoint(run, f"c{step}")
        run.pump(5)
        assert step < 1000
    assert job.rows() == list(range(400))


@pytest.mark.parametrize("source", [Numbers, FewNumbers])
def test_offsets_are_committed_when_a_checkpoint_has_all_rows_before_them(
    tmp_path: Path, source: type[DataSource]
) -> None:
    job = Job(tmp_path, source)
    run = job.job.submit()
    step = 0
    while {"n": 250} not in job.ledger.commits:
        step += 1
        until(run, lambda: True)
        checkpoint(run, f"c{step}")
        run.pump(5)
        for offset in job.ledger.commits:
            assert set(range(offset["n"])) <= set(job.rows()), "committed before its rows"
        time.sleep(0.001)
        assert step < 5000
    assert [o["n"] for o in job.ledger.commits] == sorted({o["n"] for o in job.ledger.commits}), "in order, each once"


class Fails(DataSource):
    def schema(self) -> str:
        return "n INT"

    def reader(self, schema: Any) -> DataSourceReader:
        class Reader(DataSourceReader):
            def read(self, partition: Any) -> Iterator[Any]:
                yield (1,)
                raise ConnectionError("the station does not answer")

        return Reader()


def test_an_error_of_a_data_source_fails_the_run(tmp_path: Path) -> None:
    run = Job(tmp_path, Fails, stream=False).job.submit()
    end = time.monotonic() + 30
    with pytest.raises(OperatorFailure, match="ConnectionError: the station does not answer"):
        while time.monotonic() < end:
            run.pump(5)
            run.tick(20)


def test_other_partitions_than_before_are_refused(ledger: Ledger, tmp_path: Path) -> None:
    source = PySparkSource(Numbers, options={"path": str(tmp_path / "numbers.json")})
    splits = source.discover(2)
    ledger.end = 30
    reader = source.create_reader(SourceContext("s", 0, 1))
    reader.add_splits(splits)
    reader.no_more_splits()
    end = time.monotonic() + 30
    with pytest.raises(PipelineError, match="planned other partitions than before.*there were 5 partitions.*now there"):
        while time.monotonic() < end:
            reader.poll(0)
    reader.close()


@pytest.mark.parametrize(
    "text",
    [
        "n BIGINT",
        "struct<n: decimal(12, 3), xs: array<map<string, struct<a: double, b: array<date>>>>>",
        "a TINYINT, b SMALLINT, c REAL, d BOOLEAN, e BINARY, f TIMESTAMP, g TIMESTAMP_NTZ, h VARCHAR(10)",
    ],
)
def test_a_schema_as_text_is_parsed_without_spark(text: str) -> None:
    """PySpark writes the same schema as text."""
    parsed = parse_schema(text, "numbers")
    assert parse_schema(parsed.simpleString(), "again") == parsed


def test_a_parsed_schema_has_names_types_and_nulls() -> None:
    parsed = parse_schema("`a b` int not null, C: string comment 'x, y', d decimal(12,3), e array<date>", "numbers")
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in parsed] == [
        ("a b", "int", False),
        ("C", "string", True),
        ("d", "decimal(12,3)", True),
        ("e", "array<date>", True),
    ]


@pytest.mark.parametrize(
    "text", ["", "n", "n INTERVAL DAY", "n ARRAY<INT", "n INT,, m INT", "n INT m INT", "n DECIMAL(x)", "n INT; m"]
)
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="the schema of numbers cannot be parsed"):
        parse_schema(text, "numbers")


STRUCT = parse_schema("n INT, d DECIMAL(6,2), xs ARRAY<STRING>", "rows")


def rows(*given: Any) -> list[dict[str, Any]]:
    return [row for batch in batches_of(iter(given), STRUCT, "here") for row in batch.to_pylist()]


def test_rows_may_be_tuples_lists_or_named_rows_in_any_order() -> None:
    one = {"n": 1, "d": Decimal("2.50"), "xs": ["a"]}
    assert rows((1, Decimal("2.5"), ["a"]), [None, None, None]) == [one, {"n": None, "d": None, "xs": None}]
    assert rows(Row(xs=["a"], d=Decimal("2.5"), n=1)) == [one]
    assert rows() == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (((1, 2),), "2 values instead of 3"),
        (({"n": 1},), "a row is a dict"),
        ((Row(n=1, d=None, ys=[]),), "a row has the columns"),
        ((("x", None, None),), "a value does not fit its type"),
        ((pa.record_batch({"n": [1]}),), "a batch has the columns"),
    ],
)
def test_rows_that_do_not_fit_the_schema_are_refused(given: Any, why: str) -> None:
    with pytest.raises(PipelineError, match=f"do not fit its schema.*here.*{why}"):
        rows(*given)


def test_rows_that_are_no_iterator_are_refused() -> None:
    with pytest.raises(PipelineError, match="it returned a list and no iterator"):
        list(batches_of([(1,)], STRUCT, "here"))


def test_the_schema_is_that_of_the_class_or_the_declared_one(tmp_path: Path) -> None:
    options = {"path": str(tmp_path)}
    assert PySparkSource(Numbers, options=options).schema() == SCHEMA
    narrow = pa.schema([("n", pa.int32()), ("text", pa.string())])
    for schema in (narrow, "n INT, text STRING", parse_schema("n INT, text STRING", "x")):
        assert PySparkSource(Numbers, options=options, schema=schema).schema() == narrow
    assert arrow_schema(parse_schema("at TIMESTAMP", "x")) == pa.schema([("at", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"source": Numbers({})}, "needs a class"),
        ({"source": dict}, "needs a class"),
        ({"options": {"n": 1}}, "n is a int"),
        ({"options": {"password": "hunter2"}}, "plain text"),
        ({"every": "0 s"}, "longer than 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why) as refused:
        PySparkSource(**{"source": Numbers, **arguments})
    assert "hunter2" not in str(refused.value)


def test_options_may_be_secrets_and_are_not_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBERS_PATH", str(tmp_path / "numbers.json"))
    Ledger(tmp_path / "numbers.json").end = 70
    source = PySparkSource(Numbers, options={"path": "secret:env/NUMBERS_PATH"}, stream=True)
    enumerator = source.create_enumerator(None)
    (split, *_) = enumerator.discover().splits
    assert str(tmp_path) not in f"{source.describe()} {split}" and source.describe() == "PySparkSource(Numbers, stream)"
