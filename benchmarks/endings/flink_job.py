"""The job on Flink, in an environment with PyPI's apache-flink.

Keyed tumbling windows from a folder of files into a two-phase-commit file sink, on a cluster within one JVM, with
parallelism 1; in Flink's SQL (`sql`) or its DataStream API (`datastream`, windows by PyFlink).

    python flink_job.py API FOLDER [ENDS KINDS]     # adds to FOLDER/lives.json
"""

from __future__ import annotations

import json
import re
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pyflink.version
from py4j.protocol import Py4JJavaError
from pyflink.common import Configuration, Duration, Encoder, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import (
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)
from pyflink.datastream.functions import ProcessWindowFunction
from pyflink.datastream.window import TumblingEventTimeWindows, TumblingProcessingTimeWindows
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment
from scenarios import ENDS, KINDS, WallClock, play
from workload import EVENT_WINDOW_MS, PROCESSING_WINDOW_S, Emitted

CHECKPOINT_INTERVAL_MS = 500
LOUD = re.compile(r" (WARN|ERROR) ")
TELLING = re.compile(r"timer|window|dropp", re.IGNORECASE)


def free_port() -> int:
    """Return an unused port of the loopback interface."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class FlinkJob:
    """One run of the job, with a cluster of its own that ends with it."""

    def __init__(self, api: str, kind: str, work: Path, *, bounded: bool, restore: str | None) -> None:
        self._port = free_port()
        self._snapshots = work / "snapshots"
        self._checkpoints = work / "checkpoints"
        settings = {
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": str(self._port),
            "metrics.fetcher.update-interval": "200 ms",
            "execution.runtime-mode": "STREAMING",
            "execution.checkpointing.interval": f"{CHECKPOINT_INTERVAL_MS} ms",
            "execution.checkpointing.dir": self._checkpoints.as_uri(),
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "restart-strategy.type": "none",
            "parallelism.default": "1",
            "python.executable": sys.executable,
            "python.client.executable": sys.executable,
            "pipeline.auto-watermark-interval": "100 ms",
            "table.local-time-zone": "UTC",
            "table.optimizer.agg-phase-strategy": "ONE_PHASE",
        }
        if restore is not None:
            settings["execution.state-recovery.path"] = restore
        configuration = Configuration()
        for name, value in settings.items():
            configuration.set_string(name, value)
        env = StreamExecutionEnvironment.get_execution_environment(configuration)
        build = _sql if api == "sql" else _datastream
        sink = (
            FileSink.for_row_format(str(work / "out"), Encoder.simple_string_encoder())
            .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
            .with_output_file_config(OutputFileConfig.builder().with_part_suffix(".txt").build())
            .build()
        )
        build(env, kind, work / "in", bounded).sink_to(sink).name("out").uid("out")
        self._client = env.execute_async(f"{api}-{kind}")._j_job_client  # PyFlink's own stop fails in 2.3
        self._job_id = self._client.getJobID().toString()
        self._result = self._client.getJobExecutionResult()

    def ended(self) -> bool:
        """Return whether the job has ended by itself; raises the error that made it fail."""
        if not self._result.isDone():
            return False
        self._result.get()
        return True

    def rows_at_window(self) -> int:
        """Return how many rows of this run have reached the window operator, the first one of the last vertex."""
        return int(self._facts()["vertices"][-1]["metrics"]["read-records"])

    def checkpoint(self) -> tuple[int, str]:
        """Return (number, folder) of the newest completed checkpoint; 0 if there is none."""
        newest = self._facts("/checkpoints")["latest"]["completed"]
        return (newest["id"], newest["external_path"]) if newest else (0, "")

    def stop(self, *, drain: bool) -> str:
        """Stop with a savepoint; return its folder."""
        formats = get_gateway().jvm.org.apache.flink.core.execution.SavepointFormatType
        path = self._client.stopWithSavepoint(drain, self._snapshots.as_uri(), formats.CANONICAL).get()
        self._result.get()
        return str(path)

    def cancel(self) -> str:
        """Cancel; return the folder of the remaining checkpoint."""
        self._client.cancel().get()
        try:
            self._result.get()
        except Py4JJavaError as error:
            if "JobCancellationException" not in str(error):
                raise
        left = sorted((self._checkpoints / self._job_id).glob("chk-*/_metadata"), key=_checkpoint_id)
        return left[-1].parent.as_uri()

    def _facts(self, path: str = "") -> dict[str, Any]:
        """Return the facts of the cluster's REST server about the job."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/jobs/{self._job_id}{path}", timeout=60) as answer:
            return dict(json.load(answer))


