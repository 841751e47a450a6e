"""KafkaSink: a sink that writes to topics of Kafka with two-phase commit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

import pyarrow as pa
from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.file_leftovers import FileLeftovers
from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.files.sink.staged_files import quarantine_files, staged_files
from tidegate.connectors.formats.interface import Format
from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.kafka.cluster import KafkaCluster, load_confluent_kafka
from tidegate.connectors.kafka.sink.client_errors import RIGHTS, as_tidegate_error, error_of
from tidegate.connectors.kafka.sink.kafka_writer import KafkaWriter, attempt_name
from tidegate.connectors.kafka.sink.marked_producer import KafkaClients, MarkedProducer
from tidegate.connectors.kafka.sink.record_columns import Changes, RecordColumns, RecordsOfRows
from tidegate.connectors.kafka.sink.topics import KafkaTopics, RecordPlaces, target_problems
from tidegate.connectors.leftovers import LeftoverReport, NeededTransactions
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.storage import absolute_url, check_target_folder, open_filesystem
from tidegate.connectors.transactions import Committable, SinkContext, TransactionId, parse_transaction_id
from tidegate.errors import OptionError, PipelineError, TidegateError
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity
from tidegate.jobs.secrets import check_no_plain_secrets
from tidegate.units import parse_duration

DEFAULT_TRANSACTION_TIMEOUT = "5 min"
"""A third of the default limit of brokers, and time for some 100 million records of 100 bytes. A run that dies while it
commits, and is never restored, delays readers of committed records for as long."""
DEFAULT_MESSAGE_BYTES = 1_000_000
"""The client's default of `message.max.bytes`."""
RESERVED = (
    "acks",
    "bootstrap.servers",
    "enable.idempotence",
    "group.id",
    "transaction.timeout.ms",
    "transactional.id",
)
"""Settings that the guarantee depends on, or that are options of the sink."""
NEEDED_OPERATIONS = ("WRITE", "READ", "DESCRIBE")
"""Operations on the topic. READ is needed for the marker's offset."""
TOPIC_PARTS = ("partitions", "replication_factor", "settings")


