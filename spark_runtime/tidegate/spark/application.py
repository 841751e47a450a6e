"""The Spark application of a job, and the number of slots it offers."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j import protocol
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home

from tidegate.channel.tcp.shared_blocks import SHARED_BYTES
from tidegate.errors import EnvironmentProblemError, OptionError, SlotsUnavailableError
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Spec
from tidegate.jobs.secrets import is_reference, resolve_secrets
from tidegate.private_cache import private_cache_directory, user_cache
from tidegate.spark.class_archive import java_options, remove_archives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("tidegate.spark")

GATEWAY_TIMEOUT_S = 5.0
"""Longest wait, in seconds, for an answer of the JVM that has submitted this process."""
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

IDLE_JVM = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms16m -XX:-UsePerfData "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
}
"""Settings that the user's spark_conf may change, for a driver whose JVM processes few rows: in streaming mode it only
starts the slots (ADR 0030, ADR 0035).

- The optimising compiler and parallel garbage collection would cost CPU at the start, and save nothing later.
- The heap begins small: Java would begin with 1/64 of the machine's memory, and use it before the first collection.
- Without performance data, which only `jps` and `jstat` read, one thread wakes 20 times a second less.
- The archives of classes are mapped at the address for which they were written. Java would choose another address,
  and so change, and no longer share, each of their pages: 40 MiB in each JVM. If the address is not free, Java chooses
  another one.
"""

BATCH_CONF = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of batch mode that the user's spark_conf may change."""

FIXED_BATCH_CONF = {"spark.sql.adaptive.enabled": "false"}
"""Settings of batch mode that users cannot change, because its stages depend on the number of partitions they request.
"""


class SparkApplication:
    """Spark's side of a driver.

    Slots need only the context. Spark SQL, which takes more than a second of CPU to start, is started when it is used.

    Attributes:
        context: the Spark context.
    """

    def __init__(self, context: SparkContext) -> None:
        self.context = context

    @cached_property
    def session(self) -> SparkSession:
        """The session of Spark SQL."""
        from pyspark.sql import SparkSession

        return SparkSession(self.context)

    def is_lost(self) -> bool:
        """Return whether Spark's JVM has ended."""
        gateway: Any = SparkContext._gateway
        process = getattr(gateway, "proc", None)
        if process is not None:
            return process.poll() is not None
        # Under spark-submit, the JVM is the parent of this process.
        place = gateway.gateway_parameters
        try:
            with socket.create_connection((place.address, place.port), GATEWAY_TIMEOUT_S):
                return False
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def stop(self) -> None:
        """Stop Spark. If its JVM has ended, do nothing."""
        if self.is_lost():
            return
        started = self.__dict__.get("session")
        (self.context if started is None else started).stop()


class NumpyConverter:
    """One of PySpark's converters of numpy values for calls of Java, which it only asks about numpy values.

    PySpark's converters import pandas, also for a call with a text: half a second of CPU and 24 MiB in each driver.
    """

    def __init__(self, converter: Any) -> None:
        self._converter = converter

    def can_convert(self, value: object) -> bool:
        """Return whether the converter converts the value."""
        is_numpy = any(kind.__module__.partition(".")[0] == "numpy" for kind in type(value).__mro__)
        return is_numpy and bool(self._converter.can_convert(value))

    def convert(self, value: object, gateway_client: Any) -> Any:
        """Return the value as an object of Java."""
        return self._converter.convert(value, gateway_client)


def limit_numpy_converters() -> None:
    """Put a `NumpyConverter` around each of PySpark's converters of numpy values. May be called twice."""
    converters = protocol.INPUT_CONVERTER
    for position, converter in enumerate(converters):
        kind = type(converter)
        if kind.__module__ == "pyspark.sql.types" and kind.__name__.startswith("Numpy"):
            converters[position] = NumpyConverter(converter)


def is_local(master: str) -> bool:
    """Return whether the master is `local` or `local[N]`: executors are in the driver's JVM; slots cannot be added."""
    return master == "local" or master.startswith("local[")


def spark_settings(spec: Spec, options: JobOptions, *, moves_rows: bool = False) -> dict[str, str]:
    """Return all settings of the job's session.

    Args:
        moves_rows: Spark itself processes rows of the job: it reads DataFrames or sorts rows.

    Raises:
        OptionError: barrier stages do not support a setting.
    """
    given = {key: str(value) for key, value in resolve_secrets(spec.spark_conf).items()}
    idle = {} if moves_rows or is_in_spark_defaults("spark.driver.extraJavaOptions") else IDLE_JVM
    if options.execution_mode == "batch":
        return _with_defaults(spec, options, {**BATCH_CONF, **idle, **given, **FIXED_BATCH_CONF})
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
    return _with_defaults(spec, options, {**idle, **given, **FIXED_CONF})


def is_in_spark_defaults(key: str) -> bool:
    """Return whether the installation's `spark-defaults.conf` sets a key. Settings of a job would replace its value."""
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    try:
        lines = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    return any(re.split(r"[\s=:]", line.strip(), maxsplit=1)[0] == key for line in lines)


