"""TLS between the Kafka source and sink and a real broker: authorities, certificates of clients, locked keys (S9.1)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import RealJob
from kafka_broker import KEY_PASSWORD_VARIABLE, PASSWORD_VARIABLE, USER, KafkaBroker
from test_kafka_on_spark import FROM_KAFKA, Ledger, stopped
from test_kafka_sink import PLAIN, commit, context, values
from test_kafka_source import everything, reading, splits_of

from tidegate import Kafka, KafkaSink
from tidegate.cli.job_output import view_document, view_lines
from tidegate.errors import OutageError, PipelineError, TidegateError

_numbers = count()
AT_ONCE_S = 20.0
"""Longer than a handshake, and shorter than a request takes to time out."""


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic(f"tls-{next(_numbers)}")


def login(kafka: KafkaBroker, **other: Any) -> dict[str, Any]:
    """User and password over TLS."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": kafka.password,
        "ssl.ca.location": str(kafka.certificates.authority),
        **other,
    }


def mutual(kafka: KafkaBroker, **other: Any) -> dict[str, Any]:
    """A certificate of the client, whose key is encrypted."""
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(kafka.certificates.authority),
        "ssl.certificate.location": str(kafka.certificates.client),
        "ssl.key.location": str(kafka.certificates.client_key),
        "ssl.key.password": kafka.key_password,
        **other,
    }


def with_key_in_settings(kafka: KafkaBroker) -> dict[str, Any]:
    """The key itself is the secret."""
    settings = mutual(kafka, **{"ssl.key.pem": f"secret:file{kafka.certificates.client_key}"})
    del settings["ssl.key.location"]
    return settings


@pytest.mark.parametrize(
    ("listener", "settings"),
    [("tls_servers", login), ("mutual_servers", mutual), ("mutual_servers", with_key_in_settings)],
)
def test_records_are_written_and_read_over_tls(
    kafka: KafkaBroker,
    topic: str,
    tmp_path: Path,
    listener: str,
    settings: Callable[[KafkaBroker], dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S7.4, S4.2; no text contains a secret."""
    caplog.set_level("DEBUG")
    servers = getattr(kafka, listener)
    sink = KafkaSink(topic, servers=servers, settings=settings(kafka), staging=tmp_path)
    sink.check(PLAIN)
    sink.check_fresh_start(context())
    writer = sink.create_writer(context())
    commit(writer, 1, values("a", "b"))
    writer.close()
    source = Kafka(topic, servers=servers, settings=settings(kafka), until="latest")
    source.check_fresh_start()
    assert everything(source) == [b"a", b"b"]
    told = [source.describe(), sink.describe(), repr(splits_of(source)), caplog.text]
    assert not [text for text in told for secret in secrets_of(kafka) if secret in text]


def secrets_of(kafka: KafkaBroker) -> list[str]:
    """The passwords, and a line of the key."""
    key_line = kafka.certificates.client_key.read_text().splitlines()[1]
    return [os.environ[PASSWORD_VARIABLE], os.environ[KEY_PASSWORD_VARIABLE], key_line]


def errors_of(kafka: KafkaBroker, topic: str, settings: dict[str, Any], listener: str, folder: Path) -> list[Any]:
    """The errors of each place that connects: before the start, in the driver, in a reader, and of the sink."""
    servers = getattr(kafka, listener)
    splits = splits_of(Kafka(topic, servers=kafka.servers))
    source = Kafka(topic, servers=servers, settings=settings)

    def read() -> None:
        with reading(source, splits) as loop:
            loop.until(lambda _: False)

    found = []
    for call in (
        source.check_fresh_start,
        lambda: source.create_enumerator(None).discover(),
        read,
        lambda: KafkaSink(topic, servers=servers, settings=settings, staging=folder).check(PLAIN),
    ):
        with pytest.raises(TidegateError) as raised:
            call()
        found.append(raised.value)
    return found


def test_an_unknown_authority_is_refused_and_named(
    kafka: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no outage: another attempt fails, too."""
    monkeypatch.setattr("tidegate.connectors.kafka.sink.topics.ANSWER_TIMEOUT_S", 3.0)
    settings = login(kafka, **{"ssl.ca.location": str(kafka.certificates.stranger)})
    began_s = time.monotonic()
    for error in errors_of(kafka, topic, settings, "tls_servers", tmp_path):
        assert not isinstance(error, OutageError) and "certificate verify failed" in error.cause
        assert error.remedy.startswith("Set ssl.ca.location in settings=")
    assert time.monotonic() - began_s < 3 * AT_ONCE_S


def test_a_client_without_a_certificate_is_refused_and_told_so(
    kafka: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.connectors.kafka.sink.topics.ANSWER_TIMEOUT_S", 3.0)
    settings = {"security.protocol": "SSL", "ssl.ca.location": str(kafka.certificates.authority)}
    for error in errors_of(kafka, topic, settings, "mutual_servers", tmp_path):
        assert not isinstance(error, OutageError) and error.remedy.startswith("Set ssl.certificate.location"), error


def test_a_wrong_password_of_the_key_is_refused_and_not_shown(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_KEY_WORD", "swordfish-planted")
    settings = mutual(kafka, **{"ssl.key.password": "secret:env/WRONG_KEY_WORD"})
    with pytest.raises(PipelineError, match=r"settings of the Kafka client are wrong.*ssl\.key\.location") as raised:
        Kafka(topic, servers=kafka.mutual_servers, settings=settings).check_fresh_start()
    assert "swordfish" not in f"{raised.value} {raised.value.__cause__}"


def test_a_job_on_spark_reads_with_a_certificate_and_no_secret_is_left(local_job: RealJob, kafka: KafkaBroker) -> None:
    """S4.3; job directory, logs and status."""
    ledger = Ledger(local_job, kafka, 2, settings=mutual(kafka), servers=kafka.mutual_servers)
    ledger.write(2_000, 0, 1)
    local_job.start(rows=0, rate=0.0, pipeline=FROM_KAFKA)
    local_job.completed(1)
    ledger.until_committed()
    view = local_job.client.view()
    stopped(local_job, "drain")
    told = [local_job.logs(), json.dumps(view_document(view)), *view_lines(view)]
    files = [path.read_bytes() for path in Path(local_job.root).rglob("*") if path.is_file()]
    for secret in secrets_of(kafka):
        assert not [text for text in told if secret in text]
        assert not [content for content in files if secret.encode() in content]
