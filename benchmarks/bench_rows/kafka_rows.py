"""From a Kafka topic to a Kafka topic, beside Structured Streaming."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

from checkout import REPOSITORY
from engine_runs import HERE, EngineRun, run_peer, run_tidegate
from environments import SPARK_KAFKA, own_environment, spark_kafka_jars

from bench_rows.row import MILLION, Row

sys.path.insert(0, str(REPOSITORY / "tests"))
from kafka_broker import KafkaBroker

PARTITIONS = 2
KEYS = 1_000
ROWS_PER_SECOND = 100_000
BEGINS = datetime(2026, 1, 1)
ENGINES = ("tidegate", "structured_streaming")
WORKS = {"windows": "windows, JSON", "copy": "copy of the bytes"}
_numbers = itertools.count()


@dataclass(frozen=True)
class Topic:
    """Attributes: rows: of the topic `name`, which ends with a row of a later second for each partition."""

    broker: KafkaBroker
    name: str
    rows: int


def kafka(folder: Path, quick: bool, repeat: int) -> Row:
    """Windows over JSON values, and a copy of raw values, from topic to topic."""
    row = Row("kafka", "From Kafka to Kafka")
    rows = (1 if quick else 4) * MILLION
    row.lines = [
        f"{rows:,} records of some 60 bytes in {PARTITIONS} partitions, {KEYS:,} keys; one broker on the same machine, "
        "whose CPU is not counted. Windows of one second with a count and a sum, values in JSON; and a copy of the "
        "bytes. Records per CPU second of the whole process tree, in millions. With start: one run in a new process. "
        "Without: tidegate from RUNNING to FINISHED; Structured Streaming (`availableNow`) a second query in the same "
        "process. tidegate writes each record exactly once, and Structured Streaming at least once.",
        "",
        "| work | engine | with start | without start | seconds without start | each run, CPU s without start |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    broker = KafkaBroker()
    broker.start()
    try:
        topic = _filled(broker, rows)
        for work, title in WORKS.items():
            found = _in_turn(topic, work, folder, repeat, row)
            bars = []
            for engine, runs in found.items():
                cold = rows / median(run.cpu_s for run in runs) / 1e6
                warm = rows / median(run.warm_cpu_s for run in runs) / 1e6
                each, wall = ", ".join(f"{r.warm_cpu_s:.1f}" for r in runs), median(r.warm_wall_s for r in runs)
                label = engine.replace("_", " ")
                row.lines.append(f"| {title} | {label} | {cold:.2f} | {warm:.2f} | {wall:.1f} | {each} |")
                bars.append((label, warm))
            own, theirs = (median(run.warm_cpu_s for run in found[engine]) for engine in ENGINES)
            row.figures[f"kafka_{work}"] = theirs / own
            row.charts[f"Million records per CPU second, Kafka to Kafka, {title}, without start"] = bars
    finally:
        broker.stop()
    return row


def _filled(broker: KafkaBroker, rows: int) -> Topic:
    name = broker.create_topic("rows", PARTITIONS)
    for partition in range(PARTITIONS):
        numbers = itertools.chain(range(partition, rows, PARTITIONS), [rows + 2 * ROWS_PER_SECOND])
        broker.produce(name, map(_value, numbers), partition)
    return Topic(broker, name, rows)


def _value(i: int) -> bytes:
    at = BEGINS + timedelta(microseconds=i * 1_000_000 // ROWS_PER_SECOND)
    return b'{"k": %d, "v": %d, "ts": "%s"}' % (i % KEYS, i % 997, at.isoformat(timespec="microseconds").encode())


def _in_turn(topic: Topic, work: str, folder: Path, repeat: int, row: Row) -> dict[str, list[EngineRun]]:
    found: dict[str, list[EngineRun]] = {engine: [] for engine in ENGINES}
    for _ in range(repeat):
        for engine in ENGINES:
            run = _run(topic, work, engine, folder)
            found[engine].append(run)
            row.runs.append({"work": work, **asdict(run)})
            print(f"{work}: {engine}: {run.wall_s:.1f} s, {run.cpu_s:.1f} CPU s", file=sys.stderr, flush=True)
    digests = {run.digest for runs in found.values() for run in runs}
    if len(digests) != 1:
        raise SystemExit(f"{work}: the results differ: {[(e, {r.digest for r in runs}) for e, runs in found.items()]}")
    return found


def _run(topic: Topic, work: str, engine: str, folder: Path) -> EngineRun:
    prefix = f"{work}-{next(_numbers)}"
    servers = topic.broker.servers
    for run in range(2):
        topic.broker.create_topic(f"{prefix}-{run}", PARTITIONS)
    if engine == "tidegate":
        arguments = {"servers": servers, "source": topic.name, "target": f"{prefix}-0", "work": work}
        measured = run_tidegate("kafka.py", arguments, {}, folder / "jobs")
    else:
        python = own_environment("spark-kafka", SPARK_KAFKA, sys.executable)
        script = str(HERE / "engines" / "structured_streaming_kafka.py")
        command = [python, script, servers, topic.name, prefix, "2", spark_kafka_jars(), work]
        measured = run_peer(command, folder)
    digest = _digest(topic, work, f"{prefix}-0")
    for run in range(2):
        topic.broker.delete_topic(f"{prefix}-{run}")
    return EngineRun(engine, *measured, digest)


def _digest(topic: Topic, work: str, target: str) -> str:
    """Return number and hash of the records of a target, in any order; without the newest windows."""
    values = [message.value() for message in topic.broker.read(target)]
    if work == "windows":
        newest = BEGINS + timedelta(seconds=topic.rows // ROWS_PER_SECOND)
        rows = [json.loads(value) for value in values]
        keys = ((r["k"], r["window_start"][:19].replace("T", " "), r["n"], r["total"]) for r in rows)
        values = [repr(key).encode() for key in keys if key[1] < f"{newest:%Y-%m-%d %H:%M:%S}"]
    total = sum(int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "big") for value in values)
    return f"{len(values)} {total % 2**64:x}"
