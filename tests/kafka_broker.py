"""A real Apache Kafka broker for tests: one node (KRaft) on loopback, from Maven's packages.

`python tests/kafka_broker.py` (`make kafka`) fetches the packages once, into `.work/kafka`; the first broker of a test
run does so, too. Besides its plain listener the broker has one that asks for a name and a password, one that does so
over TLS, and one that asks for a certificate of the client.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kafka_certificates import make_certificates

VERSION = "4.1.0"
JARS = Path(__file__).resolve().parents[1] / ".work" / "kafka" / VERSION
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>kafka-broker</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
PASSWORD_VARIABLE = "TIDEGATE_TEST_KAFKA_PASSWORD"
KEY_PASSWORD_VARIABLE = "TIDEGATE_TEST_KAFKA_KEY_PASSWORD"
USER = "reader"
FETCH_LIMIT_S = 300.0
START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
CALL_LIMIT_S = 30.0
PORTS = range(20_000, 32_000)
"""Below the range from which Linux takes ports of outgoing connections, so that a port stays free over a restart."""
JAVA_OPTIONS = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A small broker that starts fast: 7 s to the first answer, 0.3 GB."""
LOG_OPTION = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


def missing() -> str | None:
    """Say which programs a broker needs and this machine has not; None: all are here."""
    programs = ["java"] if JARS.exists() else ["java", "mvn"]
    absent = [program for program in programs if not (_java() if program == "java" else shutil.which(program))]
    return " and ".join(absent) or None


def programs() -> Path | None:
    """The folder with the broker's packages, which are fetched if need be; None: something is missing for that."""
    try:
        return None if missing() else fetch()
    except (OSError, subprocess.TimeoutExpired):  # `make kafka` shows why
        return None


def fetch() -> Path:
    """Fetch the packages unless they are here: 43 MB, 7 s. Parallel calls never see a half-filled folder.

    Raises:
        OSError: Maven fails; with its words.
    """
    if JARS.exists():
        return JARS
    JARS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=JARS.parent) as folder:
        pom, filled = Path(folder, "pom.xml"), Path(folder, "jars")
        pom.write_text(POM)
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        command.append(f"-DoutputDirectory={filled}")
        made = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
        if made.returncode:
            raise OSError(f"Maven did not fetch Kafka's packages: {(made.stdout + made.stderr)[-2000:]}")
        try:
            filled.rename(JARS)
        except OSError:
            if not JARS.exists():  # else another process was faster
                raise
    return JARS


