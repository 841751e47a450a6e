"""The broker of the tests: what other tests rely on."""

from __future__ import annotations

from kafka_broker import KafkaBroker


def test_records_and_topics_survive_a_killed_broker(kafka: KafkaBroker) -> None:
    kafka.create_topic("survivors", 2)
    kafka.produce("survivors", [b"a", b"b"], 0)
    kafka.produce("survivors", [b"c", None], 1, key=b"k", timestamp_ms=1_000, headers=[("h", b"1")])

    kafka.kill()
    kafka.start()
    kafka.produce("survivors", [b"d"], 0)

    found = [(m.partition(), m.offset(), m.value()) for m in kafka.read("survivors")]
    assert found == [(0, 0, b"a"), (0, 1, b"b"), (0, 2, b"d"), (1, 0, b"c"), (1, 1, None)]


def test_the_secured_listener_wants_the_password(kafka: KafkaBroker) -> None:
    import os

    from confluent_kafka.admin import AdminClient
    from kafka_broker import PASSWORD_VARIABLE, USER

    settings = {
        "bootstrap.servers": kafka.secured_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "log_level": 0,
    }
    client = AdminClient({**settings, "sasl.password": os.environ[PASSWORD_VARIABLE]})
    assert client.list_topics(timeout=20).brokers
    refused: list[str] = []
    wrong = AdminClient({**settings, "sasl.password": "wrong", "error_cb": lambda e: refused.append(e.name())})
    while "_AUTHENTICATION" not in refused:
        wrong.poll(1)
