"""The Spark session of a job, and the number of slots it offers."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from tidegate.errors import EnvironmentProblemError, OptionError, SlotsUnavailableError
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Spec
from tidegate.jobs.secrets import resolve_secrets

FIXED_CONF = {
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "2",
    "spark.python.worker.reuse": "false",
    "spark.task.maxFailures": "1",
}
"""Settings that the barrier stage depends on; users cannot change them."""

DEFAULT_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    "spark.python.daemon.module": "tidegate.spark.worker_daemon",
}
"""Settings that the user's spark_conf may change."""

IDLE_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings of streaming mode that the user's spark_conf may change. There the driver's JVM only starts the slots: the
optimising compiler and parallel garbage collection would cost CPU at the start, and save nothing later."""

BATCH_CONF = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of batch mode that the user's spark_conf may change."""

FIXED_BATCH_CONF = {"spark.sql.adaptive.enabled": "false"}
"""Settings of batch mode that users cannot change, because its stages depend on the number of partitions they request.
"""


def is_local(master: str) -> bool:
    """Return whether the master is `local` or `local[N]`: executors are in the driver's JVM; slots cannot be added."""
    return master == "local" or master.startswith("local[")


def spark_settings(spec: Spec, options: JobOptions, *, reads_frames: bool = False) -> dict[str, str]:
    """Return all settings of the job's session.

    Args:
        reads_frames: Spark reads DataFrames for the job.

    Raises:
        OptionError: barrier stages do not support a setting.
    """
    given = {key: str(value) for key, value in resolve_secrets(spec.spark_conf).items()}
    if options.execution_mode == "batch":
        return _with_defaults(spec, options, {**BATCH_CONF, **given, **FIXED_BATCH_CONF})
    if given.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        raise OptionError(
            "spark.dynamicAllocation.enabled=true is not supported in streaming mode",
            where=f"job {spec.job_id}, spark_conf",
            cause="Spark does not support barrier stages with dynamic allocation",
            remedy="Remove spark.dynamicAllocation.enabled. The driver waits for slots up to slots_timeout",
        )
    for key, value in FIXED_CONF.items():
        if given.get(key, value) != value:
            raise OptionError(
                f"{key}={given[key]} is not supported",
                where=f"job {spec.job_id}, spark_conf",
                cause=f"the barrier stage depends on {key}={value}",
                remedy=f"Remove {key} from spark_conf",
            )
    idle = {} if reads_frames else IDLE_JVM
    return _with_defaults(spec, options, {**idle, **given, **FIXED_CONF})


def _with_defaults(spec: Spec, options: JobOptions, given: dict[str, str]) -> dict[str, str]:
    conf = {**DEFAULT_CONF, **given}
    conf.setdefault("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON", sys.executable))
    if is_local(spec.master):
        conf.setdefault("spark.driver.host", "127.0.0.1")
        conf.setdefault("spark.driver.bindAddress", "127.0.0.1")
    else:
        slots_per_executor = int(given.get("spark.executor.cores", "1"))
        # Slots are Python processes. Spark counts their memory as overhead of the executor's JVM.
        overhead_mib = options.slot_memory_bytes * slots_per_executor // 2**20
        conf.setdefault("spark.executor.memoryOverhead", f"{overhead_mib}m")
    return conf


def start_session(spec: Spec, options: JobOptions, *, reads_frames: bool = False) -> SparkSession:
    """Start Spark.

    Args:
        reads_frames: see `spark_settings`.

    Raises:
        EnvironmentProblemError: Java is missing, or the master cannot be reached.
        OptionError: barrier stages do not support a setting.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise EnvironmentProblemError(
            "Java is not installed",
            cause="Spark needs Java 17 or newer",
            remedy="Install Java, for example `apt-get install openjdk-17-jre-headless`",
        )
    settings = spark_settings(spec, options, reads_frames=reads_frames)
    # Only spark-submit reads spark.pyspark.python. Without it, the workers use this variable.
    os.environ["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
    builder: Any = SparkSession.builder
    builder = builder.appName(f"tidegate {spec.job_id}")
    if not submitted:  # spark-submit has set the master; in a pod, its address differs from the one outside
        builder = builder.master(spec.master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as error:
        raise EnvironmentProblemError(
            f"Spark could not be started on master {spec.master}",
            where=f"job {spec.job_id}",
            cause=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            remedy="Run `tidegate doctor`, which checks Java and Python, and check the address of the master",
        ) from error
    session.sparkContext.setLogLevel("WARN")
    return session


def ui_url(session: SparkSession) -> str | None:
    """Return the URL of Spark's UI of this driver; None if `spark.ui.enabled` is false, which is the default."""
    context: Any = getattr(session, "sparkContext", None)
    url = getattr(context, "uiWebUrl", None)
    return str(url) if url else None


def offered_slots(session: SparkSession) -> int:
    """Return how many Spark tasks could run at once now: the number that the barrier stage itself will check."""
    context: Any = session.sparkContext
    jvm_context = context._jsc.sc()
    return int(jvm_context.maxNumConcurrentTasks(jvm_context.resourceProfileManager().defaultResourceProfile()))


class SlotWait:
    """Waits until `parallelism` slots are offered, at most `slots_timeout`. The caller's loop calls `poll`."""

    def __init__(
        self,
        session: SparkSession,
        spec: Spec,
        options: JobOptions,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._spec, self._options, self._monotonic = session, spec, options, monotonic
        self._since_s = monotonic()
        self.offered = 0

    def poll(self) -> bool:
        """Return whether the slots are offered; `offered` is their present number.

        Raises SlotsUnavailableError with needed slots, offered slots and a remedy; at once on a local master.
        """
        needed = self._options.parallelism
        there = self.offered = offered_slots(self._session)
        if there >= needed:
            return True
        waited_s = self._monotonic() - self._since_s
        local = is_local(self._spec.master)
        if local or waited_s >= self._options.slots_timeout.total_seconds():
            remedy = (
                f"Use master local[{needed}], or lower parallelism to {there}"
                if local
                else f"Add workers or free cores, lower parallelism to {there}, or raise slots_timeout"
            )
            raise SlotsUnavailableError(
                f"only {there} of {needed} slots are available" + ("" if local else f" after {waited_s:.0f} s"),
                where=f"job {self._spec.job_id}, master {self._spec.master}",
                cause="a job needs all its slots at once, with one free core for each",
                remedy=remedy,
            )
        return False
