"""What the crash matrix runs: a job into two sinks of one kind, the ways it may end, and what must be in the sinks."""

from __future__ import annotations

import json
import os
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.dataset as ds
from builders.data_sinks import Rows
from builders.data_sinks import Target as DataSourceTarget
from committed_records import CommittedRecords
from postgres_server import PASSWORD_VARIABLE

from tidegate import (
    Csv,
    DataGen,
    Delta,
    Iceberg,
    JsonLines,
    KafkaSink,
    Parquet,
    Pipeline,
    Postgres,
    PySparkSink,
    count,
    sum,
    tumbling,
)
from tidegate.connectors.formats.interface import Format, RecordDecoder, RecordEncoder
from tidegate.connectors.interface import Sink
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected

KEYS = 5
WINDOW_MS = 50
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
ROWS = 160
RATE = 200.0
"""Rows a second."""
RAW, WINDOWS = "raw", "windows"
DATA_SOURCES = ("PySparkStream", "PySparkBatch")
"""`PySparkSink` with a commit for each checkpoint, and with one commit of all rows."""
UPSERTS = "Upserts"
"""End of the name of a sink that upserts the rows, by their values."""

Row = tuple[int, ...]


def rows(numbers: Any) -> dict[str, Any]:
    """Rows by number: key, value, time in milliseconds."""
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms"))}


def window_starts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Times as whole milliseconds, which every format keeps alike."""
    for batch in batches:
        starts = batch["window_start"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        yield pa.record_batch([batch["k"], starts, batch["n"], batch["total"]], schema=WINDOW_SCHEMA)


WINDOW_SCHEMA = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])


def into(sink: Callable[[str], Sink], total: int = ROWS, rate: float = RATE) -> Pipeline:
    """Every row as it is read into one sink, windows of them into another: chains with and without an exchange."""
    p = Pipeline()
    numbers = p.read(DataGen(rows, SCHEMA, rows=total, splits=2, rate=rate), uid="numbers")
    numbers.select("k", "v").write(sink(RAW), uid=RAW)
    (
        numbers.with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling(f"{WINDOW_MS} ms"))
        .agg(n=count(), total=sum("v"), uid="per-window")
        .map_in_arrow(window_starts, WINDOW_SCHEMA, uid="starts")
        .write(sink(WINDOWS), uid=WINDOWS)
    )
    return p


def expected_raw(total: int) -> list[Row]:
    """(k, v) of every row."""
    return [(n % KEYS, n) for n in range(total)]


def expected_windows(total: int) -> list[Row]:
    """(k, window start in ms, rows, sum)."""
    found: dict[tuple[int, int], list[int]] = {}
    for n in range(total):
        entry = found.setdefault((n % KEYS, n // WINDOW_MS * WINDOW_MS), [0, 0])
        entry[0] += 1
        entry[1] += n
    return [(k, w, n, total) for (k, w), (n, total) in found.items()]


def together(windows: Iterable[Row]) -> list[Row]:
    """Panes of one window added up: a drain fires windows early, and the restored job the rest of them."""
    found: dict[tuple[int, int], list[int]] = {}
    for k, w, n, total in windows:
        entry = found.setdefault((k, w), [0, 0])
        entry[0] += n
        entry[1] += total
    return [(k, w, n, total) for (k, w), (n, total) in found.items()]


@dataclass(frozen=True)
class Found:
    """How a case came out.

    Attributes:
        lost, duplicated: rows of both sinks.
        stuck: why it did not come to its end; empty: it did.
    """

    lost: int
    duplicated: int
    stuck: str = ""

    @property
    def is_right(self) -> bool:
        """Nothing was."""
        return not (self.lost or self.duplicated or self.stuck)


def compare(found: Iterable[Row], wanted: Iterable[Row]) -> tuple[int, int]:
    """Rows lost, rows too many."""
    there, asked = Counter(found), Counter(wanted)
    return (asked - there).total(), (there - asked).total()


class Target(ABC):
    """Where a job of one kind of sink writes to; empty at first."""

    @abstractmethod
    def sink(self, name: str) -> Sink:
        """Into the table or folder `name`."""

    @abstractmethod
    def rows(self, name: str) -> list[Row]:
        """What readers see in it."""

    def close(self) -> None:
        """The case is over."""

    def arguments(self) -> dict[str, str]:
        """From which `sink_of` makes the same sinks in another process."""
        raise NotImplementedError

    def judge(self, stuck: str, *, fired_early: bool, total: int = ROWS) -> Found:
        """What the job made of its `total` input rows, if it came to its end."""
        if stuck:
            return Found(0, 0, stuck)
        windows = self.rows(WINDOWS)
        lost_rows, repeated_rows = compare(self.rows(RAW), expected_raw(total))
        lost, repeated = compare(together(windows) if fired_early else windows, expected_windows(total))
        return Found(lost_rows + lost, repeated_rows + repeated)


def sink_of(arguments: Mapping[str, str], name: str) -> Sink:
    """Of `Target.arguments`."""
    if arguments["kind"] == "Postgres":
        return Postgres(arguments["dsn"], name, password=arguments["password"])
    # A value comes once. A window that a drain fires early has two rows.
    upserts: Any = {"mode": "upsert", "key": "v"} if arguments["kind"].endswith(UPSERTS) and name == RAW else {}
    kind = arguments["kind"].removesuffix(UPSERTS)
    if kind == "Iceberg":
        return Iceberg(f"crash.{name}", catalog=iceberg_catalog(arguments["folder"]), create=True, **upserts)
    path = f"{arguments['folder']}/{name}"
    if kind == "Delta":
        return Delta(path, **upserts)
    if kind == "Kafka":
        return KafkaSink(f"{arguments['topics']}-{name}", servers=arguments["servers"], value=JsonRow(), staging=path)
    if kind in DATA_SOURCES:
        stream = kind == "PySparkStream"
        return PySparkSink(Rows, options={"path": path}, stream=stream, staging=f"{arguments['folder']}/staging-{name}")
    makers: dict[str, Callable[[str], Sink]] = {"Parquet": Parquet, "Csv": Csv, "JsonLines": JsonLines}
    return makers[kind](path)


def iceberg_catalog(folder: str) -> dict[str, str]:
    """Properties of a catalog of Iceberg tables in a folder."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