def _checkpoint_id(metadata: Path) -> int:
    return int(metadata.parent.name.removeprefix("chk-"))


def output(work: Path) -> list[Emitted]:
    """Return all committed result rows."""
    lines = [line for path in (work / "out").rglob("*.txt") if path.name[0] not in "._" for line in _lines(path)]
    fields = [line.split(",") for line in lines]
    return [Emitted(key, window, int(count), int(total)) for key, window, count, total in fields]


def _lines(path: Path) -> list[str]:
    """Return the result rows of a file; rows of the SQL job are written as `+I[...]`."""
    return [line.removeprefix("+I[").removesuffix("]") for line in path.read_text(encoding="utf-8").splitlines()]


def _sql(env: StreamExecutionEnvironment, kind: str, inputs: Path, bounded: bool) -> Any:
    tables = StreamTableEnvironment.create(env)
    time = (
        "t AS TO_TIMESTAMP_LTZ(ts_ms, 3), WATERMARK FOR t AS t - INTERVAL '0.001' SECOND"
        if kind == "event"
        else "t AS PROCTIME()"
    )
    size = EVENT_WINDOW_MS // 1000 if kind == "event" else PROCESSING_WINDOW_S
    monitor = "" if bounded else ", 'source.monitor-interval' = '200 ms'"
    tables.execute_sql(
        f"CREATE TABLE feed (k STRING, v BIGINT, ts_ms BIGINT, {time}) WITH ('connector' = 'filesystem',"
        f" 'path' = '{inputs.as_uri()}', 'format' = 'json'{monitor})"
    )
    results = tables.sql_query(
        "SELECT CONCAT_WS(',', k, CAST(window_start AS STRING), CAST(COUNT(*) AS STRING), CAST(SUM(v) AS STRING))"
        f" FROM TABLE(TUMBLE(TABLE feed, DESCRIPTOR(t), INTERVAL '{size}' SECONDS))"
        " GROUP BY k, window_start, window_end"
    )
    return tables.to_data_stream(results)


class _RowTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[2])


class _CountAndSum(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        values = [row[1] for row in elements]
        yield f"{key},{context.window().start},{len(values)},{sum(values)}"


def _fields(line: str) -> tuple[str, int, int]:
    row = json.loads(line)
    return row["k"], row["v"], row["ts_ms"]


def _datastream(env: StreamExecutionEnvironment, kind: str, inputs: Path, bounded: bool) -> Any:
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(inputs))
    if not bounded:
        source = source.monitor_continuously(Duration.of_millis(200))
    rows = (
        env.from_source(source.build(), WatermarkStrategy.no_watermarks(), "feed")
        .uid("feed")
        .map(_fields, Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()]))
        .uid("fields")
    )
    if kind == "event":
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_RowTime())
        rows = rows.assign_timestamps_and_watermarks(strategy).uid("times")
        window = TumblingEventTimeWindows.of(Time.milliseconds(EVENT_WINDOW_MS))
    else:
        window = TumblingProcessingTimeWindows.of(Time.seconds(PROCESSING_WINDOW_S))
    return (
        rows.key_by(lambda row: row[0], Types.STRING())
        .window(window)
        .process(_CountAndSum(), Types.STRING())
        .uid("window")
    )


class Flink(WallClock):
    """Flink, as a system for `scenarios`."""

    def __init__(self, api: str) -> None:
        self._api = api

    def start(self, kind: str, work: Path, *, bounded: bool, restore: str | None, allow_drained: bool) -> FlinkJob:
        """Start the job. Flink restores the snapshot of a drain without confirmation."""
        return FlinkJob(self._api, kind, work, bounded=bounded, restore=restore)

    def refusal(self, work: Path, restore: str) -> str:
        """Return "": Flink does not refuse to restore a drain."""
        return ""

    def output(self, work: Path) -> list[Emitted]:
        """Return all committed result rows."""
        return output(work)

    def warnings(self, work: Path) -> list[str]:
        """Return warnings from the log of this process's JVM."""
        logs = Path(pyflink.__file__).with_name("log").glob("*.log")
        lines = [line for log in logs for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        return [line for line in lines if LOUD.search(line) and TELLING.search(line)]

    def leave(self, work: Path) -> None:
        """Do nothing: clusters live in this process."""


if __name__ == "__main__":
    api, folder, *only = sys.argv[1:]
    ends, kinds = (only[0].split(","), only[1].split(",")) if only else (ENDS, KINDS)
    play(
        Flink(api),
        f"{pyflink.version.__version__} (PyPI's apache-flink), a cluster in one JVM",
        Path(folder),
        ends,
        kinds,
    )
