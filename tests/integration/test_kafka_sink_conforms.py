"""The Kafka sink against the sink contract, with a real broker (S7.4)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from committed_records import CommittedRecords
from kafka_broker import KafkaBroker
from pyarrow import dataset

from tidegate.connectors.formats.interface import Format, RecordDecoder, RecordEncoder
from tidegate.connectors.interface import Sink
from tidegate.connectors.kafka.sink.kafka_sink import KafkaSink
from tidegate.jobs.client.staged_data import StagedData
from tidegate.testing.sink_conformance import SinkConformance

_numbers = count()


class NumberText(Format):
    """The column `n` in decimal digits."""

    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def create_decoder(self, columns: Any = None) -> RecordDecoder:
        raise NotImplementedError

    def check_encodable(self, schema: pa.Schema) -> None:
        assert schema.names == ["n"]

    def create_encoder(self, schema: pa.Schema) -> RecordEncoder:
        return _NumberEncoder()


class _NumberEncoder(RecordEncoder):
    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        return batch["n"].cast(pa.string()).cast(pa.binary())


class _OnKafka(SinkConformance):
    broker: KafkaBroker
    folder: Path
    reader: CommittedRecords | None = None
    topic = ""

    @pytest.fixture(autouse=True)
    def places(self, kafka: KafkaBroker, tmp_path: Path) -> Iterator[None]:
        self.broker, self.folder = kafka, tmp_path
        yield
        self._close_reader()

    def _close_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def _sink(self) -> Sink:
        raise NotImplementedError

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self._close_reader()
            self.topic = self.broker.create_topic(f"conform-{next(_numbers)}", 2)
            self.reader = CommittedRecords(self.broker.servers, self.topic)
        return self._sink()

    def visible(self) -> list[int]:
        assert self.reader is not None
        return [int(message.value()) for message in self.reader.read()]

    def read_staged(self, staged: StagedData) -> list[int]:
        files = dataset.dataset(list(staged.paths), format=staged.format)
        return [int(value) for value in files.to_table().column("value").to_pylist()]


@pytest.mark.slow
@pytest.mark.gate
class TestKafkaAppending(_OnKafka):
    """S7.4."""

    def _sink(self) -> Sink:
        return KafkaSink(self.topic, servers=self.broker.servers, value=NumberText(), staging=self.folder / self.topic)


@pytest.mark.slow
class TestKafkaWithKeys(_OnKafka):
    """S7.4: with keys, transactions are committed by checkpoint."""

    def _sink(self) -> Sink:
        text, staging = NumberText(), self.folder / self.topic
        return KafkaSink(self.topic, servers=self.broker.servers, value=text, key="n", key_format=text, staging=staging)