class Collected(Target):
    """Memory of this process."""

    def __init__(self, name: str) -> None:
        self._name = name

    def sink(self, name: str) -> Sink:
        return CollectSink(f"{self._name}-{name}")

    def rows(self, name: str) -> list[Row]:
        return list(collected(f"{self._name}-{name}").rows())  # type: ignore[arg-type]

    def close(self) -> None:
        for name in (RAW, WINDOWS):
            clear_collected(f"{self._name}-{name}")


class Folders(Target):
    """Files below a folder."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self._kind = kind
        self._format = kind.removesuffix(UPSERTS)
        if self._format == "Iceberg":
            folder.mkdir(exist_ok=True)
            with self._catalog() as catalog:
                catalog.create_namespace_if_not_exists("crash")

    def _catalog(self) -> AbstractContextManager[Any]:
        from pyiceberg.catalog import load_catalog

        return closing(load_catalog("default", **iceberg_catalog(str(self._folder))))

    def sink(self, name: str) -> Sink:
        return sink_of(self.arguments(), name)

    def arguments(self) -> dict[str, str]:
        return {"kind": self._kind, "folder": str(self._folder)}

    def rows(self, name: str) -> list[Row]:
        if self._format == "Iceberg":
            with self._catalog() as catalog:
                if not catalog.table_exists(f"crash.{name}"):
                    return []
                shown = catalog.load_table(f"crash.{name}").scan().to_arrow()
                return [tuple(row.values()) for row in shown.to_pylist()]
        folder = self._folder / name
        if self._kind in DATA_SOURCES:
            return [tuple(row.values()) for row in DataSourceTarget(folder).rows()]
        if not folder.exists():
            return []
        if self._format == "Delta":
            from deltalake import DeltaTable

            return [tuple(row.values()) for row in DeltaTable(str(folder)).to_pyarrow_table().to_pylist()]
        shown = sorted(p for p in folder.iterdir() if p.is_file() and p.name[0] not in "._")
        read = {"Parquet": _parquet_rows, "Csv": _csv_rows, "JsonLines": _json_rows}[self._kind]
        return [row for path in shown for row in read(path)]


def _parquet_rows(path: Path) -> list[Row]:
    return [tuple(row.values()) for row in ds.dataset(str(path), format="parquet").to_table().to_pylist()]


def _csv_rows(path: Path) -> list[Row]:
    return [tuple(row.values()) for row in pc_csv.read_csv(str(path)).to_pylist()]


def _json_rows(path: Path) -> list[Row]:
    return [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]


class JsonRow(Format):
    """A row as a list in JSON."""

    def schema(self) -> pa.Schema:
        raise NotImplementedError

    def create_decoder(self, columns: Any = None) -> RecordDecoder:
        raise NotImplementedError

    def check_encodable(self, schema: pa.Schema) -> None:
        assert schema.names

    def create_encoder(self, schema: pa.Schema) -> RecordEncoder:
        return _JsonRowEncoder()


class _JsonRowEncoder(RecordEncoder):
    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([json.dumps(list(row.values())).encode() for row in batch.to_pylist()], pa.binary())


@dataclass(frozen=True)
class PostgresAddress:
    """Of a server that runs: of its superuser, without the password; and the reference to that."""

    dsn: str
    password: str


@dataclass(frozen=True)
class Servers:
    """Those that run for the sinks of a matrix. kafka: bootstrap servers, or empty."""

    postgres: PostgresAddress | None = None
    kafka: str = ""


class Tables(Target):
    """Tables of a PostgreSQL server, in a database of this process's own."""

    def __init__(self, address: PostgresAddress) -> None:
        self._password = address.password
        self.dsn = address.dsn
        name = f"crash_{os.getpid()}"
        with self._connect() as sql:
            if sql.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                sql.execute(f"CREATE DATABASE {name}")
        self.dsn = address.dsn.replace("dbname=postgres", f"dbname={name}")
        with self._connect() as sql:
            sql.execute("DROP SCHEMA IF EXISTS tidegate CASCADE")
            sql.execute(f"DROP TABLE IF EXISTS {RAW}, {WINDOWS}")
            sql.execute(f"CREATE TABLE {RAW} (k int8, v int8)")
            sql.execute(f"CREATE TABLE {WINDOWS} (k int8, w int8, n int8, total int8)")

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self.dsn, password=os.environ[PASSWORD_VARIABLE], autocommit=True)

    def sink(self, name: str) -> Sink:
        return sink_of(self.arguments(), name)

    def arguments(self) -> dict[str, str]:
        return {"kind": "Postgres", "dsn": self.dsn, "password": self._password}

    def rows(self, name: str) -> list[Row]:
        with self._connect() as sql:
            return [tuple(row) for row in sql.execute(f"SELECT * FROM {name}").fetchall()]


