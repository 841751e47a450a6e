"""Environments of peers that are no dependencies of the project, and Flink's jars."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pyspark

ENVIRONMENTS = Path(__file__).resolve().parent.parent / ".work" / "engines"
SPARK_KAFKA = ["pyspark==4.2.0", "numpy", "psutil"]
"""The newest version for which Spark's Kafka connector is in Maven's repository."""
SPARK_KAFKA_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>spark-kafka</artifactId><version>1</version><packaging>pom</packaging><dependencies>
<dependency><groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId><version>4.2.0</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>hadoop-client-runtime</artifactId></exclusion></exclusions>
</dependency></dependencies></project>
"""
FLINK = ["apache-flink==2.3.0"]
PARQUET_JAR = "flink-sql-parquet-2.3.0.jar"
PARQUET_URL = f"https://repo1.maven.org/maven2/org/apache/flink/flink-sql-parquet/2.3.0/{PARQUET_JAR}"
PARQUET_SHA256 = "f30617f4a5a6d437750f155ff72178ab34439aec91df64d96621c260559ba5fd"


def own_environment(engine: str, packages: Sequence[str], base: str) -> str:
    """Return the interpreter of an environment with packages that are no dependencies of the project.

    Args:
        engine: name of the environment, which is made if it does not exist.
        packages: requirements.
        base: interpreter from which it is made.
    """
    folder = ENVIRONMENTS / engine
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)


def flink_python() -> str:
    """Return an interpreter with apache-flink, which needs Python 3.12 or older (or FLINK_PYTHON)."""
    base = os.environ.get("FLINK_PYTHON", sys.executable)
    return own_environment("flink", FLINK, base)


def flink_jars() -> str:
    """Return the jars for Parquet, separated by ":". Raises SystemExit if a download is not what it should be."""
    jar = ENVIRONMENTS / "flink" / PARQUET_JAR
    if not jar.exists():
        with urllib.request.urlopen(PARQUET_URL, timeout=300) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != PARQUET_SHA256:
            raise SystemExit(f"{PARQUET_URL} has an unexpected checksum")
        jar.write_bytes(content)
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    return ":".join(str(path) for path in (jar, *hadoop))


def spark_kafka_jars() -> str:
    """Return the jars of Spark's Kafka connector, separated by commas. Fetches them with Maven."""
    folder = ENVIRONMENTS / "spark-kafka-jars"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="unfinished-", dir=folder.parent) as unfinished:
            pom, filled = Path(unfinished, "pom.xml"), Path(unfinished, "jars")
            pom.write_text(SPARK_KAFKA_POM)
            command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
            subprocess.run([*command, f"-DoutputDirectory={filled}"], check=True)
            filled.rename(folder)
    return ",".join(str(path) for path in sorted(folder.glob("*.jar")))