class KafkaSink(Sink):
    """Writes each row as a record of a Kafka topic.

    Guarantee: exactly once, end to end, for consumers with `isolation.level=read_committed`. Each row before a
    completed checkpoint's barrier is in the topic once, whatever fails (S7.4). The records of one subtask and
    checkpoint become visible at one instant. Between checkpoints no transaction is open, so such consumers never wait
    for a checkpoint, and no transaction times out while a commit waits for an approval. `KafkaWriter` describes staging
    and commit.

    Needs `pip install 'tidegate[kafka]'`, and brokers of Kafka 2.5 or newer.

    Args:
        topic: topic of the records, and of the sink's commit markers.
        servers: bootstrap servers: "host:port", several separated by commas or in a list.
        value: format that encodes the value; or the name of a text or binary column that holds it. In such a column a
            null makes a tombstone.
        value_columns: columns that the format gets. None: all that `headers`, `partition`, `timestamp` and
            `topic_column` do not name, including key columns.
        key: column or columns of the key. Without `key_format` it is one text or binary column.
        key_format: format that encodes the key columns.
        changes: for rows with a kind of change (`change_rows`): "upsert" makes records for a compacted topic, so
            inserted and updated rows are values, deleted rows are tombstones, and states before an update are left out;
            it needs `key`. "encode" leaves the kind to the format.
        headers: a column of maps, or of lists of structs of `key` and `value`; or text or binary columns, each of which
            is a header of its name if it is not null.
        partition: integer column with the partition. None, or a null: the partitioner decides by the key, as Java
            clients do; `settings={"partitioner": ...}` chooses another one.
        timestamp: column with the record's time, a timestamp or int64 milliseconds. None, or a null: the time of the
            commit.
        topic_column: text column with the topic, for rows that do not go to `topic`. A null means `topic`.
        create: create `topic` at a fresh start if it does not exist: a mapping with any of `partitions`,
            `replication_factor` and `settings`.
        settings: settings of librdkafka, such as `security.protocol`; secrets are references. They also tune the
            producer (`compression.type`: lz4 by default).
        transaction_timeout: longest duration of one commit, at most `transaction.max.timeout.ms` of the brokers. A
            longer commit fails, and is repeated.
        staging: folder for staged records, a path that all slots and the driver share, or a fsspec URL. None: the job's
            directory.
        staging_options: fsspec options of `staging`; values may be references to secrets.

    Raises:
        OptionError: an option is wrong, or a secret is in plain text.
    """

    def __init__(
        self,
        topic: str,
        *,
        servers: str | Sequence[str],
        value: Format | str = "value",
        value_columns: Sequence[str] | None = None,
        key: str | Sequence[str] = (),
        key_format: Format | None = None,
        changes: Changes = "upsert",
        headers: str | Sequence[str] = (),
        partition: str | None = None,
        timestamp: str | None = None,
        topic_column: str | None = None,
        create: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        transaction_timeout: str | timedelta = DEFAULT_TRANSACTION_TIMEOUT,
        staging: str | os.PathLike[str] | None = None,
        staging_options: Mapping[str, Any] | None = None,
    ) -> None:
        keys = _names(key)
        _check_options(topic, keys, key_format, value, value_columns, changes, create, settings or {})
        timeout = parse_duration(transaction_timeout, where="KafkaSink(transaction_timeout=)")
        if timeout < timedelta(seconds=1):
            raise _option("transaction_timeout is too short", "transaction_timeout", "Pass at least 1 s")
        check_no_plain_secrets(staging_options, where="KafkaSink(staging_options=)", storage=True)
        addresses = servers if isinstance(servers, str) else ",".join(servers)
        self._cluster = KafkaCluster(addresses, dict(settings or {}))
        self._topic = topic
        self._columns = RecordColumns(
            value=value,
            value_columns=None if value_columns is None else tuple(value_columns),
            key=keys,
            key_format=key_format,
            headers=_names(headers),
            partition=partition,
            timestamp=timestamp,
            topic=topic_column,
            changes=changes,
        )
        self._create = None if create is None else dict(create)
        self._timeout = timeout
        self._staging = None if staging is None else absolute_url(staging)
        self._staging_options = dict(staging_options or {})

    # ------------------------------------------------------------ checks

    def check(self, schema: pa.Schema) -> None:
        """Check, before anything runs, that rows can become records, and that the brokers have the topic.

        Changes nothing.

        Raises:
            PipelineError: a column, a format, the topic, or the staging folder does not fit.
            OutageError: the brokers do not answer.
        """
        self._columns.check(schema, self._where)
        if self._staging is not None:
            check_target_folder(*open_filesystem(self._staging, self._staging_options), self._staging)
        self._check_topic(may_be_missing=self._create is not None)

    def _check_topic(self, *, may_be_missing: bool) -> bool:
        """Check the topic, and return whether it exists."""
        topics = KafkaTopics(self._cluster)
        facts = topics.describe([self._topic]).get(self._topic)
        if facts is None and may_be_missing:
            return False
        settings = topics.settings(self._topic) if facts is not None else {}
        problems = target_problems(
            facts,
            settings,
            keyed=bool(self._columns.key),
            max_record_bytes=self._max_record_bytes,
            needed=NEEDED_OPERATIONS,
        )
        if problems:
            raise PipelineError(
                "the sink cannot write to the topic",
                where=self._where,
                cause="; ".join(problems),
                remedy=f"Fix the topic, or the options of the sink; create={{}} creates a missing topic. {RIGHTS}",
            )
        return True

    def check_fresh_start(self, ctx: SinkContext) -> None:
        """Check that the sink may run transactions. With `create`, the driver creates a missing topic.

        Raises:
            PipelineError: the topic does not fit, or the brokers refuse transactions or groups of this job.
            OutageError: the brokers do not answer.
        """
        is_there = self._check_topic(may_be_missing=self._create is not None)
        if not ctx.lineage:
            return
        if not is_there and self._create is not None:
            made = self._create
            KafkaTopics(self._cluster).create(
                self._topic,
                int(made.get("partitions", -1)),
                int(made.get("replication_factor", -1)),
                {name: str(value) for name, value in made.get("settings", {}).items()},
            )
        # Nothing of this lineage runs yet, so that this fences nobody.
        writer = TransactionId(ctx.job_id, ctx.lineage, ctx.uid, 0, 0, 0, "", 0).writer
        clients = self._clients()
        producer = MarkedProducer(clients, writer, self._topic, self._timeout.total_seconds())
        try:
            producer.open()
        except clients.error as e:
            found = as_tidegate_error(
                "the sink cannot begin transactions", error_of(e), where=self._where, problem=producer.problem()
            )
            if type(found) is not TidegateError:
                raise found from None
            raise PipelineError(found.what, where=found.where, cause=found.cause, remedy=found.remedy) from None
        finally:
            producer.close()

    # ------------------------------------------------------------ writing

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer. It connects when it first has something to commit or to end."""
        load_confluent_kafka()
        filesystem, layout = self._place(ctx)
        return KafkaWriter(
            filesystem,
            layout,
            ctx,
            RecordsOfRows(self._columns, ctx.schema, self._max_record_bytes, self._where),
            self._clients(),
            self._topic,
            self._timeout.total_seconds(),
            RecordPlaces(KafkaTopics(self._cluster), self._topic, self._where, keyed=bool(self._columns.key)),
        )

    def _clients(self) -> KafkaClients:
        return KafkaClients(self._cluster, self._timeout // timedelta(milliseconds=1))

    def _place(self, ctx: SinkContext) -> tuple[AbstractFileSystem, FileLayout]:
        url, options = self._staging_place(ctx)
        filesystem, root = open_filesystem(url, options)
        return filesystem, FileLayout(root, ctx)

    def _staging_place(self, ctx: SinkContext) -> tuple[str, Mapping[str, Any]]:
        if self._staging is not None:
            return self._staging, self._staging_options
        if ctx.storage is None:
            raise OptionError(
                "the sink has no place to stage records",
                where=self._where,
                cause="this runner of the pipeline has no job directory",
                remedy="Pass staging= with a folder that all slots and the driver share",
            )
        return ctx.storage

    # ------------------------------------------------------------ capabilities

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """Return the Arrow files in the staging folder: keys and values as bytes, in the columns of `STAGED_SCHEMA`."""
        url, options = self._staging_place(ctx)
        root = open_filesystem(url, options)[1]
        return staged_files(url, FileLayout(root, ctx), ctx.uid, checkpoint_id, handle)

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Move the staged files to quarantine."""
        filesystem, layout = self._place(ctx)
        quarantine_files(filesystem, layout, ctx, committables, into)

    def collect(self, ctx: SinkContext, needed: NeededTransactions, *, dry_run: bool = False) -> LeftoverReport:
        """Remove staged files and attempt records that nothing needs, and pack marker files.

        Markers in the brokers expire there, some days after the last commit.
        """
        filesystem, layout = self._place(ctx)
        if needed.handles is not None:
            needed = replace(needed, handles=[_with_attempt(handle) for handle in needed.handles])
        return FileLeftovers(filesystem, layout, needed).collect(dry_run=dry_run)

    def identity(self) -> SinkIdentity:
        """Return servers, topic and key."""
        options: dict[str, Any] = {"key": list(self._columns.key)} if self._columns.key else {}
        if self._columns.topic is not None:
            options["topic_column"] = self._columns.topic
        return SinkIdentity("KafkaSink", (self._cluster.place, self._topic), options)

    @property
    def _where(self) -> str:
        return f"{self._cluster.place}, topic {self._topic}"

    @property
    def _max_record_bytes(self) -> int:
        return int(self._cluster.settings.get("message.max.bytes", DEFAULT_MESSAGE_BYTES))


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _option(what: str, option: str, remedy: str) -> OptionError:
    return OptionError(what, where=f"KafkaSink({option}=...)", remedy=remedy)