def _with_defaults(spec: Spec, options: JobOptions, given: dict[str, str]) -> dict[str, str]:
    conf = {**DEFAULT_CONF, **given}
    conf.setdefault("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON", sys.executable))
    if is_local(spec.master):
        conf.setdefault("spark.driver.host", "127.0.0.1")
        conf.setdefault("spark.driver.bindAddress", "127.0.0.1")
    else:
        slots_per_executor = int(given.get("spark.executor.cores", "1"))
        # Slots are Python processes. Spark counts their memory as overhead of the executor's JVM.
        overhead_mib = (options.slot_memory_bytes + SHARED_BYTES) * slots_per_executor // 2**20
        conf.setdefault("spark.executor.memoryOverhead", f"{overhead_mib}m")
    return conf


def start_application(spec: Spec, options: JobOptions, *, moves_rows: bool = False) -> SparkApplication:
    """Start Spark.

    Args:
        moves_rows: see `spark_settings`.

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
    settings = spark_settings(spec, options, moves_rows=moves_rows)
    # Only spark-submit reads spark.pyspark.python. Without it, the workers use this variable.
    os.environ["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
    limit_numpy_converters()
    archived = "" if submitted else _archive_options(settings, options.execution_mode)
    try:
        context = _start(spec, settings, archived)
    except Exception as error:
        raise EnvironmentProblemError(
            f"Spark could not be started on master {spec.master}",
            where=f"job {spec.job_id}",
            cause=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            remedy="Run `tidegate doctor`, which checks Java and Python, and check the address of the master",
        ) from error
    context.setLogLevel("WARN")
    return SparkApplication(context)


def _archive_options(settings: Mapping[str, str], mode: str) -> str:
    """Return the JVM's options for its archive of classes; "" if the user chose options or a class path for the JVM,
    which an archive might not fit.
    """
    chosen = settings.get("spark.driver.extraJavaOptions") != IDLE_JVM["spark.driver.extraJavaOptions"]
    if chosen or any(key in settings for key in ("spark.driver.extraClassPath", "spark.driver.defaultJavaOptions")):
        return ""
    directory = private_cache_directory(user_cache(), "classes")
    # Archives of the purpose "batch" are of versions whose batch jobs always started Spark SQL.
    purpose = "batch-rdd" if mode == "batch" else mode
    return java_options(directory, Path(_find_spark_home()) / "jars", purpose)


def _start(spec: Spec, settings: Mapping[str, str], archived: str) -> SparkContext:
    conf = SparkConf().setAppName(f"tidegate {spec.job_id}").setAll(list(settings.items()))
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # Otherwise, spark-submit has set the master; in a pod, its address differs from the one outside.
        conf.setMaster(spec.master)
    secret = frozenset(name for name, value in spec.spark_conf.items() if is_reference(value))
    if not archived:
        return _context(conf, secret)
    key = "spark.driver.extraJavaOptions"
    try:
        return _context(conf.set(key, f"{settings[key]} {archived}"), secret)
    except PySparkRuntimeError as error:
        # Other errors, such as a master that cannot be reached, would occur again without the archive.
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        logger.warning("the JVM did not start with its archive of classes; the archive is removed: %s", error)
        directory = private_cache_directory(user_cache(), "classes")
        if directory is not None:
            remove_archives(directory)
        return _context(conf.set(key, settings[key]), secret)


def _context(conf: SparkConf, secret: frozenset[str]) -> SparkContext:
    """Return the Spark context. The settings in `secret` are set when the JVM runs: PySpark would put them on its
    command line, which all users of the machine can read."""
    if secret and "PYSPARK_GATEWAY_PORT" not in os.environ:
        visible = [(name, value) for name, value in conf.getAll() if name not in secret]
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(visible))
    return SparkContext.getOrCreate(conf)


def ui_url(application: SparkApplication) -> str | None:
    """Return the URL of Spark's UI of this driver; None if `spark.ui.enabled` is false, which is the default."""
    url = getattr(application.context, "uiWebUrl", None)
    return str(url) if url else None


def offered_slots(application: SparkApplication) -> int:
    """Return how many Spark tasks could run at once now: the number that the barrier stage itself will check."""
    context: Any = application.context
    jvm_context = context._jsc.sc()
    return int(jvm_context.maxNumConcurrentTasks(jvm_context.resourceProfileManager().defaultResourceProfile()))


class SlotWait:
    """Waits until `parallelism` slots are offered, at most `slots_timeout`. The caller's loop calls `poll`."""

    def __init__(
        self,
        application: SparkApplication,
        spec: Spec,
        options: JobOptions,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._application, self._spec, self._options, self._monotonic = application, spec, options, monotonic
        self._since_s = monotonic()
        self.offered = 0

    def poll(self) -> bool:
        """Return whether the slots are offered; `offered` is their present number.

        Raises SlotsUnavailableError with needed slots, offered slots and a remedy; at once on a local master.
        """
        needed = self._options.parallelism
        there = self.offered = offered_slots(self._application)
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
