"""A private `airflow standalone`: home, free ports, login, connection, and DAGs of this checkout.

It is started, controlled over REST, and stopped together with all its processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parent.parent
READY_TIMEOUT_S = 240.0
"""Time limit for database migration and the start of all four processes."""
STOP_TIMEOUT_S = 40.0
"""Time limit for `airflow standalone` to end its processes after SIGINT."""
REQUEST_TIMEOUT_S = 30.0
PORTS_FROM, PORTS_TO = 15_000, 32_768
"""Range of Airflow's ports: Linux by default assigns none of them automatically."""
DATABASE_BUSY_TRIES = 8
"""Tries of a request that the API server answers with 500, one second apart: two writers may block each other until
SQLite aborts one of them."""


class AirflowFailed(RuntimeError):
    """Airflow did not start, or refused a request."""


@dataclass
class AirflowHome:
    """The folder of one Airflow, and its environment.

    Attributes:
        folder: AIRFLOW_HOME; created if missing.
        job_root: job root of the connection `tidegate_default`.
        flights: home of the DAG `flight_delays`: data and output.
        dags: DAGs folder.
        user, password: login.
        extra: more environment variables.
    """

    folder: Path
    job_root: Path
    flights: Path
    dags: Path = REPOSITORY / "dags"
    user: str = "admin"
    password: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    extra: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[int, int, int] = field(default_factory=lambda: free_ports())

    @property
    def url(self) -> str:
        """Return the URL of UI and REST API."""
        return f"http://localhost:{self.ports[0]}"

    def environment(self) -> dict[str, str]:
        """Return the environment of every Airflow process of this home."""
        port, worker_log_port, trigger_log_port = self.ports
        sources = os.pathsep.join(str(REPOSITORY / name) for name in ("spark_runtime", "provider"))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_")}
        inherited_path = inherited.get("PYTHONPATH")
        return {
            **inherited,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]),
            "PYTHONPATH": f"{sources}{os.pathsep}{inherited_path}" if inherited_path else sources,
            "PYTHONUNBUFFERED": "1",
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{self.user}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.folder / "passwords.json"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_log_port),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log_port),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW_CONN_TIDEGATE_DEFAULT": json.dumps({"conn_type": "tidegate", "host": str(self.job_root)}),
            "FLIGHT_DELAYS_HOME": str(self.flights),
            **self.extra,
        }

    def prepare(self) -> None:
        """Create the folders and the password file."""
        for folder in (self.folder, self.job_root, self.flights):
            folder.mkdir(parents=True, exist_ok=True)
        passwords = self.folder / "passwords.json"
        passwords.write_text(json.dumps({self.user: self.password}))
        passwords.chmod(0o600)


class Standalone:
    """Runs `airflow standalone` in a home. Use it as a context manager: all its processes are ended by id."""

    def __init__(self, home: AirflowHome) -> None:
        self.home = home
        self.log = home.folder / "standalone.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._family: dict[int, psutil.Process] = {}
        self._triggerers: list[subprocess.Popen[bytes]] = []
        self._token = ""

    def __enter__(self) -> Standalone:
        self.home.prepare()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "standalone"],
                env=self.home.environment(),
                cwd=self.home.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        """Wait until scheduler, DAG processor, triggerer and API answer, and get a token."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            self._remember_family()
            if self._process is None or self._process.poll() is not None:
                break
            with contextlib.suppress(OSError, AirflowFailed, ValueError, KeyError):
                health = self._call("GET", "/api/v2/monitor/health", None, authorized=False)
                parts = ("metadatabase", "scheduler", "dag_processor", "triggerer")
                if all(health[part]["status"] == "healthy" for part in parts):
                    login = {"username": self.home.user, "password": self.home.password}
                    self._token = self._call("POST", "/auth/token", login, authorized=False)["access_token"]
                    return
            time.sleep(1.0)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        raise AirflowFailed(f"airflow standalone did not get ready; its log {self.log} ends with:\n{tail}")

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send one REST request, and return the answer's JSON. Raises AirflowFailed with the server's message."""
        for _ in range(DATABASE_BUSY_TRIES - 1):
            try:
                return self._call(method, path, body, authorized=True)
            except AirflowFailed as error:
                if f"{path}: 500 " not in str(error):
                    raise
            time.sleep(1.0)
        return self._call(method, path, body, authorized=True)

    def is_running(self) -> bool:
        """Return whether the standalone process lives; also record its descendants for `stop`."""
        self._remember_family()
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Send SIGINT, then end the remaining processes by id."""
        process = self._process
        if process is None:
            return
        self._remember_family()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        for sign, grace_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            alive = [p for p in self._family.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
            for member in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(sign)
            psutil.wait_procs(alive, grace_s)
        for started in (process, *self._triggerers):
            started.poll()
        self._process = None

    def replace_triggerer(self) -> None:
        """Kill the triggerer with all its processes, and start another one, because `airflow standalone` does not."""
        self._remember_family()
        died = [p for p in self._family.values() if p.is_running() and _is_triggerer(_command(p))]
        if not died:
            raise AirflowFailed(f"no triggerer process was found among {len(self._family)} processes; see {self.log}")
        for member in {p for root in died for p in (root, *root.children(recursive=True))}:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        with self.log.open("ab") as log:
            another = subprocess.Popen(
                [sys.executable, "-m", "airflow", "triggerer"],
                env=self.home.environment(),
                cwd=self.home.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._triggerers.append(another)

    def _remember_family(self) -> None:
        """Record every descendant while its parents live; psutil detects a reused pid by the process's start time."""
        if self._process is None:
            return
        for started in (self._process, *self._triggerers):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(started.pid)
                for member in (process, *process.children(recursive=True)):
                    self._family.setdefault(member.pid, member)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None, *, authorized: bool) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if authorized:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.home.url}{path}", data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise AirflowFailed(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from None


def _command(process: psutil.Process) -> list[str]:
    """Return its command line; [] if it has ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _is_triggerer(command: list[str]) -> bool:
    """Return whether a command is a triggerer, by its argument or process title; names of DAGs may contain the word."""
    return "triggerer" in command or " ".join(command).startswith("airflow triggerer")


def free_ports() -> tuple[int, int, int]:
    """Return three unused ports that the system does not assign automatically.

    Airflow listens on them only later, and Spark opens many automatic ports meanwhile.
    """
    candidates = random.sample(range(PORTS_FROM, min(PORTS_TO, _first_given_port())), 300)
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in candidates:
            s = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                s.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == 3:
                break
    first, second, third = found
    return first, second, third


def _first_given_port() -> int:
    """Return the lowest port that the system assigns automatically."""
    with contextlib.suppress(OSError, ValueError):
        return max(PORTS_FROM + 300, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
    return PORTS_TO