class Topics(Target):
    """Two topics of a Kafka broker, which nobody had before."""

    def __init__(self, servers: str, folder: Path) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        self._servers = servers
        self._folder = folder
        self._names = f"crash-{secrets.token_hex(6)}"
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        made = admin.create_topics([NewTopic(f"{self._names}-{name}", 2, 1) for name in (RAW, WINDOWS)])
        for created in made.values():
            created.result(30)

    def sink(self, name: str) -> Sink:
        return sink_of(self.arguments(), name)

    def arguments(self) -> dict[str, str]:
        folder = str(self._folder / "staging")
        return {"kind": "Kafka", "servers": self._servers, "topics": self._names, "folder": folder}

    def rows(self, name: str) -> list[Row]:
        reader = CommittedRecords(self._servers, f"{self._names}-{name}")
        try:
            return [tuple(json.loads(message.value())) for message in reader.read()]
        finally:
            reader.close()


@contextmanager
def target(kind: str, folder: Path | None, name: str, servers: Servers) -> Iterator[Target]:
    """A fresh target of one kind: in memory under `name`, in `folder`, or in one of `servers`."""
    made: Target
    if kind == "Collect":
        made = Collected(name)
    elif kind == "Postgres":
        assert servers.postgres is not None, "no PostgreSQL server was started"
        made = Tables(servers.postgres)
    elif kind == "Kafka":
        assert servers.kafka and folder is not None, "no Kafka broker was started"
        made = Topics(servers.kafka, folder)
    else:
        assert folder is not None, f"{kind} needs a folder"
        made = Folders(folder, kind)
    try:
        yield made
    finally:
        made.close()


WAYS = ("natural end", "suspend", "drain", "cancel", "SIGTERM", "savepoint")
"""Ways to end; all but the first and last are followed by a restore of the latest snapshot, which ends naturally.
Savepoint: one is taken on the way to a natural end."""
