"""A real YARN on loopback for tests: one ResourceManager and one NodeManager, from Maven's packages.

`python tests/yarn_cluster.py` (`make yarn`) fetches the packages once, into `.work/yarn`. Hadoop's own classes are
those that PySpark brings along; Hadoop's daemons are in `hadoop-client-minicluster` of the same version.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

JARS = Path(__file__).resolve().parents[1] / ".work" / "yarn"
MAVEN = "https://repo1.maven.org/maven2/"
PACKAGES = {
    "org/apache/hadoop/hadoop-client-minicluster/3.5.0/hadoop-client-minicluster-3.5.0.jar": (
        "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c"
    ),
    "org/bouncycastle/bcprov-jdk18on/1.82/bcprov-jdk18on-1.82.jar": (
        "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce"
    ),
    "org/bouncycastle/bcpkix-jdk18on/1.82/bcpkix-jdk18on-1.82.jar": (
        "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63"
    ),
    "org/bouncycastle/bcutil-jdk18on/1.82/bcutil-jdk18on-1.82.jar": (
        "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d"
    ),
}
"""Path in Maven's repository -> SHA-256."""
OF_PYSPARK = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "slf4j-api",
    "log4j-",
    "jcl-over-slf4j",
    "javax.servlet-api",
)
START_LIMIT_S = 120.0
FETCH_LIMIT_S = 120.0
MEMORY_MIB = 6144
SERVER = "org.apache.hadoop.yarn.server"
CLIENTS = {"application": "ApplicationCLI", "logs": "LogsCLI"}
"""Words of the `yarn` command -> Hadoop's classes behind them."""


def fetch() -> None:
    """Download what is missing. Raises OSError, or ValueError when a package is not what it should be."""
    JARS.mkdir(parents=True, exist_ok=True)
    for path, sha256 in PACKAGES.items():
        target = JARS / Path(path).name
        if target.exists():
            continue
        with urllib.request.urlopen(MAVEN + path, timeout=FETCH_LIMIT_S) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError(f"{MAVEN}{path} is not the package that was tested")
        unfinished = target.with_suffix(".part")
        unfinished.write_bytes(content)
        unfinished.replace(target)


def jars() -> list[Path] | None:
    """What YARN is started with; None: not fetched."""
    own = [JARS / Path(path).name for path in PACKAGES]
    if not all(jar.exists() for jar in own):
        return None
    pyspark = find_spec("pyspark")
    assert pyspark is not None and pyspark.origin is not None
    found = sorted((Path(pyspark.origin).parent / "jars").glob("*.jar"))
    return own + [jar for jar in found if jar.name.startswith(OF_PYSPARK)]


class YarnCluster:
    """Runs from `start` to `stop`.

    Attributes:
        conf: HADOOP_CONF_DIR for whoever submits.
        yarn: the `yarn` command, as far as it is needed here.
    """

    def __init__(self) -> None:
        found = jars()
        assert found is not None
        self.folder = Path(tempfile.mkdtemp(prefix="tidegate-yarn-"))
        self.conf = self.folder / "conf"
        self.yarn = self.folder / "yarn"
        self._classpath = os.pathsep.join([str(self.conf), *map(str, found)])
        self._java = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if "JAVA_HOME" in os.environ else "java"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))

    def start(self) -> None:
        """Until the node is there."""
        self.conf.mkdir()
        _write(self.conf / "core-site.xml", {"fs.defaultFS": "file:///"})
        _write(self.conf / "yarn-site.xml", self._settings())
        self._write_command()
        for daemon in ("resourcemanager.ResourceManager", "nodemanager.NodeManager"):
            with open(self.folder / f"{daemon}.log", "wb") as log:
                command = [self._java, "-Xmx256m", "-cp", self._classpath, f"{SERVER}.{daemon}"]
                started = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
                )
            self._daemons.append(started)
        by_s = time.monotonic() + START_LIMIT_S
        while '"totalNodes":1' not in self._metrics():
            gone = [process.args for process in self._daemons if process.poll() is not None]
            assert not gone and time.monotonic() < by_s, self._logs()
            time.sleep(0.5)

    def stop(self) -> None:
        """End both daemons, and with the NodeManager its containers."""
        for process in reversed(self._daemons):
            process.terminate()
        for process in self._daemons:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _settings(self) -> Mapping[str, str]:
        addresses = {name: f"127.0.0.1:{port}" for name, port in self._ports.items()}
        return addresses | {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.bind-host": "127.0.0.1",
            "yarn.resourcemanager.scheduler.class": f"{SERVER}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.scheduler.minimum-allocation-mb": "256",
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.bind-host": "127.0.0.1",
            "yarn.nodemanager.local-dirs": str(self.folder / "local"),
            "yarn.nodemanager.log-dirs": str(self.folder / "containers"),
            "yarn.nodemanager.resource.memory-mb": str(MEMORY_MIB),
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
            "yarn.log-aggregation-enable": "true",
            "yarn.nodemanager.remote-app-log-dir": str(self.folder / "aggregated"),
        }

    def _write_command(self) -> None:
        cases = []
        for word, name in CLIENTS.items():
            java = shlex.join([self._java, "-cp", self._classpath, f"org.apache.hadoop.yarn.client.cli.{name}"])
            arguments = '"$@"' if word == "application" else '"${@:2}"'
            cases.append(f"{word}) exec {java} {arguments} ;;")
        lines = "\n".join(cases)
        self.yarn.write_text(f'#!/usr/bin/env bash\ncase "$1" in\n{lines}\nesac\n')
        self.yarn.chmod(0o755)

    def _metrics(self) -> str:
        port = self._ports["yarn.resourcemanager.webapp.address"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ws/v1/cluster/metrics", timeout=5) as answer:
                return str(answer.read(), "utf-8")
        except OSError:
            return ""

    def _logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.log")))


_PORTS = tuple(
    f"yarn.{of}.address"
    for of in (
        "resourcemanager",
        "resourcemanager.scheduler",
        "resourcemanager.resource-tracker",
        "resourcemanager.admin",
        "resourcemanager.webapp",
        "nodemanager",
        "nodemanager.localizer",
        "nodemanager.webapp",
    )
)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _write(path: Path, settings: Mapping[str, str]) -> None:
    lines = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    path.write_text("\n".join(["<configuration>", *lines, "</configuration>"]))


if __name__ == "__main__":
    fetch()
    print(f"YARN's packages are in {JARS}", file=sys.stderr)
