"""What sinks and sources can do more is found by their methods, and leaves no name in graph documents."""

from __future__ import annotations

import pyarrow as pa
import pytest
from builders.data_sinks import Rows

from tidegate.connectors.datagen import DataGen
from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.discard import Discard
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.files.sink.text_sinks import Csv, JsonLines
from tidegate.connectors.interface import (
    CollectsLeftovers,
    ReadBySpark,
    ReleasesInput,
    ReportsExistingOutput,
    Sink,
    Source,
    SupportsQuarantine,
    SupportsRewind,
    WrittenBySpark,
)
from tidegate.connectors.postgres.postgres_sink import Postgres
from tidegate.connectors.postgres.source.postgres_table import PostgresTable
from tidegate.connectors.pyspark.pyspark_sink import PySparkSink
from tidegate.connectors.spark.spark_source import SparkTable
from tidegate.connectors.spark.spark_writer import SparkWriter
from tidegate.testing.collect_sink import CollectSink

CAPABILITIES = (
    CollectsLeftovers,
    ReadBySpark,
    ReleasesInput,
    ReportsExistingOutput,
    SupportsQuarantine,
    SupportsRewind,
    WrittenBySpark,
)
OF_FILES = {CollectsLeftovers, ReportsExistingOutput, SupportsQuarantine, SupportsRewind}
SCHEMA = pa.schema([("v", pa.int64())])


@pytest.mark.parametrize(
    ("connector", "expected"),
    [
        (Parquet("/out"), OF_FILES),
        (Csv("/out"), OF_FILES),
        (JsonLines("/out"), OF_FILES),
        (Delta("/out"), {CollectsLeftovers, SupportsQuarantine, SupportsRewind}),
        (Postgres("host=h dbname=d", "t"), {CollectsLeftovers, SupportsQuarantine, SupportsRewind}),
        (PostgresTable("host=h dbname=d", "t"), {ReleasesInput}),
        (PySparkSink(Rows), {CollectsLeftovers}),
        (SparkWriter(format="orc", path="/out"), {WrittenBySpark}),
        (Discard(), set()),
        (CollectSink("a"), {SupportsQuarantine, SupportsRewind}),
        (SparkTable("t", schema=SCHEMA), {ReadBySpark}),
        (DataGen(lambda n: {"v": n}, SCHEMA), set()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_connector_can_do(connector: Sink | Source, expected: set[type]) -> None:
    assert {kind for kind in CAPABILITIES if isinstance(connector, kind)} == expected
    assert not {kind.__name__ for kind in CAPABILITIES} & {base.__name__ for base in type(connector).__mro__}


def test_a_subclass_can_do_without_what_its_base_does() -> None:
    class Plain(Parquet):
        rewind_to = None  # type: ignore[assignment]

    assert not isinstance(Plain("/out"), SupportsRewind)
    assert isinstance(Plain("/out"), SupportsQuarantine)