def _check_options(
    topic: str,
    keys: Sequence[str],
    key_format: Format | None,
    value: Format | str,
    value_columns: Sequence[str] | None,
    changes: str,
    create: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> None:
    if not topic.strip():
        raise _option("topic is empty", "topic", "Pass the name of a topic")
    if len(keys) > 1 and key_format is None:
        raise _option(f"{len(keys)} key columns have no format", "key", "Pass key_format=, or a single key column")
    if key_format is not None and not keys:
        raise _option("key_format has no columns", "key", "Pass the key columns")
    if value_columns is not None and isinstance(value, str):
        raise _option("value_columns needs a format", "value", "Pass a format, or omit value_columns")
    if changes not in get_args(Changes):
        raise _option(f"changes={changes!r} is unknown", "changes", "Use upsert or encode")
    if unknown := sorted(set(create or {}) - set(TOPIC_PARTS)):
        raise _option(f"{unknown[0]!r} is unknown", "create", f"Use {', '.join(TOPIC_PARTS)}")
    if reserved := sorted(set(settings) & set(RESERVED)):
        remedy = "Remove it from settings="
        if reserved[0] == "transaction.timeout.ms":
            remedy += ", and pass transaction_timeout="
        raise _option(f"the sink sets {reserved[0]!r} itself", "settings", remedy)


def _with_attempt(handle: Committable) -> Committable:
    """Return the handle with its attempt record among the files, so that the record is kept as they are."""
    made = parse_transaction_id(handle.transaction_id)
    files = [*handle.data["files"], {"staged": attempt_name(made)}]
    return Committable(handle.transaction_id, {**handle.data, "files": files})