class KafkaBroker:
    """Runs from `start` to `stop`, with its data in a temporary folder; topics are never made by accident.

    Attributes:
        servers: bootstrap address of the plain listener.
        secured_servers: address of the listener with SASL_PLAINTEXT, mechanism PLAIN, user `USER`.
        tls_servers: address of the listener with SASL_SSL, the same mechanism and user.
        mutual_servers: address of the listener with SSL that asks for a certificate of the client.
        certificates: files for these two.
        password: reference to the user's password, which is random and in the environment.
        key_password: reference to the password of the client's key, in the same way.
    """

    password = f"secret:env/{PASSWORD_VARIABLE}"
    key_password = f"secret:env/{KEY_PASSWORD_VARIABLE}"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
        plain, secured, tls, mutual, controller = _free_ports(5)
        self.tls_servers, self.mutual_servers = f"127.0.0.1:{tls}", f"127.0.0.1:{mutual}"
        self.certificates = make_certificates(self.folder / "certificates")
        self.servers = f"127.0.0.1:{plain}"
        self.secured_servers = f"127.0.0.1:{secured}"
        self._controller = f"127.0.0.1:{controller}"
        self._secret = secrets.token_urlsafe(12)
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: Any = None

    def start(self) -> None:
        """Start the broker and wait until it answers; after `kill` or `stop(keep=True)`: on the same data and ports."""
        os.environ[PASSWORD_VARIABLE] = self._secret
        os.environ[KEY_PASSWORD_VARIABLE] = self.certificates.key_password
        jars = fetch()
        settings = self.folder / "server.properties"
        java = [_java() or "java", *JAVA_OPTIONS, LOG_OPTION, "-cp", f"{jars}/*"]
        if not settings.exists():
            settings.touch(mode=0o600)
            settings.write_text(self._settings())
            cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            # With `=`, because the id may begin with a minus.
            command = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(settings)]
            made = subprocess.run(command, capture_output=True, text=True, timeout=START_LIMIT_S, check=False)
            assert made.returncode == 0, made.stdout + made.stderr
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            alive = self._process.poll() is None and time.monotonic() < deadline
            assert alive, (self.folder / "log").read_text()[-4000:]
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9; the data stay."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """End the broker as an operator does, and start it on the same data and ports."""
        self._end(signal.SIGTERM)
        self.start()

    def stop(self, *, keep: bool = False) -> None:
        """End the broker. Args: keep: leave its data for another `start`."""
        if keep:
            self._end(signal.SIGTERM)
            return
        self._end(signal.SIGKILL)  # nobody needs the data
        self._admin = None
        os.environ.pop(PASSWORD_VARIABLE, None)
        os.environ.pop(KEY_PASSWORD_VARIABLE, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def admin(self) -> Any:
        """The `AdminClient`; one for the broker's life, since futures end with the client that made them."""
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        return self._admin

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Create a topic and wait until clients see all its partitions. Args: config: with `_` instead of `.`."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        # Tests write old timestamps, too; by default the broker deletes such records after a while.
        settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        topic = NewTopic(name, partitions, 1, config=settings)
        try:
            self.admin().create_topics([topic])[name].result(CALL_LIMIT_S)
        except KafkaException as error:
            # Each test uses a name of its own. The client repeats a request whose answer is late, and the broker
            # refuses the second one.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        self._until_partitions(name, partitions)
        return name

    def add_partitions(self, name: str, total: int) -> None:
        """Increase the number of a topic's partitions to `total`."""
        from confluent_kafka.admin import NewPartitions

        self.admin().create_partitions([NewPartitions(name, total)])[name].result(CALL_LIMIT_S)
        self._until_partitions(name, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until no client sees it."""
        self.admin().delete_topics([name])[name].result(CALL_LIMIT_S)
        self._until_partitions(name, 0)

    def delete_records(self, name: str, partition: int, before: int) -> None:
        """Delete a partition's records before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        [done] = self.admin().delete_records([TopicPartition(name, partition, before)]).values()
        done.result(CALL_LIMIT_S)

    def produce(
        self,
        name: str,
        values: Iterable[bytes | None],
        partition: int = 0,
        *,
        key: bytes | None = None,
        timestamp_ms: int = 0,
        headers: list[tuple[str, bytes | None]] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Write records to one partition, in order, and wait until the broker has all of them.

        Args:
            timestamp_ms: of the first record, each later one 1 ms after the one before; 0: now.
        """
        from confluent_kafka import Producer

        failed: list[Any] = []
        own = {"bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
        producer = Producer({**own, **(settings or {})})

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for i, value in enumerate(values):
            time_ms = {"timestamp": timestamp_ms + i} if timestamp_ms else {}
            while True:
                try:
                    producer.produce(
                        name, value, key, partition, on_delivery=delivered, headers=headers or [], **time_ms
                    )
                    break
                except BufferError:  # the queue is full
                    producer.poll(0.1)
        unsent = producer.flush(START_LIMIT_S)
        assert not failed and not unsent, (failed[:3], unsent)

    def abort(self, name: str, values: Iterable[bytes], partition: int = 0) -> None:
        """Write records in a transaction, and abort it: `read_committed` readers never see them."""
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": f"aborting-{uuid.uuid4()}", "log_level": 0}
        )
        producer.init_transactions(CALL_LIMIT_S)
        producer.begin_transaction()
        for value in values:
            producer.produce(name, value, partition=partition)
        assert not producer.flush(CALL_LIMIT_S)
        producer.abort_transaction(CALL_LIMIT_S)

    def read(self, name: str, *, committed: bool = True) -> list[Any]:
        """Read all messages of a topic that are there now, by partition and offset.

        Args:
            committed: without records of open and aborted transactions.
        """
        from confluent_kafka import Consumer, TopicPartition

        isolation = "read_committed" if committed else "read_uncommitted"
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "tidegate-tests",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        try:
            partitions = sorted(consumer.list_topics(name, CALL_LIMIT_S).topics[name].partitions)
            consumer.assign([TopicPartition(name, partition, 0) for partition in partitions])
            found: list[Any] = []
            unread = set(partitions)
            deadline = time.monotonic() + START_LIMIT_S
            while unread:
                assert time.monotonic() < deadline, f"partitions {unread} of {name} do not end"
                message = consumer.poll(0.2)
                if message is None:
                    continue
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    unread.discard(message.partition())
            return sorted(found, key=lambda m: (m.partition(), m.offset()))
        finally:
            consumer.close()

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STOP_LIMIT_S)
            self._process = None

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            return bool(self.admin().list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False

    def _until_partitions(self, name: str, total: int) -> None:
        deadline = time.monotonic() + CALL_LIMIT_S
        while True:
            known = self.admin().list_topics(timeout=CALL_LIMIT_S).topics.get(name)
            led = [p for p in known.partitions.values() if p.leader >= 0] if known else []
            if len(led) == total:
                return
            assert time.monotonic() < deadline, f"topic {name} has {len(led)} partitions, not {total}"
            time.sleep(0.05)

    def _settings(self) -> str:
        plain, secured, controller = self.servers, self.secured_servers, self._controller
        tls, mutual = self.tls_servers, self.mutual_servers
        login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{self._secret}";'
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{plain},SECURED://{secured},TLS://{tls},MUTUAL://{mutual},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{plain},SECURED://{secured},TLS://{tls},MUTUAL://{mutual}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURED:SASL_PLAINTEXT,TLS:SASL_SSL,MUTUAL:SSL,"
            "CONTROLLER:PLAINTEXT",
            "listener.name.mutual.ssl.client.auth": "required",
            **{f"listener.name.{name}.sasl.enabled.mechanisms": "PLAIN" for name in ("secured", "tls")},
            **{f"listener.name.{name}.plain.sasl.jaas.config": login for name in ("secured", "tls")},
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority),
            "log.dirs": str(self.folder / "data"),
            "num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # A killed broker may register again after this time: 9 s by default.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            "transaction.max.timeout.ms": "900000",
            "auto.create.topics.enable": "false",
        }
        return "".join(f"{key}={value}\n" for key, value in lines.items())


def _java() -> str | None:
    """The `java` of JAVA_HOME, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def _free_ports(n: int) -> list[int]:
    """Ports on which nobody listens."""
    found: list[int] = []
    while len(found) < n:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


if __name__ == "__main__":
    print(fetch())
